"""An export and an import give a topic back, record for record, wherever tasks run twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TypeVar

import pytest

from stratalog.base.errors import (
    InvalidRequestError,
    ObjectNotFoundError,
    StoreCorruptError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.pipeline.jobs.store_audit import audit_store
from stratalog.pipeline.source.read_options import parse_options
from stratalog.pipeline.transfer import topic_import
from stratalog.pipeline.transfer.export_manifest import MANIFEST_KEY, read_manifest
from stratalog.pipeline.transfer.topic_export import ExportReport, export_topics
from stratalog.pipeline.transfer.topic_import import ImportReport, import_topic
from stratalog.record.codecs.compression import Codec
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.inline_cluster import InlineCluster, InlinePlace
from tests.support.spark.format_reader import Row, read_topic
from tests.support.spark.plain_store import PlainStore
from tests.support.spark.small_export import SmallExport
from tests.support.tiered.compaction_history import CompactionHistory
from tests.support.tiered.tiered_site import TieredSite
from tests.support.tiered.tiered_store import TieredStore
from tests.support.tiered.transaction_history import TransactionHistory

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def rows_of(store: MemoryObjectStore, topic: str) -> list[Row]:
    """All records, by a reader that shares no code with ours."""

    def get(name: str) -> bytes:
        try:
            return store.get(name).data
        except ObjectNotFoundError as error:
            raise FileNotFoundError(name) from error

    return read_topic(get, topic)


def accept_all(_config: Mapping[str, str]) -> Codec:
    """Any configuration."""
    return Codec.ZSTD


class Transfers:
    """A store with topics of random lives, and a place for exports. Not thread-safe: one test uses it."""

    def __init__(self, seed: int) -> None:
        self.history = CompactionHistory(seed, codecs=(Codec.NONE, Codec.GZIP, Codec.ZSTD))
        for _ in range(12):
            self.history.step()
        self.history.upload()
        self.target = MemoryObjectStore(self.history.clock)
        self.cluster = InlineCluster(Random(seed))
        self.open_store = self._place(self.history.store, 5)
        self.open_target = self._place(self.target, 6)
        self.names = sorted(self.history.tiered.catalog.topics())

    def _place(self, store: MemoryObjectStore, ids: int) -> InlinePlace:
        return InlinePlace(MemoryFileSystem(), self.history.clock, SequentialIds(ids), store)

    def export(self, *topics: str, **options: str) -> ExportReport:
        given = {"store": "memory://", "topic": ",".join(topics or self.names), **options}
        parsed = parse_options({"maxPartitionBytes": "500", **given}, is_stream=False)
        return export_topics(self.cluster, self.open_store, self.open_target, parsed)

    def restore(self, name: str, source: str = "", **config: str) -> ImportReport:
        return import_topic(
            self.cluster,
            self.open_target,
            self.open_store,
            source_topic=source,
            name=name,
            config=config,
            accept=accept_all,
        )

    def rows(self, topic: str) -> list[Row]:
        return rows_of(self.history.store, topic)

    def bounds(self, topic: str) -> list[tuple[int, int]]:
        """The log start and the tiered end of each partition."""
        entry = self.history.tiered.catalog.refresh().topics()[topic]
        found = [
            self.history.tiered.partition(TopicIdPartition(entry.topic_id, number))
            for number in range(entry.partition_count)
        ]
        return [(one.log_start_offset, one.tiered_end_offset) for one in found]


@pytest.mark.parametrize("seed", range(6))
def test_all_topics_come_back(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_import, "OBJECT_BYTES", 1_500)
    transfers = Transfers(seed)
    exported = transfers.export()
    assert exported.manifest == read_manifest(transfers.target)
    assert any(len(one.files) > 1 for topic in exported.manifest.topics for one in topic.partitions)
    for name in transfers.names:
        report = transfers.restore(f"new-{name}", name)
        rows = transfers.rows(name)
        assert transfers.rows(f"new-{name}") == rows
        assert sum(one.record_count for one in report.partitions) == len(rows)
        for (start, end), (new_start, new_end), one in zip(
            transfers.bounds(name), transfers.bounds(f"new-{name}"), report.partitions, strict=True
        ):
            assert new_end == end
            assert new_start == (start if one.record_count else end)
    tiered = transfers.history.tiered
    old, new = (tiered.catalog.topics()[name] for name in (transfers.names[0], f"new-{transfers.names[0]}"))
    assert new.config == {**old.config, "retention.ms": "-1", "retention.bytes": "-1"}
    assert not audit_store(transfers.cluster, transfers.open_store, ()).finding_count
    # The life goes on: what was imported is compacted as all else.
    transfers.history.settle()
    tiered.metadata.check()


def test_an_export_that_was_cut_off_is_not_one_and_goes_on() -> None:
    transfers = Transfers(7)
    transfers.export()
    whole = {info.key: transfers.target.get(info.key).data for info in transfers.target.list("")}
    files = [key for key in whole if key != MANIFEST_KEY]
    # A file of a store that has changed since, and a strange one.
    strange = files[0].replace("-0000", "-1111", 1)
    for key in (MANIFEST_KEY, *files[1::2]):
        transfers.target.delete_many([key])
    transfers.target.put(strange, b"strange")
    transfers.target.put("notes.txt", b"mine")
    with pytest.raises(InvalidRequestError) as caught:
        transfers.restore("new", transfers.names[0])
    assert caught.value.fields["key"] == MANIFEST_KEY
    again = transfers.export()
    assert (again.reused_count, again.deleted_count) == (len(files[::2]), 1)
    found = {info.key: transfers.target.get(info.key).data for info in transfers.target.list("")}
    assert found == {**whole, "notes.txt": b"mine"}
    with pytest.raises(InvalidRequestError) as refused:
        transfers.export()
    assert refused.value.fields["url"] == transfers.target.url


class PausedCluster(InlineCluster):
    """Pauses once, behind the tasks of a job. Not thread-safe: one test uses it."""

    def __init__(self, random: Random, pause: Callable[[], object]) -> None:
        super().__init__(random)
        self._pause = pause

    def each(self, function: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> list[ResultT]:
        """Runs the tasks, then the pause."""
        done = super().each(function, items)
        self._pause()
        return done


def test_an_export_that_ends_late_leaves_a_whole_one_alone() -> None:
    """A second one did not need all of its files, and deleted them."""
    transfers = Transfers(3)
    calm = transfers.cluster

    def export_again() -> None:
        transfers.cluster = calm
        for _ in range(6):
            transfers.history.step()
        transfers.history.upload()
        assert transfers.export().deleted_count > 0

    transfers.cluster = PausedCluster(Random(1), export_again)
    with pytest.raises(InvalidRequestError):
        transfers.export()
    for name in transfers.names:
        transfers.restore(f"new-{name}", name)
        assert transfers.rows(f"new-{name}") == transfers.rows(name)


def test_an_export_whose_files_another_one_has_deleted_is_not_whole() -> None:
    transfers = Transfers(3)
    calm = transfers.cluster

    def delete_one() -> None:
        transfers.cluster = calm
        transfers.target.delete_many([min(info.key for info in transfers.target.list("topic-"))])

    transfers.cluster = PausedCluster(Random(1), delete_one)
    with pytest.raises(InvalidRequestError):
        transfers.export()
    assert list(transfers.target.list(MANIFEST_KEY)) == []
    transfers.export()


def test_a_range_of_a_topic() -> None:
    transfers = Transfers(8)
    name = transfers.names[0]
    rows = transfers.rows(name)
    number = rows[0].partition
    start, end = transfers.bounds(name)[number]
    middle = (start + end) // 2
    bounds = json.dumps({name: {str(number): middle}})
    transfers.export(name, partitions=str(number), startingOffsets=bounds)
    transfers.restore("new")
    expected = [row for row in rows if row.partition == number and row.offset >= middle]
    assert transfers.rows("new") == expected
    assert transfers.bounds("new") == [
        (middle if expected else end, end) if one == number else (0, 0) for one in range(3)
    ]


def test_what_cannot_be_imported() -> None:
    transfers = Transfers(9)
    transfers.export()
    name = transfers.names[0]
    assert len(transfers.names) > 1
    with pytest.raises(InvalidRequestError) as several:
        transfers.restore("new")
    assert several.value.fields["topics"] == ", ".join(transfers.names)
    with pytest.raises(UnknownTopicOrPartitionError):
        transfers.restore("new", "missing")
    with pytest.raises(TopicAlreadyExistsError):
        transfers.restore(name, name)
    manifest = json.loads(transfers.target.get(MANIFEST_KEY).data)
    transfers.target.put(MANIFEST_KEY, json.dumps({**manifest, "version": 2}).encode())
    with pytest.raises(InvalidRequestError) as newer:
        transfers.restore("new", name)
    assert newer.value.fields["version"] == 2
    for damaged in (b"{", b"[]", json.dumps({**manifest, "topics": [{}]}).encode()):
        transfers.target.put(MANIFEST_KEY, damaged)
        with pytest.raises(StoreCorruptError):
            transfers.restore("new", name)
    assert "new" not in transfers.history.tiered.catalog.refresh().topics()


def test_damaged_files_are_named() -> None:
    transfers = Transfers(10)
    manifest = transfers.export().manifest
    topic = next(one for one in manifest.topics if one.record_count)
    first, *_ = topic.files
    data = transfers.target.get(first.key).data
    damaged = bytearray(data)
    damaged[len(data) // 3] ^= 0x40
    files = (file for each in manifest.topics for file in each.files)
    other = next(file for file in files if file.record_count != first.record_count)
    for changed in (bytes(damaged), data[:-20], transfers.target.get(other.key).data):
        transfers.target.put(first.key, changed)
        with pytest.raises(StoreCorruptError) as caught:
            transfers.restore("new", topic.name)
        assert caught.value.fields["key"] == first.key
    assert "new" not in transfers.history.tiered.catalog.refresh().topics()


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_aborted_transactions_stay_behind_unless_they_are_asked_for(isolation: str) -> None:
    site = TieredSite()
    history = TransactionHistory(site.start())
    for producer, committed in ((0, False), (1, True), (2, False)):
        history.send(producer, 2)
        history.send(9, 1, is_transactional=False)
        history.end(producer, committed=committed)
    history.send(0, 1)
    end = history.upload()
    is_committed = isolation == "read_committed"
    target = MemoryObjectStore(site.clock)
    cluster = InlineCluster(Random(1))
    place = InlinePlace(MemoryFileSystem(), site.clock, SequentialIds(1), site.bucket)
    other = InlinePlace(MemoryFileSystem(), site.clock, SequentialIds(2), target)
    options = {"store": "memory://", "topic": "t", "isolationLevel": isolation}
    export_topics(cluster, place, other, parse_options(options, is_stream=False))
    report = import_topic(cluster, other, place, source_topic="", name="new", config={}, accept=accept_all)
    end = history.stable_end(end) if is_committed else end
    expected = history.readable(0, end, is_committed=is_committed)
    assert [row.offset for row in rows_of(site.bucket, "new")] == expected
    assert report.partitions[0].end_offset == end


@pytest.mark.parametrize("given", [{}, {"retention.bytes": "7"}])
def test_old_records_stay_until_a_retention_is_asked_for(given: Mapping[str, str]) -> None:
    clock = ManualClock()
    store = TieredStore(MemoryFileSystem(), MemoryObjectStore(clock), clock, SequentialIds(1))
    own = {"retention.ms": "5", "retention.bytes": "100", "max.message.bytes": "9999"}
    report = SmallExport(clock, topic_config=own).restore(store.store, config=given)
    unlimited = {"retention.ms": "-1", "retention.bytes": "-1"}
    assert report.config == {"max.message.bytes": "9999", **unlimited, **given}
    assert report.left_out == {key: own[key] for key in unlimited if key not in given}
    assert store.catalog.refresh().topics()["new"].config == report.config


def test_an_export_of_a_snapshot_has_the_configuration_of_that_time() -> None:
    found = PlainStore()
    found.create("t", 2, cleanup_policy="compact", compression_type="zstd")
    found.upload({("t", 0): 4})
    seq = found.tiered.metadata.state().seq
    found.clock.advance(60_000)
    found.tiered.catalog.delete(found.tips["t"][0].topic_id)
    place = InlinePlace(MemoryFileSystem(), found.clock, SequentialIds(1), found.store)
    target = InlinePlace(MemoryFileSystem(), found.clock, SequentialIds(2), MemoryObjectStore(found.clock))
    options = {"store": "memory://", "topic": "t", "snapshot": f"0:{seq}", "lease": "0", "partitions": "0"}
    report = export_topics(InlineCluster(Random(1)), place, target, parse_options(options, is_stream=False))
    (topic,) = report.manifest.topics
    assert (topic.partition_count, topic.record_count) == (2, 4)
    assert topic.config == {"cleanup.policy": "compact", "compression.type": "zstd"}
