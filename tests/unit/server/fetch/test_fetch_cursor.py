"""Where a fetch reads next: in which tier, how much, and what a failure becomes."""

from __future__ import annotations

import pytest

from stratalog.base.errors import (
    LogStoreError,
    NotOwnerError,
    OffsetOutOfRangeError,
    StoreUnavailableError,
)
from stratalog.base.types import TopicPartition
from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.server.fetch.fetch_cursor import FetchCursor, NextRead, Watermarks
from stratalog.server.fetch.partition_signal import PartitionSignal
from stratalog.server.log_identity import LogIdentity

RECORD_BYTES = 10
NONE, LOCAL, TIERED = NextRead


class FakePartition:
    """Offsets [start, end), ten bytes each; tiered below `tiered_end`, local from `local_start` on."""

    def __init__(self, *, start: int = 0, local_start: int = 0, tiered_end: int = 0, end: int = 100) -> None:
        self.start, self.local_start, self.tiered_end, self.end = start, local_start, tiered_end, end
        self.last_stable_offset = end
        self.aborted: tuple[AbortedTransaction, ...] = ()
        self.reads: list[str] = []
        self.refusal: LogStoreError | None = None
        self.failure: LogStoreError | None = None
        self.deleted_before_the_read = 0
        self.tiered_epoch = 4
        self.epoch_failure: Exception | None = None

    @property
    def log_end_offset(self) -> int:
        return self.end

    @property
    def log_dir(self) -> str:
        raise AssertionError("nothing reads a log")

    @property
    def signal(self) -> PartitionSignal:
        raise AssertionError

    @property
    def identity(self) -> LogIdentity:
        raise AssertionError

    def epoch_at(self, offset: int) -> int:
        if self.epoch_failure is not None:
            raise self.epoch_failure
        return self.tiered_epoch

    def local_epoch_at(self, offset: int) -> int:
        return 9 if offset >= self.local_start else -1

    def ensure_served(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def watermarks(self) -> Watermarks:
        return Watermarks(self.start, self.local_start, self.end, self.last_stable_offset)

    def read_recent(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData | None:
        return None

    def read_cached(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData | None:
        return None

    def read_local(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData:
        self.reads.append("local")
        if self.deleted_before_the_read:
            self.local_start, self.deleted_before_the_read = self.deleted_before_the_read, 0
        if self.failure is not None:
            raise self.failure
        if offset < self.local_start:
            raise OffsetOutOfRangeError("below the local log", offset=offset)
        end = self.watermarks().end_offset(isolation)
        return self._data(offset, max_bytes, end, isolation, min_one_message)

    def leave_tiered(self, offset: int) -> None:
        raise AssertionError

    def read_tiered(self, offset: int, max_bytes: int, isolation: Isolation) -> FetchData:
        self.reads.append("tiered")
        if self.failure is not None:
            raise self.failure
        return self._data(offset, max_bytes, self.tiered_end, isolation, True)

    def _data(self, offset: int, max_bytes: int, end: int, isolation: Isolation, min_one: bool) -> FetchData:
        count = min(max_bytes // RECORD_BYTES or int(min_one), end - offset)
        aborted = tuple(
            one
            for one in (self.aborted if isolation is Isolation.TXN_COMMITTED else ())
            if one.first_offset < offset + count and one.last_offset >= offset
        )
        return FetchData((bytes(count * RECORD_BYTES),), offset + count, aborted)


def cursor_over(
    partition: FakePartition | LogStoreError,
    offset: int = 0,
    max_bytes: int = 1000,
    isolation: Isolation = Isolation.HIGH_WATERMARK,
) -> FetchCursor:
    return FetchCursor(TopicPartition("t", 0), partition, offset, max_bytes, isolation)


@pytest.mark.parametrize(
    ("offset", "expected"), [(5, TIERED), (49, TIERED), (50, LOCAL), (99, LOCAL), (100, NONE)]
)
def test_the_tier_follows_from_the_offset(offset: int, expected: NextRead) -> None:
    assert cursor_over(FakePartition(local_start=50, tiered_end=60), offset).locate() is expected


@pytest.mark.parametrize("offset", [9, 101])
def test_an_offset_outside_is_an_error_with_the_range(offset: int) -> None:
    cursor = cursor_over(FakePartition(start=10), offset)
    assert cursor.locate() is NONE
    assert isinstance(cursor.error, OffsetOutOfRangeError)
    assert cursor.error.fields == {"offset": offset, "log_start_offset": 10, "log_end_offset": 100}
    assert cursor.has_news


def test_segments_that_are_deleted_before_the_read_are_read_from_the_objects() -> None:
    partition = FakePartition(tiered_end=60)
    partition.deleted_before_the_read = 60
    cursor = cursor_over(partition, 20)
    assert cursor.read(1000, is_first=True) == 400
    assert partition.reads == ["local", "tiered"]
    assert (cursor.position, cursor.error) == (60, None)


def test_records_that_are_deleted_before_the_read_are_out_of_range() -> None:
    partition = FakePartition()
    partition.failure = OffsetOutOfRangeError("gone meanwhile", offset=20)
    cursor = cursor_over(partition, 20)
    assert cursor.read(1000, is_first=True) == 0
    assert cursor.error is partition.failure


def test_reading_moves_on_over_both_tiers_to_the_end() -> None:
    partition = FakePartition(local_start=50, tiered_end=50)
    cursor = cursor_over(partition, 45)
    while cursor.locate() is not NONE:
        cursor.read(1000 - cursor.size_bytes, is_first=False)
    assert (cursor.position, cursor.size_bytes, partition.reads) == (100, 550, ["tiered", "local"])
    chunks, size_bytes, _ = cursor.take()
    assert (sum(map(len, chunks)), size_bytes, cursor.size_bytes, cursor.start) == (550, 550, 0, 100)


def test_a_budget_that_is_used_up_is_noted_and_not_an_end() -> None:
    cursor = cursor_over(FakePartition())
    assert cursor.read(0, is_first=False) == 0
    assert cursor.is_full
    assert cursor.locate() is NONE
    assert cursor.read(5, is_first=False) == 0, "nothing is read until there is room again"
    cursor.is_full = False
    assert cursor.read(5, is_first=False) == 0
    assert cursor.is_full, "less than a batch fits"
    cursor.is_full = False
    assert cursor.read(5, is_first=True) == RECORD_BYTES


def test_a_failure_behind_data_waits_until_the_data_is_sent() -> None:
    partition = FakePartition(tiered_end=100, local_start=100)
    cursor = cursor_over(partition)
    assert cursor.read(50, is_first=True) == 50
    partition.failure = StoreUnavailableError("away")
    assert cursor.read(50, is_first=False) == 0
    assert cursor.error is None
    cursor.take()
    cursor.is_full = False
    cursor.read(50, is_first=True)
    assert cursor.error is partition.failure


def test_a_partition_that_is_not_served_any_more_is_an_error_at_the_next_look() -> None:
    partition = FakePartition()
    cursor = cursor_over(partition)
    assert cursor.locate() is LOCAL
    partition.refusal = NotOwnerError("replaced")
    assert cursor.locate() is NONE
    assert cursor.error is partition.refusal


def test_a_partition_that_was_never_found_has_its_error_from_the_start() -> None:
    error = OffsetOutOfRangeError("x")
    cursor = cursor_over(error)
    assert (cursor.error, cursor.locate(), cursor.has_news) == (error, NONE, True)


def test_a_reader_of_committed_records_stops_at_the_last_stable_offset_of_the_moment() -> None:
    partition = FakePartition()
    partition.last_stable_offset = 30
    cursor = cursor_over(partition, 20, isolation=Isolation.TXN_COMMITTED)
    assert cursor.read(1000, is_first=True) == 100
    assert (cursor.position, cursor.locate(), cursor.is_full) == (30, NONE, False)
    partition.last_stable_offset = 40
    assert cursor.locate() is LOCAL
    assert cursor_over(partition, 60, isolation=Isolation.TXN_COMMITTED).error is None, "it may wait there"
    assert cursor_over(partition, 60).locate() is LOCAL


def test_aborted_transactions_of_both_tiers_are_sent_once_an_answer_and_only_if_asked() -> None:
    first, second, third = (
        AbortedTransaction(1, 5, 20, 20),
        AbortedTransaction(2, 30, 60, 60),
        AbortedTransaction(3, 52, 75, 75),
    )
    partition = FakePartition(local_start=50, tiered_end=50)
    partition.aborted = (first, second, third)
    cursor = cursor_over(partition, isolation=Isolation.TXN_COMMITTED)
    uncommitted = cursor_over(partition)
    for reader in (cursor, uncommitted):
        while reader.position < 54:
            reader.read(200, is_first=True)
    assert uncommitted.take().aborted_transactions == ()
    assert cursor.take().aborted_transactions == (first, second, third)
    assert cursor.read(10, is_first=True) == RECORD_BYTES
    assert cursor.take().aborted_transactions == (third,)


def test_a_cursor_with_an_end_reads_no_further_than_it_must() -> None:
    partition = FakePartition()
    cursor = cursor_over(partition)
    cursor.begin(10, end_offset=25)
    assert (cursor.locate(), cursor.is_done) == (LOCAL, False)
    cursor.read(100, is_first=False)
    assert (cursor.position, cursor.is_done) == (20, False)
    cursor.take()
    cursor.read(100, is_first=False)
    # Behind the end, because batches are read whole.
    assert (cursor.position, cursor.is_done, cursor.locate()) == (30, True, NONE)
    assert cursor.read(100, is_first=True) == 0


def test_a_cursor_that_is_done_at_once_has_its_start_as_news() -> None:
    cursor = cursor_over(FakePartition())
    cursor.begin(10, end_offset=10)
    assert (cursor.has_news, cursor.is_done, cursor.locate()) == (True, True, NONE)
    assert cursor.take().chunks == []
    assert not cursor.has_news
    cursor.begin(101, end_offset=10)
    assert cursor.locate() is NONE
    assert isinstance(cursor.error, OffsetOutOfRangeError)


def test_a_start_that_is_news_does_not_hide_a_failure() -> None:
    partition = FakePartition()
    cursor = cursor_over(partition)
    cursor.begin(0)
    partition.failure = StoreUnavailableError("away")
    cursor.read(100, is_first=True)
    assert cursor.error is partition.failure


def test_only_reads_ask_the_object_store_for_an_epoch() -> None:
    """An answer is encoded on the event loop, which must not wait for the store."""
    partition = FakePartition(local_start=50, tiered_end=60)
    cursor = cursor_over(partition, 40, max_bytes=RECORD_BYTES)
    partition.epoch_failure = AssertionError("on the event loop")
    assert cursor.last_epoch == -1
    partition.epoch_failure = None
    cursor.read(RECORD_BYTES, is_first=True)
    partition.epoch_failure = AssertionError("on the event loop")
    assert (cursor.position, cursor.last_epoch) == (41, 4)
    # The local log knows the epoch from its first record on.
    local = cursor_over(partition, 50)
    local.read(RECORD_BYTES, is_first=True)
    assert (local.position, local.last_epoch) == (51, 9)


def test_a_read_whose_epoch_cannot_be_read_is_answered_without_one() -> None:
    partition = FakePartition(local_start=50, tiered_end=60)
    partition.epoch_failure = StoreUnavailableError("the store is away")
    cursor = cursor_over(partition, 40)
    assert cursor.read(1000, is_first=True) == 200
    assert (cursor.position, cursor.last_epoch, cursor.error) == (60, 9, None)
    cursor = cursor_over(partition, 40)
    assert cursor.read(RECORD_BYTES, is_first=True) == RECORD_BYTES
    assert (cursor.position, cursor.last_epoch, cursor.error) == (41, -1, None)
