"""The reader of a stream as Spark calls it, without Spark's JVM: offsets, limits, restarts and losses."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from stratalog.base.errors import (
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    UnsupportedOperationError,
)
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.objectstore.local import LocalObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.source.read_options import parse_options
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.spark.plain_store import START_MS, PlainStore

pytest.importorskip("pyspark")
if TYPE_CHECKING:
    from stratalog.pipeline.source.stream_reader import TopicStreamReader

ALL = {"startingOffsets": "earliest"}


@pytest.fixture
def found(tmp_path: Path) -> PlainStore:
    """A store that another process could open."""
    store = LocalObjectStore(
        PosixFileSystem(), ManualClock(START_MS), SequentialIds(1), str(tmp_path / "store")
    )
    return PlainStore(store)


class Stream:
    """A stream as Spark runs it: a batch at a time, with offsets that pass through JSON. Not thread-safe."""

    def __init__(self, found: PlainStore, start: dict[str, Any] | None = None, /, **options: str) -> None:
        from stratalog.pipeline.source.stream_reader import TopicStreamReader

        parsed = parse_options({"store": found.store.url, "idlePollMs": "0", **options}, is_stream=True)
        self.reader: TopicStreamReader = TopicStreamReader(parsed, ("topic", "partition", "offset"))
        self.offsets = start or through_json(self.reader.initialOffset())

    def next_batch(self) -> list[tuple[str, int, int]]:
        """The rows of the next batch; none if there is nothing new."""
        end = through_json(self.reader.latestOffset(self.offsets, self.reader.getDefaultReadLimit()))
        rows = self.rows(self.offsets, end)
        self.offsets = end
        return rows

    def rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int, int]]:
        """The rows of a batch, read by an instance that has travelled to an executor."""
        tasks = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))
        executor: TopicStreamReader = pickle.loads(pickle.dumps(self.reader))
        rows = [row for task in tasks for batch in executor.read(task) for row in batch.to_pylist()]
        return sorted((row["topic"], row["partition"], row["offset"]) for row in rows)


class OlderStream(Stream):
    """A stream as Spark before 4.2 runs it, which asks for an end without a start. Not thread-safe."""

    def __init__(self, found: PlainStore, start: dict[str, Any] | None = None, /, **options: str) -> None:
        from stratalog.pipeline.source.stream_reader import UnlimitedStreamReader

        parsed = parse_options({"store": found.store.url, "idlePollMs": "0", **options}, is_stream=True)
        self.older = UnlimitedStreamReader(parsed, ("topic", "partition", "offset"))
        self.reader = self.older
        self.offsets = start or through_json(self.older.initialOffset())
        if start is not None:
            # Behind the last batch of a checkpoint.
            assert self.older.partitions(start, start) == []

    def next_batch(self) -> list[tuple[str, int, int]]:
        end = through_json(self.older.latestOffset())
        rows = self.rows(self.offsets, end)
        self.offsets = end
        return rows


def through_json(offsets: dict[str, Any]) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(json.dumps(offsets))
    return parsed


def places(topic: str, partition: int, offsets: range) -> list[tuple[str, int, int]]:
    return [(topic, partition, offset) for offset in offsets]


def test_batches_have_each_offset_once_as_it_is_tiered(found: PlainStore) -> None:
    found.create("t", 2)
    found.upload({("t", 0): 10})
    stream = Stream(found, topic="t", **ALL)
    assert stream.next_batch() == places("t", 0, range(10))
    assert stream.next_batch() == []
    found.upload({("t", 0): 5, ("t", 1): 5})
    assert stream.next_batch() == places("t", 0, range(10, 15)) + places("t", 1, range(5))


def test_a_stream_begins_at_the_end_unless_it_says_otherwise(found: PlainStore) -> None:
    found.create("t")
    found.upload({("t", 0): 10})
    stream = Stream(found, topic="t")
    assert stream.next_batch() == []
    found.upload({("t", 0): 3})
    assert stream.next_batch() == places("t", 0, range(10, 13))
    at = Stream(found, topic="t", startingTimestamp=str(START_MS + 7_000))
    assert at.next_batch() == places("t", 0, range(7, 13))


@pytest.mark.parametrize("limits", [{"maxOffsetsPerTrigger": "12"}, {"maxBytesPerTrigger": "700"}])
def test_limits_bound_a_batch_and_starve_no_partition(found: PlainStore, limits: dict[str, str]) -> None:
    found.create("t", 3)
    for _ in range(4):
        found.upload({("t", 0): 40, ("t", 1): 20})
    found.upload({("t", 2): 1})
    stream = Stream(found, topic="t", **ALL, **limits)
    first = stream.next_batch()
    assert {partition for _, partition, _ in first} == {0, 1, 2}
    rows = first
    while batch := stream.next_batch():
        assert len(batch) <= 40
        rows += batch
    assert sorted(rows) == [
        *places("t", 0, range(160)),
        *places("t", 1, range(80)),
        *places("t", 2, range(1)),
    ]


def test_offsets_hold_across_compaction_and_processes(found: PlainStore) -> None:
    """A batch that is replayed after compaction reads the same offsets from other objects."""
    found.create("t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.0")
    for _ in range(3):
        found.upload({("t", 0): 20})
    first = Stream(found, topic="t", **ALL, maxOffsetsPerTrigger="25")
    start = first.offsets
    assert first.next_batch() == places("t", 0, range(25))
    end = first.offsets
    assert found.tiered.compactor().run()
    kept = [record.offset for record in found.tiered.records(found.tips["t"][0])]
    replayed = Stream(found, start, topic="t", **ALL).rows(start, end)
    assert replayed == [("t", 0, offset) for offset in kept if offset < 25]
    rest = Stream(found, end, topic="t", **ALL)
    assert rest.next_batch() == [("t", 0, offset) for offset in kept if offset >= 25]


def test_available_now_ends_where_the_run_began(found: PlainStore) -> None:
    found.create("t")
    found.upload({("t", 0): 20})
    stream = Stream(found, topic="t", **ALL, maxOffsetsPerTrigger="15")
    stream.reader.prepareForTriggerAvailableNow()
    found.upload({("t", 0): 20})
    assert stream.next_batch() == places("t", 0, range(15))
    assert stream.next_batch() == places("t", 0, range(15, 20))
    before = stream.offsets
    assert stream.next_batch() == []
    assert stream.offsets == before
    reported = stream.reader.reportLatestOffset()
    assert reported is not None
    assert reported["topics"]["t"]["offsets"] == {"0": 40}, "the backlog shows in the progress"


def test_new_topics_of_a_pattern_begin_at_their_first_record(found: PlainStore) -> None:
    found.create("a1")
    found.upload({("a1", 0): 5})
    stream = Stream(found, topicPattern="a.*")
    assert stream.next_batch() == []
    found.create("a2")
    found.create("b")
    found.upload({("a2", 0): 3, ("b", 0): 3})
    assert stream.next_batch() == places("a2", 0, range(3))


def test_a_log_start_that_passed_the_stream_fails_it_or_goes_on(found: PlainStore) -> None:
    found.create("t")
    found.upload({("t", 0): 20})
    stream = Stream(found, topic="t", **ALL, maxOffsetsPerTrigger="5")
    stream.next_batch()
    found.tiered.advance_log_start(found.tips["t"][0], 8)
    with pytest.raises(OffsetOutOfRangeError) as error:
        stream.next_batch()
    assert error.value.fields["topic"] == "t"
    assert error.value.fields["log_start_offset"] == 8
    tolerant = Stream(found, stream.offsets, topic="t", failOnDataLoss="false")
    assert tolerant.next_batch() == places("t", 0, range(8, 20))


def test_records_that_never_reached_the_store_are_reported(found: PlainStore) -> None:
    found.create("t")
    found.upload({("t", 0): 10})
    stream = Stream(found, topic="t", **ALL)
    assert stream.next_batch() == places("t", 0, range(10))
    found.lose("t", 0, 5)
    found.upload({("t", 0): 10})
    with pytest.raises(OffsetOutOfRangeError) as error:
        stream.next_batch()
    assert (error.value.fields["offset"], error.value.fields["partition"]) == (10, 0)
    tolerant = Stream(found, stream.offsets, topic="t", failOnDataLoss="false")
    assert tolerant.next_batch() == places("t", 0, range(15, 25))


def test_a_topic_that_was_created_anew_is_not_the_old_one(found: PlainStore) -> None:
    found.create("t")
    found.upload({("t", 0): 20})
    stream = Stream(found, topic="t", **ALL)
    assert len(stream.next_batch()) == 20
    found.tiered.catalog.delete(found.tips["t"][0].topic_id)
    found.create("t")
    found.upload({("t", 0): 4})
    with pytest.raises(OffsetOutOfRangeError) as error:
        stream.next_batch()
    assert error.value.fields == {"topic": "t"}
    assert "the topic was created anew" in error.value.message
    tolerant = Stream(found, stream.offsets, topic="t", failOnDataLoss="false")
    assert tolerant.next_batch() == places("t", 0, range(4))


def forget_store(offsets: dict[str, Any]) -> dict[str, Any]:
    """The offsets as earlier software has written them."""
    return {name: value for name, value in offsets.items() if name != "store"}


def test_a_log_that_is_shorter_than_the_stream_fails_it_or_is_read_from_its_end(found: PlainStore) -> None:
    """A store that was restored in place."""
    found.create("t", 2)
    found.upload({("t", 0): 10, ("t", 1): 3})
    stream = Stream(found, topic="t", **ALL)
    assert len(stream.next_batch()) == 13
    ahead = forget_store(stream.offsets)
    ahead["topics"]["t"]["offsets"]["0"] = 20
    with pytest.raises(OffsetOutOfRangeError) as error:
        Stream(found, ahead, topic="t").next_batch()
    assert error.value.fields == {"topic": "t", "partition": 0, "offset": 20, "end_offset": 10}
    tolerant = Stream(found, ahead, topic="t", failOnDataLoss="false")
    assert tolerant.next_batch() == [], "it goes back"
    found.upload({("t", 0): 15})
    assert tolerant.next_batch() == places("t", 0, range(10, 25))


def test_a_stream_of_another_store_fails_or_says_so(
    found: PlainStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A restored store that has as many records again has other ones."""
    found.create("t")
    found.upload({("t", 0): 10})
    stream = Stream(found, topic="t", **ALL)
    begin = stream.offsets
    assert len(stream.next_batch()) == 10
    other_id = str(UUID(int=7))
    before = {**stream.offsets, "store": other_id}
    assert Stream(found, before | stream.offsets, topic="t").next_batch() == []
    goes_on = Stream(found, before, topic="t")
    attempts: tuple[Callable[[], object], ...] = goes_on.next_batch, partial(goes_on.rows, begin, before)
    for attempt in attempts:
        with pytest.raises(OffsetOutOfRangeError) as error:
            attempt()
        ids = {name: str(value) for name, value in error.value.fields.items()}
        assert ids == {"store_id": stream.offsets["store"], "checkpoint_store_id": other_id}
    tolerant = Stream(found, before, topic="t", failOnDataLoss="false")
    assert tolerant.next_batch() == []
    assert all(other_id in record.getMessage() for record in caplog.records)
    assert caplog.records
    assert tolerant.offsets == stream.offsets
    earlier = Stream(found, forget_store(stream.offsets), topic="t")
    assert earlier.next_batch() == [], "checkpoints of earlier software still work"
    assert earlier.offsets == stream.offsets


def test_an_idle_stream_looks_at_the_store_once_in_a_while(
    found: PlainStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stratalog.pipeline.source import store_view, stream_reader

    clock = ManualClock(START_MS)
    monkeypatch.setattr(stream_reader, "SystemClock", lambda: clock)

    def open_store(_url: str) -> ObjectStore:
        return found.store

    monkeypatch.setattr(store_view, "open_store", open_store)
    found.create("t")
    found.upload({("t", 0): 10})
    stream = Stream(found, topic="t", **ALL, idlePollMs="1000", maxOffsetsPerTrigger="5")
    for first in (0, 5):
        assert stream.next_batch() == places("t", 0, range(first, first + 5)), "data are not waited for"

    def requests_of_look() -> int:
        before = found.store.total("GET").requests
        assert (
            stream.reader.latestOffset(stream.offsets, stream.reader.getDefaultReadLimit()) == stream.offsets
        )
        return found.store.total("GET").requests - before

    assert requests_of_look() == 2, "the catalog and the shard"
    clock.advance(999)
    assert requests_of_look() == 0
    found.upload({("t", 0): 5})
    assert requests_of_look() == 0
    clock.advance(1)
    assert stream.next_batch() == places("t", 0, range(10, 15))
    assert requests_of_look() == 2


def test_a_partition_that_no_topic_of_a_pattern_has_is_refused(found: PlainStore) -> None:
    found.create("a1", 1)
    found.create("a2", 3)
    found.upload({("a2", 2): 3})
    stream = Stream(found, topicPattern="a.*", partitions="2", **ALL)
    assert stream.next_batch() == places("a2", 2, range(3))
    with pytest.raises(UnknownTopicOrPartitionError) as error:
        Stream(found, topicPattern="a.*", partitions="0,3")
    assert error.value.fields == {"topic": "a.*", "partition": 3, "partition_count": 3}


def test_older_versions_of_spark_read_all_there_is(found: PlainStore) -> None:
    found.create("a", 2)
    found.upload({("a", 0): 10})
    stream = OlderStream(found, topicPattern="a|b", **ALL)
    assert stream.next_batch() == places("a", 0, range(10))
    assert stream.next_batch() == []
    found.create("b")
    found.upload({("a", 1): 5, ("b", 0): 5})
    again = OlderStream(found, stream.offsets, topicPattern="a|b")
    assert again.next_batch() == places("a", 1, range(5)) + places("b", 0, range(5))
    only = OlderStream(found, again.offsets, topic="a")
    assert only.next_batch() == []
    assert set(only.offsets["topics"]) == {"a", "b"}, "the offsets of what is not read now stay"
    found.tiered.catalog.delete(found.tips["b"][0].topic_id)
    with pytest.raises(OffsetOutOfRangeError):
        OlderStream(found, again.offsets, topicPattern="a|b").next_batch()


def test_offsets_of_another_version_are_refused(found: PlainStore) -> None:
    found.create("t")
    stream = Stream(found, topic="t")
    with pytest.raises(UnsupportedOperationError):
        stream.reader.partitions({"version": 2}, stream.offsets)


@pytest.mark.parametrize("seed", range(3))
def test_random_lives_of_a_stream_read_each_offset_once(found: PlainStore, seed: int) -> None:
    chosen = random.Random(seed)
    found.create("t", 3)
    limits = {"maxOffsetsPerTrigger": str(chosen.randrange(5, 40))}
    if chosen.random() < 0.5:
        limits["maxBytesPerTrigger"] = str(chosen.randrange(100, 3000))
    stream = Stream(found, topic="t", **ALL, **limits)
    rows: list[tuple[str, int, int]] = []
    written = [0, 0, 0]
    for _ in range(15):
        number, count = chosen.randrange(3), chosen.randrange(1, 30)
        found.upload({("t", number): count})
        written[number] += count
        if chosen.random() < 0.3:
            stream = Stream(found, stream.offsets, topic="t", **limits)
        rows += stream.next_batch()
    while batch := stream.next_batch():
        rows += batch
    assert sorted(rows) == [place for n in range(3) for place in places("t", n, range(written[n]))]
