"""Rows that tasks have staged become a topic, each row once, though tasks run twice and tell it once."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from stratalog.base.errors import InvalidRequestError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.pipeline.transfer import staged_rows
from stratalog.pipeline.transfer.staged_rows import StagedFile, StagedTopic, as_result, stage_rows
from stratalog.pipeline.transfer.topic_backfill import sources_of
from stratalog.pipeline.transfer.topic_import import TopicPlan, create_topic
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.inline_cluster import InlineCluster, InlinePlace
from tests.support.spark.format_reader import read_topic
from tests.support.spark.small_export import accept_all
from tests.support.tiered.tiered_store import TieredStore

SCHEMA: dict[str, pa.DataType] = {
    "partition": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "timestamp_ms": pa.int64(),
    "headers": pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
}
TOPIC = StagedTopic("new", 4)


def row(partition: int | None, number: int) -> dict[str, Any]:
    return {
        "partition": partition,
        "key": b"k%d" % number,
        "value": None if number % 5 == 0 else b"v%d" % number,
        "timestamp_ms": number,
        "headers": [{"key": "h", "value": b"x"}] if number % 3 == 0 else None,
    }


def batches_of(rows: list[dict[str, Any]], random: Random) -> list[pa.RecordBatch]:
    """The rows of a task, in batches of any size."""
    found: list[pa.RecordBatch] = []
    while rows:
        count = random.randrange(1, 12)
        found.append(pa.RecordBatch.from_pylist(rows[:count], schema=pa.schema(SCHEMA)))
        rows = rows[count:]
    return found


@pytest.mark.parametrize("seed", range(4))
def test_each_row_is_a_record_in_the_order_of_the_tasks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    monkeypatch.setattr(staged_rows, "STAGED_BYTES", random.choice((1, 1_000, 64 << 20)))
    clock = ManualClock()
    store = MemoryObjectStore(clock)
    TieredStore(MemoryFileSystem(), store, clock, SequentialIds(1))
    place = InlinePlace(MemoryFileSystem(), clock, SequentialIds(2), store)
    # Sorted by partition, and divided anywhere, as Spark divides ranges.
    rows = [row(partition, number) for partition in (0, 2, 3) for number in range(random.randrange(40))]
    cuts = sorted(random.sample(range(len(rows) + 1), 3))
    bounds = [0, *cuts, len(rows)]
    files: list[StagedFile] = []
    with place() as means:
        for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
            tries = [
                [*stage_rows(means, number, TOPIC, batches_of(rows[begin:end], random))]
                for _ in range(random.choice((1, 2)))
            ]
            # Spark tells of only one of the tries.
            files += [StagedFile(**as_result(file).to_pylist()[0]) for file in tries[-1]]
    random.shuffle(files)
    plan = TopicPlan("new", TOPIC.partition_count, {}, sources_of(sorted(files), TOPIC.partition_count))
    create_topic(InlineCluster(random), place, place, plan, accept_all)
    found = read_topic(lambda key: store.get(key).data, "new")
    for partition in range(TOPIC.partition_count):
        expected = [one for one in rows if one["partition"] == partition]
        records = [one for one in found if one.partition == partition]
        assert [one.offset for one in records] == [*range(len(expected))]
        assert [(one.key, one.value, one.timestamp_ms, bool(one.headers)) for one in records] == [
            (one["key"], one["value"], one["timestamp_ms"], bool(one["headers"])) for one in expected
        ]


@pytest.mark.parametrize("partition", [-1, 4, None])
def test_a_partition_that_the_topic_does_not_have(partition: int | None) -> None:
    clock = ManualClock()
    place = InlinePlace(MemoryFileSystem(), clock, SequentialIds(2), MemoryObjectStore(clock))
    with place() as means, pytest.raises(InvalidRequestError) as caught:
        list(stage_rows(means, 0, TOPIC, batches_of([row(partition, 1)], Random(1))))
    assert caught.value.fields == {"topic": "new", "partition": partition, "partition_count": 4}
