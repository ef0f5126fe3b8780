"""Keys are divided by their measured size."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pytest

from stratalog.base.errors import StoreCorruptError
from stratalog.pipeline.jobs.cluster import Stage
from stratalog.pipeline.jobs.task_place import ExecutorPlace
from stratalog.pipeline.lake import key_ranges
from stratalog.pipeline.lake.key_ranges import RANGE_BYTES, SAMPLED_SPANS, mean_key_bytes, range_count
from stratalog.pipeline.lake.row_writer import RowWriter
from stratalog.pipeline.lake.state_exchange import SliceGroup, StateExchange, run_exchange
from stratalog.pipeline.lake.table_place import TablePlace
from stratalog.pipeline.lake.values.value_format import RawValues
from stratalog.pipeline.source.slice_span import SliceSpan
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from tests.support.compaction.inline_cluster import InlineCluster
from tests.support.spark.plain_store import PlainStore
from tests.support.spark.topic_scan import topic_spans


def spans_of(key_bytes: int | None, upload_count: int = 12) -> tuple[PlainStore, list[SliceSpan]]:
    """A topic with keys of this size, or without any, which compression makes small."""
    topic = PlainStore()
    topic.create("t")
    (tip,) = topic.tips["t"]
    for number in range(upload_count):
        records = [
            Record(offset, 1, None if key_bytes is None else b"%d" % offset + b"." * (key_bytes - 3), b"v")
            for offset in range(100 + 10 * number, 110 + 10 * number)
        ]
        moved = [record._replace(offset=record.offset - 100) for record in records]
        topic.tiered.upload({tip: [encode_batch(moved, base_offset=10 * number, codec=Codec.ZSTD)]})
    return topic, topic_spans(topic.store, topic="t")


def test_a_task_merges_about_as_many_bytes_whatever_the_size_of_keys() -> None:
    assert range_count(1 << 20, 16) == 1
    assert range_count(10 << 20, 16) == 10
    for key_bytes in (10, 100, 400, 10_000):
        count = range_count(10_000_000, key_bytes)
        assert 10_000_000 * key_bytes / count <= RANGE_BYTES
    assert range_count(0, 16) == 0


@pytest.mark.parametrize("key_bytes", [20, 400, 4_000])
def test_the_size_of_keys_is_measured_in_few_slices(key_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, spans = spans_of(key_bytes)
    requests = topic.store.total("GET").requests
    assert mean_key_bytes(topic.store, spans) == 16, "so few bytes need no look"
    assert topic.store.total("GET").requests == requests
    monkeypatch.setattr(key_ranges, "RANGE_BYTES", 0)
    assert key_bytes <= mean_key_bytes(topic.store, spans) <= key_bytes + 10
    assert topic.store.total("GET").requests == requests + SAMPLED_SPANS


def test_a_topic_without_keys_is_divided_as_by_usual_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ranges, "RANGE_BYTES", 0)
    topic, spans = spans_of(None, 2)
    assert mean_key_bytes(topic.store, spans) == 16


class _SizingCluster(InlineCluster):
    """Notes the size of the functions that go to the tasks, and runs none."""

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.function_bytes = 0

    def exchanged(
        self, items: Sequence[Any], stages: Sequence[Stage], last: Callable[[Iterator[Any]], Iterator[Any]]
    ) -> list[Any]:
        for function in (*(stage.run for stage in stages), last):
            self.function_bytes = max(self.function_bytes, len(pickle.dumps(function)))
        return []


@pytest.mark.parametrize("group_count", [2, 200])
def test_a_task_gets_no_slices_but_its_own(group_count: int) -> None:
    _, spans = spans_of(20, 1)
    place = "file:///none"
    exchange = StateExchange(
        ExecutorPlace(place),
        range_count=2,
        groups_a_writer=4,
        writer=RowWriter(TablePlace(place), "id", RawValues(), "_data/"),
    )
    cluster = _SizingCluster()
    groups = [SliceGroup(number, (spans[0],) * 50) for number in range(group_count)]
    with pytest.raises(StoreCorruptError):
        run_exchange(cluster, exchange, groups)
    assert 0 < cluster.function_bytes < 2_000
