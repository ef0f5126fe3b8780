"""Fetch responses encoded around protobuf are the messages that protobuf reads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from google.rpc.code_pb2 import OUT_OF_RANGE
from google.rpc.error_details_pb2 import ErrorInfo
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import OffsetOutOfRangeError
from stratalog.base.types import TopicPartition
from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.server.fetch.fetch_cursor import FetchCursor, Watermarks
from stratalog.server.fetch.partition_signal import PartitionSignal
from stratalog.server.log_identity import LogIdentity
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.fetch_encoding import FetchEncoder
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.v1 import log_pb2

STATUSES = ErrorStatuses(ManualClock(), SequentialIds())


def encoded(cursors: Sequence[FetchCursor]) -> bytes:
    """The answer, without others of the same turn."""

    async def encode() -> bytes:
        return FetchEncoder(STATUSES, asyncio.get_running_loop()).encode(cursors)

    return asyncio.run(encode())


class FixedPartition:
    """A partition of which only the watermarks matter."""

    log_end_offset = 1 << 40

    def __init__(self, marks: Watermarks) -> None:
        self._marks = marks
        self.look_count = 0

    @property
    def signal(self) -> PartitionSignal:
        return PartitionSignal(asyncio.new_event_loop())

    @property
    def identity(self) -> LogIdentity:
        return LogIdentity("t", "an-id", 0, 7)

    @property
    def log_dir(self) -> str:
        raise AssertionError("nothing reads a log")

    def epoch_at(self, offset: int) -> int:
        raise AssertionError("this may wait for the store")

    def local_epoch_at(self, offset: int) -> int:
        return offset % 5 - 1

    def ensure_served(self) -> None:
        pass

    def watermarks(self) -> Watermarks:
        self.look_count += 1
        return self._marks

    def read_recent(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData | None:
        raise AssertionError

    def read_cached(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData | None:
        return None

    def read_local(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData:
        raise AssertionError

    def leave_tiered(self, offset: int) -> None:
        raise AssertionError

    def read_tiered(self, offset: int, max_bytes: int, isolation: Isolation) -> FetchData:
        raise AssertionError


OFFSETS = st.integers(0, (1 << 63) - 1)
CURSORS = st.tuples(
    st.builds(TopicPartition, st.text(max_size=10), st.integers(0, 1000)),
    st.builds(Watermarks, OFFSETS, OFFSETS, OFFSETS, OFFSETS),
    st.lists(st.binary(min_size=1, max_size=400), max_size=3),
    OFFSETS,
    st.lists(st.builds(AbortedTransaction, OFFSETS, OFFSETS, OFFSETS, OFFSETS), max_size=3, unique=True),
    st.booleans(),
)


@given(drawn=st.lists(CURSORS, max_size=4))
def test_what_is_encoded_by_hand_is_what_protobuf_reads(
    drawn: list[tuple[TopicPartition, Watermarks, list[bytes], int, list[AbortedTransaction], bool]],
) -> None:
    cursors: list[FetchCursor] = []
    expected = log_pb2.FetchResponse()
    for topic_partition, marks, chunks, position, transactions, has_failed in drawn:
        error = OffsetOutOfRangeError("gone", offset=position) if has_failed else None
        cursor = FetchCursor(topic_partition, error or FixedPartition(marks), position // 2, 1 << 20)
        cursor.chunks = list(chunks)
        cursor.size_bytes = sum(map(len, chunks))
        cursor.position = position
        cursor.aborted_transactions = dict.fromkeys(transactions)
        cursors.append(cursor)
        answer = expected.partitions.add(
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            batches=b"".join(chunks),
            fetch_offset=position // 2,
            next_fetch_offset=position,
            last_epoch=-1 if has_failed else (position - 1) % 5 - 1,
        )
        for producer_id, first_offset, last_offset, _ in transactions:
            answer.aborted_transactions.add(
                producer_id=producer_id, first_offset=first_offset, last_offset=last_offset
            )
        if has_failed:
            metadata = {
                "topic": topic_partition.topic,
                "partition": str(topic_partition.partition),
                "offset": str(position),
            }
            info = ErrorInfo(reason="OFFSET_OUT_OF_RANGE", domain="stratalog", metadata=metadata)
            answer.error.code, answer.error.message = OUT_OF_RANGE, "gone"
            answer.error.details.add().Pack(info)
        else:
            answer.log_start_offset, answer.local_log_start_offset = marks[:2]
            answer.high_watermark, answer.last_stable_offset = marks[2:]
            answer.topic_id, answer.leader_epoch = "an-id", 7
    assert log_pb2.FetchResponse.FromString(encoded(cursors)) == expected
    assert all(cursor.size_bytes == 0 and not cursor.chunks for cursor in cursors)
    assert not any(cursor.aborted_transactions for cursor in cursors)
    assert all(cursor.start == cursor.position for cursor in cursors)


@given(size=st.sampled_from([127, 128, 16_383, 16_384, 2_097_151, 2_097_152]))
def test_sizes_at_the_edges_of_their_encoding(size: int) -> None:
    cursor = FetchCursor(TopicPartition("t", 0), FixedPartition(Watermarks(0, 0, 1, 1)), 0, 1)
    cursor.chunks = [bytes(size)]
    cursor.size_bytes, cursor.position = size, 1
    [answer] = log_pb2.FetchResponse.FromString(encoded([cursor])).partitions
    assert len(answer.batches) == size


def cursor_over(partition: FixedPartition, chunk: bytes, *, start: int = 0, position: int = 3) -> FetchCursor:
    cursor = FetchCursor(TopicPartition("t", 0), partition, start, 1 << 20)
    cursor.chunks.append(chunk)
    cursor.size_bytes, cursor.position = len(chunk), position
    return cursor


async def test_readers_of_one_turn_share_an_answer() -> None:
    shared = FetchEncoder(STATUSES, asyncio.get_running_loop())
    partition, chunk = FixedPartition(Watermarks(0, 0, 3, 3)), bytes(100)
    cursors = [cursor_over(partition, chunk) for _ in range(100)]
    answers = [shared.encode([cursor]) for cursor in cursors]
    assert len(set(map(id, answers))) == 1
    assert partition.look_count == 1, "one was encoded"
    assert all(cursor.start == 3 and not cursor.has_news and not cursor.size_bytes for cursor in cursors)
    await asyncio.sleep(0)
    assert shared.encode([cursor_over(partition, chunk)]) == answers[0]
    assert partition.look_count == 2, "a turn later there may be other watermarks"


async def test_readers_of_one_turn_share_no_answer_that_would_differ() -> None:
    shared = FetchEncoder(STATUSES, asyncio.get_running_loop())
    marks = Watermarks(0, 0, 3, 3)
    partition, chunk = FixedPartition(marks), bytes(100)
    aborted, failed = cursor_over(partition, chunk), cursor_over(partition, b"")
    aborted.aborted_transactions = {AbortedTransaction(1, 0, 2, 0): None}
    failed.chunks, failed.error = [], OffsetOutOfRangeError("gone", offset=0)
    epoch = cursor_over(partition, chunk)
    epoch.tiered_epoch = 9
    different = [
        [cursor_over(partition, chunk)],
        [cursor_over(FixedPartition(marks), chunk)],
        [cursor_over(partition, bytes(101))],
        [cursor_over(partition, chunk, start=1)],
        [cursor_over(partition, chunk, position=2)],
        [aborted],
        [epoch],
        [failed],
        [],
        [cursor_over(partition, chunk), cursor_over(partition, chunk)],
    ]
    answers = [shared.encode(cursors) for cursors in different]
    assert len(set(map(id, answers))) == len(answers)
    assert len(log_pb2.FetchResponse.FromString(answers[-1]).partitions) == 2
