"""Plans of queries: which bytes of which objects a query reads, and that the rows are the wanted ones."""

from __future__ import annotations

import datetime as dt
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import (
    ObjectNotFoundError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from stratalog.pipeline.source.read_options import parse_options
from stratalog.pipeline.source.scan_plan import NO_BOUNDS, RowBounds
from stratalog.pipeline.source.slice_scan import adjacent_spans, scan
from stratalog.pipeline.source.store_view import StoreReader
from stratalog.remote.metadata.head.page_loader import run_in_order
from tests.support.spark.plain_store import START_MS, STEP_MS, PlainStore
from tests.support.spark.topic_scan import topic_spans, topic_tasks

if TYPE_CHECKING:
    from stratalog.pipeline.source.slice_span import SliceSpan


def rows_of(
    found: PlainStore, bounds: RowBounds = NO_BOUNDS, /, **options: str
) -> list[tuple[str, int, int]]:
    """Topic, partition and offset of each row, sorted; proves that each has its own value."""
    spans = topic_spans(found.store, bounds, **options)
    names = ("topic", "partition", "offset", "value", "timestamp")
    rows = [row for batch in scan(found.store, spans, names) for row in batch.to_pylist()]
    for row in rows:
        expected = found.record(row["topic"], row["partition"], row["offset"])
        assert row["value"].rstrip(b".") == expected.value
        assert row["timestamp"] == dt.datetime.fromtimestamp(expected.timestamp_ms / 1000, dt.UTC)
    return sorted((row["topic"], row["partition"], row["offset"]) for row in rows)


def places(topic: str, partition: int, *offsets: range) -> list[tuple[str, int, int]]:
    return [(topic, partition, offset) for part in offsets for offset in part]


@pytest.fixture(scope="module")
def found() -> PlainStore:
    """Topics a (2 partitions) and b (1): three objects; offsets 0 to 89 of a-0, 0 to 59 of a-1, 0 to 29 of
    b-0."""
    built = PlainStore()
    built.create("a", 2)
    built.create("b")
    built.upload({("a", 0): 30, ("a", 1): 30, ("b", 0): 30})
    built.upload({("a", 0): 30, ("a", 1): 30})
    built.upload({("a", 0): 30})
    return built


@pytest.fixture(scope="module")
def large() -> PlainStore:
    """One partition in three slices of about a MiB, in intervals of 64 KiB."""
    built = PlainStore()
    built.create("t")
    for _ in range(3):
        built.upload({("t", 0): 1000}, value_bytes=1000)
    return built


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"topic": "b"}, places("b", 0, range(30))),
        (
            {"topic": "a,b", "partitions": "0"},
            places("a", 0, range(90)) + places("b", 0, range(30)),
        ),
        ({"topicPattern": "a|c.*", "partitions": "1"}, places("a", 1, range(60))),
        (
            {"topic": "a", "startingOffsets": '{"a": {"0": 25, "1": -2}}', "endingOffsets": "latest"},
            places("a", 0, range(25, 90)) + places("a", 1, range(60)),
        ),
        (
            {"topic": "a", "endingOffsets": '{"a": {"0": 5, "1": -1}}'},
            places("a", 0, range(5)) + places("a", 1, range(60)),
        ),
        (
            {
                "topic": "a",
                "startingTimestamp": str(START_MS + 35 * STEP_MS - 1),
                "endingTimestamp": str(START_MS + 70 * STEP_MS),
            },
            places("a", 0, range(35, 70)) + places("a", 1, range(35, 60)),
        ),
        ({"topic": "a", "startingTimestamp": str(START_MS + 90 * STEP_MS)}, []),
    ],
)
def test_options_choose_the_rows(
    found: PlainStore, options: dict[str, str], expected: list[tuple[str, int, int]]
) -> None:
    assert rows_of(found, **options) == expected
    assert rows_of(found, **options, maxPartitionBytes="1") == expected


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"topic": "a,c"}, UnknownTopicOrPartitionError),
        ({"topicPattern": "c.*"}, UnknownTopicOrPartitionError),
        ({"topic": "a", "partitions": "2"}, UnknownTopicOrPartitionError),
        ({"topic": "a", "startingOffsets": '{"a": {"0": 1}}'}, UnknownTopicOrPartitionError),
        ({"topic": "b", "startingOffsets": '{"b": {"0": 1, "1": 1}}'}, UnknownTopicOrPartitionError),
        ({"topic": "b", "startingOffsets": '{"b": {"0": 31}}'}, OffsetOutOfRangeError),
        ({"topic": "b", "endingOffsets": '{"b": {"0": 31}}'}, OffsetOutOfRangeError),
    ],
)
def test_places_that_are_not_there_are_refused(
    found: PlainStore, options: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        topic_spans(found.store, **options)


def test_offsets_below_log_start_fail_unless_the_query_takes_that() -> None:
    built = PlainStore()
    built.create("t")
    built.upload({("t", 0): 20})
    built.tiered.advance_log_start(built.tips["t"][0], 7)
    options = {"topic": "t", "startingOffsets": '{"t": {"0": 5}}'}
    with pytest.raises(OffsetOutOfRangeError) as error:
        topic_spans(built.store, **options)
    assert error.value.fields["log_start_offset"] == 7
    assert rows_of(built, **options, failOnDataLoss="false") == places("t", 0, range(7, 20))
    assert rows_of(built, topic="t") == places("t", 0, range(7, 20))


@given(st.integers(0, 3000), st.integers(0, 3000), st.sampled_from([1, 100_000, 500_000, 1 << 30]))
def test_any_range_of_large_slices_has_its_rows_once(
    large: PlainStore, first: int, end: int, max_bytes: int
) -> None:
    options = {
        "topic": "t",
        "startingOffsets": f'{{"t": {{"0": {first}}}}}',
        "endingOffsets": f'{{"t": {{"0": {end}}}}}',
        "maxPartitionBytes": str(max_bytes),
    }
    tasks = topic_tasks(large.store, **options)
    spans = [span for task in tasks for span in task]
    rows = [row for batch in scan(large.store, spans, ("offset",)) for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(first, end))
    assert all(span.first_offset < span.end_offset for span in spans), "no interval without wanted offsets"
    for task in tasks:
        assert len(task) == 1 or sum(span.size_bytes for span in task) <= max_bytes


def read_bytes(built: PlainStore, spans: list[SliceSpan]) -> tuple[int, int]:
    """The GETs of a scan, and their bytes."""
    built.store.reset()
    list(scan(built.store, spans, ("offset",)))
    total = built.store.total("GET")
    return total.requests, total.size_bytes


def test_a_large_slice_is_divided_and_its_parts_read_each_byte_once(large: PlainStore) -> None:
    whole = topic_spans(large.store, topic="t")
    tasks = topic_tasks(large.store, topic="t", maxPartitionBytes="300000")
    assert len(tasks) >= 3 * 3
    parts = [span for task in tasks for span in task]
    assert sum(span.size_bytes for span in parts) == sum(span.size_bytes for span in whole)
    assert max(span.size_bytes for span in parts) <= 300_000


def test_a_few_offsets_of_a_large_slice_cost_an_interval(large: PlainStore) -> None:
    spans = topic_spans(
        large.store,
        topic="t",
        startingOffsets='{"t": {"0": 1500}}',
        endingOffsets='{"t": {"0": 1510}}',
    )
    assert read_bytes(large, spans)[1] < 3 * (64 << 10)


def test_filters_leave_out_slices_and_intervals(large: PlainStore) -> None:
    first_ms = START_MS + 2990 * STEP_MS
    spans = topic_spans(large.store, RowBounds(first_ms=first_ms), topic="t")
    rows = [row for batch in scan(large.store, spans, ("offset",)) for row in batch.to_pylist()]
    assert {2990, 2999} <= {row["offset"] for row in rows}
    assert sum(span.size_bytes for span in spans) < 3 * (64 << 10)
    assert topic_spans(large.store, RowBounds(last_ms=START_MS - 1), topic="t") == []
    assert topic_spans(large.store, RowBounds(partitions=frozenset({1})), topic="t") == []
    assert topic_spans(large.store, RowBounds(topics=frozenset({"x"})), topic="t") == []
    by_offset = topic_spans(large.store, RowBounds(first_offset=10, end_offset=12), topic="t")
    assert [(span.first_offset, span.end_offset) for span in by_offset] == [(10, 12)]


def test_one_hour_of_many_slices_costs_few_bytes() -> None:
    built = PlainStore()
    built.create("t")
    for _ in range(300):
        built.upload({("t", 0): 10}, value_bytes=4000)
    built.tiered.metadata.fold()
    hour_ms = START_MS + 1500 * STEP_MS
    built.store.reset()
    spans = topic_spans(
        built.store, topic="t", startingTimestamp=str(hour_ms), endingTimestamp=str(hour_ms + 20 * STEP_MS)
    )
    rows = [row for batch in scan(built.store, spans, ("offset",)) for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(1500, 1520))
    assert built.store.total("GET").size_bytes < 0.02 * 300 * 40_000, "metadata included"


def test_slices_side_by_side_come_with_one_get() -> None:
    built = PlainStore()
    built.create("t", 40)
    built.upload({("t", number): 10 for number in range(40)})
    spans = topic_spans(built.store, topic="t")
    assert len(spans) == 40
    assert read_bytes(built, spans)[0] == 1
    batches = list(scan(built.store, spans, ("partition", "offset")))
    assert len(batches) == 1, "rows of small slices share a record batch"
    some = topic_spans(built.store, topic="t", partitions="3,4,20")
    assert read_bytes(built, some)[0] == 1, "a little between them is read and dropped"
    assert rows_of(built, topic="t", partitions="3,4,20") == [
        place for number in (3, 4, 20) for place in places("t", number, range(10))
    ]
    far = [*some, *topic_spans(built.store, topic="t", partitions="1")]
    assert [len(run) for run in adjacent_spans(far)] == [3, 1], "a stream only moves forward"


def test_a_snapshot_is_the_state_after_its_commit() -> None:
    built = PlainStore()
    built.create("t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.0")
    built.upload({("t", 0): 20})
    built.upload({("t", 0): 20})
    seq = built.tiered.metadata.state().seq
    built.upload({("t", 0): 20})
    assert rows_of(built, topic="t", snapshot=str(seq)) == places("t", 0, range(40))
    assert built.tiered.compactor().run()
    assert len(rows_of(built, topic="t")) < 40
    assert rows_of(built, topic="t", snapshot=f"0:{seq}") == places("t", 0, range(40))
    gone = topic_spans(built.store, topic="t", snapshot=str(seq))[0].object_key
    built.store.delete_many([gone])
    with pytest.raises(ObjectNotFoundError) as error:
        rows_of(built, topic="t", snapshot=str(seq))
    assert error.value.fields["snapshot"] == f"0:{seq}"


def test_a_lease_holds_the_objects_of_its_moment() -> None:
    built = PlainStore()
    built.create("t")
    built.upload({("t", 0): 20})
    options = parse_options({"store": "memory://", "topic": "t", "lease": "60"}, is_stream=False)
    reader = StoreReader(built.store, run_in_order)
    reader.lease(options, lambda now_ms: now_ms + 60_000)
    (pin,) = built.tiered.metadata.refresh().pins
    assert pin.holder == reader.is_pinned_by
    assert pin.until_ms == built.tiered.metadata.store_date_ms + 60_000
    built.upload({("t", 0): 20})
    (view,) = reader.view(options)
    assert view.tiered.tiered_end_offset == 20


@pytest.mark.parametrize("seed", range(2))
def test_random_times_agree_with_a_model(found: PlainStore, seed: int) -> None:
    chosen = random.Random(seed)
    for _ in range(10):
        first, end = sorted(chosen.randrange(91) for _ in range(2))
        times = {
            "startingTimestamp": str(START_MS + first * STEP_MS - chosen.randrange(STEP_MS)),
            "endingTimestamp": str(START_MS + end * STEP_MS - chosen.randrange(STEP_MS)),
        }
        assert rows_of(found, topic="a", partitions="0", **times) == places("a", 0, range(first, end))
