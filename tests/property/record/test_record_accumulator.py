"""The record accumulators: the bytes of the encoder, Kafka's partitions, and the same in both kinds."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import InvalidRequestError
from stratalog.record.header import HEADER_SIZE
from stratalog.record.native import pure_kernels, pure_record_accumulator
from stratalog.record.native.pure_key_kernels import murmur2
from stratalog.record.record import Record
from stratalog.record.record_rows import BytesColumn, HeadersColumn, RecordRows
from tests.support.kernels import both_kinds, each_kind

PARTS = st.none() | st.binary(max_size=20) | st.text(max_size=9) | st.binary(min_size=60, max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=9), PARTS), max_size=3)
SENDS = st.lists(
    st.tuples(PARTS, PARTS, st.none() | st.integers(0, 2), st.integers(0, 2**63 - 1), HEADERS), max_size=40
)
Send = tuple[Any, Any, "int | None", int, Any]


def as_bytes(part: str | bytes | None) -> bytes | None:
    return part.encode() if isinstance(part, str) else part


def place_of(topic: str, partition: int) -> tuple[str, int]:
    """The receipt of a batch: these tests ask it for its place alone."""
    return topic, partition


class Sent:
    """An accumulator of one kind with one topic of three partitions, and what it was given."""

    def __init__(self, kernels: Any, batch_bytes: int) -> None:
        self.wakes = 0
        wake = self._wake

        class Accumulator(kernels.RecordAccumulator):  # type: ignore[misc]  # one of two kinds
            def wake(self) -> None:
                wake()

            def refuse_record(self) -> None:
                raise BufferError

        self.accumulator: Any = Accumulator(batch_bytes, 1 << 20, place_of, lambda: 5)
        self.accumulator.hold_topic("t", 3, 1)
        self.accumulator.open_topic("t")
        self.records: dict[tuple[object, int], Record] = {}

    def _wake(self) -> None:
        self.wakes += 1

    def send(self, key: Any, value: Any, partition: int | None, timestamp_ms: int, headers: Any) -> None:
        delivery = self.accumulator.send(
            "t", key, value, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )
        assert delivery.timestamp_ms == timestamp_ms
        if key is not None and partition is None:
            encoded = as_bytes(key)
            assert encoded is not None
            assert delivery.receipt == ("t", (murmur2(encoded) & 0x7FFFFFFF) % 3)
        if partition is not None:
            assert delivery.receipt == ("t", partition)

    def batches(self) -> list[tuple[object, ...]]:
        self.accumulator.close_all()
        opened, complete = self.accumulator.take_batches()
        assert sorted(map(id, opened)) == sorted(map(id, complete))
        assert self.accumulator.buffered_bytes == sum(batch.size_bytes for batch in complete)
        for batch in complete:
            self.accumulator.release(batch.size_bytes)
        assert self.accumulator.buffered_bytes == 0
        return [
            (
                batch.partition,
                batch.record_count,
                batch.base_timestamp,
                batch.max_timestamp,
                bytes(batch.take_section()),
            )
            for batch in complete
        ]

    def require_taken_once(self) -> None:
        """A batch whose section was taken keeps its size, and has no other section."""
        self.send(None, b"v" * 40, 0, 5, None)
        self.accumulator.close_all()
        _, [batch] = self.accumulator.take_batches()
        size_bytes = batch.size_bytes
        assert len(batch.take_section()) == size_bytes > 40
        assert (bytes(batch.take_section()), batch.size_bytes) == (b"", size_bytes)


@given(SENDS, st.integers(100, 700))
def test_batches_have_the_bytes_of_the_encoder_and_their_records_in_order(
    sends: list[Send], batch_bytes: int
) -> None:
    found: list[list[tuple[object, ...]]] = []
    for kernels in both_kinds(pure_record_accumulator):
        sent = Sent(kernels, batch_bytes)
        for send in sends:
            sent.send(*send)
        assert sent.wakes == (1 if sends else 0)
        found.append(sent.batches())
    for batches in found:
        assert batches == found[0]
    decoded: list[Record] = []
    for _, count, base_timestamp, max_timestamp, section in found[0]:
        assert isinstance(section, bytes)
        assert isinstance(count, int)
        assert isinstance(base_timestamp, int)
        records = pure_kernels.decode_records(section, count, 0, base_timestamp, None)
        assert pure_kernels.encode_records(records, base_timestamp) == section
        assert max_timestamp == max(record.timestamp_ms for record in records)
        assert count == 1 or HEADER_SIZE + len(section) <= batch_bytes
        decoded += [record._replace(offset=0) for record in records]
    expected = [
        Record(
            0,
            timestamp_ms,
            as_bytes(key),
            as_bytes(value),
            tuple((name, as_bytes(part)) for name, part in headers),
        )
        for key, value, _, timestamp_ms, headers in sends
    ]
    assert sorted(decoded, key=repr) == sorted(expected, key=repr)


def numbers(*values: int) -> bytes:
    return array("i", values).tobytes()


def column(parts: list[bytes | None]) -> BytesColumn:
    offsets = array("i", [0])
    for part in parts:
        offsets.append(offsets[-1] + len(part or b""))
    return BytesColumn(
        offsets.tobytes(), b"".join(part or b"" for part in parts), bytes(part is not None for part in parts)
    )


@given(SENDS, st.integers(100, 700))
def test_rows_become_the_same_batches_as_single_records(sends: list[Send], batch_bytes: int) -> None:
    headers = [header for send in sends for header in send[4]]
    starts = array("i", [0])
    for send in sends:
        starts.append(starts[-1] + len(send[4]))
    rows = RecordRows(
        row_count=len(sends),
        key=column([as_bytes(send[0]) for send in sends]),
        value=column([as_bytes(send[1]) for send in sends]),
        timestamp_ms=array("q", [send[3] for send in sends]).tobytes(),
        partition=numbers(*(-1 if send[2] is None else send[2] for send in sends)),
        headers=HeadersColumn(
            starts.tobytes(),
            column([name.encode() for name, _ in headers]),
            column([as_bytes(part) for _, part in headers]),
        ),
    )
    for kernels in both_kinds(pure_record_accumulator):
        one_by_one, at_once = Sent(kernels, batch_bytes), Sent(kernels, batch_bytes)
        for send in sends:
            one_by_one.send(*send)
        end, spans = at_once.accumulator.send_rows("t", rows, 0)
        assert end == len(sends)
        assert sum(span.end_index - span.first_index for span in spans) == len(sends)
        assert at_once.batches() == one_by_one.batches()


@pytest.mark.parametrize(
    ("misfit", "error"),
    [
        ({"key": 5}, TypeError),
        ({"value": 1.5}, TypeError),
        ({"key": "\udc80"}, UnicodeEncodeError),
        ({"headers": 5}, TypeError),
        ({"headers": [(None, b"x")]}, TypeError),
        ({"headers": [("name", 5)]}, TypeError),
        ({"headers": [("name",)]}, ValueError),
        ({"headers": [("\udc80", b"x")]}, UnicodeEncodeError),
        ({"timestamp_ms": 1.5}, InvalidRequestError),
        ({"timestamp_ms": 2**63}, InvalidRequestError),
        ({"timestamp_ms": -1}, InvalidRequestError),
        ({"partition": -1}, InvalidRequestError),
        ({"partition": 2**31}, InvalidRequestError),
        ({"partition": "0"}, TypeError),
    ],
)
@each_kind(pure_record_accumulator)
def test_what_can_be_no_record_changes_nothing(
    kernels: Any, misfit: dict[str, Any], error: type[Exception]
) -> None:
    sent = Sent(kernels, 500)
    for _ in range(2):
        with pytest.raises(error):
            sent.accumulator.send("t", **{"key": b"k", "value": b"v", **misfit})
        assert sent.accumulator.take_batches() == ([], [])
    sent.accumulator.send("t", bytearray(b"k"), memoryview(b"v"), headers={"n": None})
    batch: Any = sent.batches()[0]
    _, count, base_timestamp, _, section = batch
    assert pure_kernels.decode_records(section, count, 0, base_timestamp, None) == [
        Record(0, 5, b"k", b"v", (("n", None),))
    ]


CHANGES: list[Callable[[Any], Any]] = [
    lambda rows: rows._replace(row_count=3),
    lambda rows: rows._replace(key=rows.key._replace(data=b"")),
    lambda rows: rows._replace(key=rows.key._replace(offsets=numbers(0, 2, 1))),
    lambda rows: rows._replace(key=rows.key._replace(validity=b"")),
    lambda rows: rows._replace(timestamp_ms=array("q", [1])),
    lambda rows: rows._replace(partition=numbers(3, 3)),
    lambda rows: rows._replace(headers=rows.headers._replace(list_offsets=numbers(0, 2, 4))),
    lambda rows: rows._replace(
        headers=rows.headers._replace(name=BytesColumn(numbers(0, 1, 2), b"\xff\xff", None))
    ),
    lambda rows: rows._replace(
        headers=rows.headers._replace(name=BytesColumn(b"", b"", None), value=column([]))
    ),
]


@pytest.mark.parametrize("change", CHANGES)
@each_kind(pure_record_accumulator)
def test_columns_that_do_not_fit_are_refused(
    kernels: Any, change: Callable[[RecordRows], RecordRows]
) -> None:
    two = column([b"a", b"b"])
    rows = RecordRows(
        row_count=2,
        key=two,
        value=two,
        timestamp_ms=None,
        partition=None,
        headers=HeadersColumn(numbers(0, 1, 2), two, two),
    )
    sent = Sent(kernels, 500)
    assert sent.accumulator.send_rows("t", rows, 0)[0] == 2
    with pytest.raises(InvalidRequestError):
        sent.accumulator.send_rows("t", change(rows), 0)


@each_kind(pure_record_accumulator)
def test_a_full_buffer_refuses_records_until_room_is_made(kernels: Any) -> None:
    sent = Sent(kernels, 200_000)
    for _ in range(11):
        sent.accumulator.send("t", None, bytes(100_000))
    with pytest.raises(BufferError):
        sent.accumulator.send("t", None, b"x")
    rows = RecordRows(
        row_count=2,
        key=None,
        value=column([b"a", b"b"]),
        timestamp_ms=None,
        partition=None,
        headers=None,
    )
    assert sent.accumulator.send_rows("t", rows, 0) == (0, [])
    sent.accumulator.release(100_000)
    assert sent.accumulator.send_rows("t", rows, 0)[0] == 2


@each_kind(pure_record_accumulator)
def test_records_without_a_key_move_on_when_their_batch_is_complete(kernels: Any) -> None:
    sent = Sent(kernels, 300)
    partitions = [sent.accumulator.send("t", None, bytes(100)).receipt[1] for _ in range(7)]
    assert partitions == [1, 1, 2, 2, 0, 0, 1]
    opened, complete = sent.accumulator.take_batches()
    sent.accumulator.close_batch(opened[0])
    sent.accumulator.close_batch(opened[-1])
    assert [batch.partition for batch in complete] == [1, 2, 0]
    assert sent.accumulator.send("t", None, b"").receipt[1] == 2


@each_kind(pure_record_accumulator)
def test_partitions_may_be_added_and_taken_away(kernels: Any) -> None:
    sent = Sent(kernels, 300)
    sent.accumulator.send("t", partition=2)
    sent.accumulator.hold_topic("t", 2, 0)
    sent.accumulator.open_topic("t")
    assert sent.accumulator.partition_count("t") == 2
    assert len(sent.accumulator.take_batches()[1]) == 1
    with pytest.raises(NotImplementedError):
        sent.accumulator.send("t", partition=2)
    sent.accumulator.hold_topic("t", 5, 0)
    sent.accumulator.open_topic("t")
    delivery = sent.accumulator.send_encoded("t", "k", None, 4, 9, 0, None)
    assert (delivery.receipt, delivery.index, delivery.timestamp_ms) == (("t", 4), 0, 9)
    sent.accumulator.forget_topic("t")
    assert sent.accumulator.partition_count("t") == 0
    assert len(sent.accumulator.take_batches()[1]) == 1
    with pytest.raises(NotImplementedError):
        sent.accumulator.send("t")


@each_kind(pure_record_accumulator)
def test_a_handle_asks_the_receipt_of_its_source(kernels: Any) -> None:
    class Answer:
        receipt: Any

        def is_settled(self, index: int) -> bool:
            return index == 7

        async def wait(self, delivery: Any) -> object:
            return "waited", delivery.index

        def result(self, delivery: Any, timeout_s: float | None) -> object:
            return delivery.index, timeout_s

    source = Answer()
    source.receipt = source
    early, late = kernels.Delivery(object(), 0, 5), kernels.Delivery(source, 7, 6)
    early.follow(late)
    for delivery, timestamp_ms in ((early, 5), (late, 6)):
        assert (delivery.index, delivery.is_done, delivery.timestamp_ms) == (7, True, timestamp_ms)
        assert delivery.result(3.0) == (7, 3.0)
        with pytest.raises(StopIteration) as stopped:
            next(delivery.__await__())
        assert stopped.value.value == ("waited", 7)


@each_kind(pure_record_accumulator)
def test_a_held_topic_takes_only_the_records_that_waited(kernels: Any) -> None:
    sent = Sent(kernels, 500)
    for topic in ("t", "new"):
        sent.accumulator.hold_topic(topic, 3, 0)
        with pytest.raises(NotImplementedError):
            sent.accumulator.send(topic, partition=0)
        assert sent.accumulator.send_encoded(topic, "k", None, 0, 9, 0, None).index == 0
        sent.accumulator.open_topic(topic)
        assert sent.accumulator.send(topic, partition=0).index == 1


@each_kind(pure_record_accumulator)
def test_an_accumulator_that_has_ended_takes_no_new_record(kernels: Any) -> None:
    sent = Sent(kernels, 500)
    sent.accumulator.end()
    with pytest.raises(BufferError):
        sent.accumulator.send("t", partition=0)
    assert sent.accumulator.take_batches() == ([], [])
    # This one was sent before.
    assert sent.accumulator.send_encoded("t", "k", None, 0, 9, 0, None).index == 0


@each_kind(pure_record_accumulator)
def test_a_record_above_the_limit_of_its_topic_changes_nothing(kernels: Any) -> None:
    sent = Sent(kernels, 500)
    sent.accumulator.hold_topic("t", 3, 0, max_batch_bytes=200)
    sent.accumulator.open_topic("t")
    with pytest.raises(NotImplementedError):
        sent.accumulator.send("t", partition=0, value=bytes(200))
    assert sent.accumulator.take_batches() == ([], [])
    for _ in range(3):
        sent.accumulator.send("t", partition=0, value=bytes(60))
    assert [batch[1] for batch in sent.batches()] == [2, 1]


@each_kind(pure_record_accumulator)
def test_the_section_of_a_batch_can_be_taken_once(kernels: Any) -> None:
    Sent(kernels, 1000).require_taken_once()
