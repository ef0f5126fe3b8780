"""The rules of a refresh: when it is full, when it is refused, and what of two refreshes at once is left."""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog.base.errors import (
    CorruptRecordError,
    InconsistentTopicIdError,
    InvalidRequestError,
    ObjectNotFoundError,
    StoreCorruptError,
    StoreNotUsableError,
    UnknownTopicOrPartitionError,
    UnsupportedOperationError,
)
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.pipeline.lake.changed_keys import KeyFile
from stratalog.pipeline.lake.formats.parquet_table import LATEST_KEY, ParquetTable
from stratalog.pipeline.lake.lake_table import LakeTable, TableChange, TableChangedError, TableState
from stratalog.pipeline.lake.last_offsets import KeyRows
from stratalog.pipeline.lake.values.json_values import JsonValues
from stratalog.pipeline.lake.values.registered_values import RegisteredValues
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from tests.support.lake.parquet_rows import parquet_rows, raw_rows
from tests.support.lake.topic_table import TopicTable, deletions_fail_behind_the_commit, last_rows
from tests.support.spark.plain_store import PlainStore
from tests.support.tiered.stores.careless_store import CarelessStore

DAY_MS = 24 * 3600 * 1000


class Site:
    """A topic and its table. Not thread-safe: one test uses it."""

    def __init__(self, **config: str) -> None:
        self.topic = PlainStore()
        self.topic.create("t", 1, **config)
        self.store = MemoryObjectStore(self.topic.clock)
        self.table = TopicTable(Random(3), self.topic.clock, self.topic.store, "t", self.store, ParquetTable)

    def upload(self, *records: tuple[bytes, bytes | None]) -> None:
        """One object with these records."""
        (tip,) = self.topic.tips["t"]
        base_offset = self.topic.tiered.partition(tip).tiered_end_offset
        placed = [
            Record(base_offset + index, self.topic.clock.now_ms(), key, value)
            for index, (key, value) in enumerate(records)
        ]
        self.topic.tiered.upload({tip: [encode_batch(placed, base_offset=base_offset)]})

    def compact(self) -> None:
        """Compact until nothing is left to do."""
        while self.topic.tiered.compactor().run(["t"]):
            pass

    @property
    def values(self) -> dict[bytes, bytes]:
        """The table."""
        return {row.key: row.value for row in raw_rows(parquet_rows(self.store))}

    def alter_position(self, **changes: Any) -> None:
        """Change the position of the table."""
        document = json.loads(self.store.get(LATEST_KEY).data)
        document["position"] |= changes
        self.store.put(LATEST_KEY, json.dumps(document).encode())


def test_a_topic_that_was_made_again_is_refused() -> None:
    site = Site()
    site.upload((b"a", b"1"))
    site.table.run()
    entry = site.topic.tiered.topic(site.topic.tips["t"][0])
    site.topic.tiered.catalog.delete(entry.topic_id)
    with pytest.raises(UnknownTopicOrPartitionError):
        site.table.run()
    site.topic.create("t")
    site.upload((b"b", b"2"))
    with pytest.raises(InconsistentTopicIdError):
        site.table.run()
    assert site.values == {b"a": b"1"}
    assert site.table.run(is_full=True).reason == "it was asked for"
    assert site.values == {b"b": b"2"}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"store_id": "00000000-0000-0000-0000-000000000001"}, StoreNotUsableError),
        ({"commits": {"0": 1_000}}, InvalidRequestError),
        ({"offsets": {"0": 1_000}}, InvalidRequestError),
        ({"encoding": "avro 1"}, InvalidRequestError),
        ({"version": 2}, StoreCorruptError),
        ({"offsets": "none"}, StoreCorruptError),
    ],
)
def test_a_position_that_cannot_go_on_is_refused(changes: dict[str, Any], error: type[Exception]) -> None:
    site = Site()
    site.upload((b"a", b"1"))
    site.table.run()
    site.alter_position(**changes)
    site.upload((b"a", b"2"))
    with pytest.raises(error):
        site.table.run()
    assert site.values == {b"a": b"1"}


def test_tombstones_that_compaction_may_have_dropped_make_a_run_full() -> None:
    site = Site(cleanup_policy="compact", delete_retention_ms=str(DAY_MS), min_cleanable_dirty_ratio="0.0")
    site.upload((b"a", b"1"), (b"b", b"1"))
    site.table.run()
    site.upload((b"a", None), (b"c", b"1"))
    site.compact()
    assert site.table.run().mode == "incremental", "the tombstone stays for a day"
    assert site.values == {b"b": b"1", b"c": b"1"}
    site.upload((b"b", None))
    site.compact()
    site.topic.clock.advance(2 * DAY_MS)
    site.upload((b"d", b"1"))
    site.compact()
    (tip,) = site.topic.tips["t"]
    assert [record.key for record in site.topic.tiered.records(tip)] == [b"c", b"d"], "it is gone"
    report = site.table.run()
    assert (report.mode, report.reason.split()[0]) == ("full", "tombstones")
    assert site.values == {b"c": b"1", b"d": b"1"}


def test_tombstones_that_went_before_their_retention_was_raised_make_a_run_full() -> None:
    site = Site(cleanup_policy="compact", delete_retention_ms=str(DAY_MS), min_cleanable_dirty_ratio="0.0")
    site.upload((b"a", b"1"), (b"b", b"1"))
    site.table.run()
    site.upload((b"a", None))
    site.compact()
    site.topic.clock.advance(2 * DAY_MS)
    site.upload((b"c", b"1"))
    site.compact()
    (tip,) = site.topic.tips["t"]
    assert [record.key for record in site.topic.tiered.records(tip)] == [b"b", b"c"], "it is gone"
    config = dict(site.topic.tiered.topic(tip).config)
    site.topic.tiered.catalog.alter(tip.topic_id, config={**config, "delete.retention.ms": str(9 * DAY_MS)})
    report = site.table.run()
    assert (report.mode, report.reason.split()[0]) == ("full", "tombstones")
    assert site.values == {b"b": b"1", b"c": b"1"}
    site.topic.clock.advance(2 * DAY_MS)
    site.upload((b"b", None))
    site.compact()
    assert site.table.run().mode == "incremental", "it stays for longer now"
    assert site.values == {b"c": b"1"}


def test_a_table_of_dead_rows_is_made_anew() -> None:
    class Dying(ParquetTable):
        def read(self) -> TableState:
            state = super().read()
            files = tuple(file._replace(row_count=10 * file.row_count) for file in state.files)
            dead = [file._replace(dead=_dead(9 * file.row_count // 10)) for file in files]
            return state._replace(files=tuple(dead))

    site = Site()
    site.upload((b"a", b"1"))
    site.table.run()
    site.upload((b"b", b"1"))
    assert site.table.run(table=Dying(site.store)).reason == "most rows of its files are dead"
    assert site.values == {b"a": b"1", b"b": b"1"}


def _dead(count: int) -> Any:
    from stratalog.pipeline.lake.lake_table import DeadRows

    return DeadRows("none", 0, 0, count)


def test_a_table_that_is_far_behind_is_made_anew() -> None:
    site = Site()
    site.upload((b"a", b"1"))
    site.table.run()
    site.upload((b"a", b"2"), (b"b", b"1"))
    assert site.table.run(max_changed_records=1).reason.startswith("more records")
    site.upload((b"a", b"3"))
    assert site.table.run(max_changed_records=1).mode == "incremental"
    assert site.values == {b"a": b"3", b"b": b"1"}


class Racing(ParquetTable):
    """Another run commits just before. Not thread-safe: one test uses it."""

    def __init__(self, store: MemoryObjectStore, race: Callable[[], object]) -> None:
        super().__init__(store)
        self._race = race

    def commit(self, change: TableChange) -> None:
        self._race()
        super().commit(change)


@pytest.mark.parametrize("has_table", [False, True])
def test_of_two_runs_at_once_one_wins(has_table: bool) -> None:
    site = Site()
    site.upload((b"a", b"1"), (b"b", b"1"))
    if has_table:
        site.table.run()
    site.upload((b"a", b"2"))
    racing: LakeTable = Racing(site.store, site.table.run)
    with pytest.raises(TableChangedError):
        site.table.run(table=racing)
    assert site.values == {b"a": b"2", b"b": b"1"}
    runs = {info.key.split("/")[1] for info in site.store.list("_data/")}
    assert len(runs) == 1 + has_table, "the files of the loser are gone"
    assert site.table.run().mode == "none"


def test_a_store_where_two_runs_would_overwrite_each_other_is_refused() -> None:
    site = Site()
    site.upload((b"a", b"1"))
    site.table.table_store = store = CarelessStore(ignores_match=True, ignores_absent=True)
    with pytest.raises(StoreNotUsableError):
        site.table.run()
    assert list(store.list("")) == []


def test_a_table_of_another_program_is_left_alone() -> None:
    class Foreign(ParquetTable):
        def read(self) -> TableState:
            return super().read()._replace(position=None)

    site = Site()
    site.upload((b"a", b"1"))
    site.table.run()
    with pytest.raises(InvalidRequestError):
        site.table.run(table=Foreign(site.store))


def test_keys_that_get_lost_between_tasks_fail_the_run() -> None:
    site = Site()
    site.upload((b"a", b"1"))
    site.upload((b"b", b"1"))
    site.table.cluster.copies = lambda value: 0 if isinstance(value, KeyRows) else 1
    with pytest.raises(StoreCorruptError):
        site.table.run(max_task_bytes=1)
    assert list(site.store.list("_data/")) == []
    assert not site.table.table().read().exists


def test_changed_keys_that_get_lost_between_tasks_fail_the_run() -> None:
    site = Site()
    site.upload((b"a", b"1"))
    site.table.run()
    site.upload((b"a", b"2"))
    site.upload((b"b", b"1"))
    site.table.cluster.copies = lambda value: 0 if isinstance(value, KeyFile) else 1
    with pytest.raises(StoreCorruptError):
        site.table.run(max_task_bytes=1)
    assert site.values == {b"a": b"1"}
    assert [info.key for info in site.store.list("_stratalog/keys/")] == []


def test_the_driver_collects_no_keys() -> None:
    """The bytes that come to the driver do not grow with the keys that have changed."""
    site = Site()
    keys = [b"%d" % number * 20 for number in range(10_000)]
    site.upload(*((key, b"1") for key in keys))
    site.table.run(max_task_bytes=1 << 20)
    collected: list[int] = []
    for count in (100, 10_000):
        site.table.cluster.collected_bytes = 0
        site.upload(*((key, b"2") for key in keys[:count]))
        site.upload((b"other", b"2"))
        report = site.table.run(max_task_bytes=1_000, max_changed_records=1 << 20)
        assert (report.mode, report.removed_count >= count) == ("incremental", True)
        collected.append(site.table.cluster.collected_bytes)
        assert [info.key for info in site.store.list("_stratalog/keys/")] == []
    assert collected[1] < collected[0] + 20_000, "a file for each task, of whatever size"


def test_a_small_refresh_is_one_task() -> None:
    site = Site()
    site.upload((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    site.table.run()
    site.upload((b"a", b"2"), (b"b", None), (b"d", b"1"))
    task_count = site.table.cluster.task_count
    report = site.table.run(max_task_bytes=1 << 20)
    assert site.table.cluster.task_count == task_count + 1
    assert (report.mode, report.added_count, report.removed_count) == ("incremental", 2, 2)
    assert site.values == {b"a": b"2", b"c": b"1", b"d": b"1"}


def test_a_missing_file_of_the_table_fails_a_small_refresh() -> None:
    site = Site()
    site.upload((b"a", b"1"))
    site.table.run()
    (name,) = [info.key for info in site.store.list("_data/")]
    data = site.store.get(name).data
    site.store.delete_many([name])
    site.upload((b"a", b"2"))
    with pytest.raises(ObjectNotFoundError):
        site.table.run(max_task_bytes=1 << 20)
    assert list(site.store.list("_data/")) == []
    assert list(site.store.list("_stratalog/keys/")) == []
    site.store.put(name, data)
    site.table.run(max_task_bytes=1 << 20)
    assert site.values == {b"a": b"2"}


def test_a_topic_that_keeps_versions_is_refused() -> None:
    site = Site(cleanup_policy="compact", compaction_strategy="timestamp")
    site.upload((b"a", b"1"))
    with pytest.raises(UnsupportedOperationError):
        site.table.run()


def test_bad_values_are_set_aside_until_their_keys_change() -> None:
    values = JsonValues.of(pa.struct([("id", pa.int64())]))
    site = Site()
    site.upload((b"a", b'{"id": 1}'), (b"b", b'{"id": 1}'))
    site.table.run(values=values)
    site.upload((b"a", b"bad"), (b"c", b'{"id": 2}'))
    report = site.table.run(values=values)
    assert (report.bad_count, report.row_count) == (1, 2)
    assert {row["key"]: row["value"] for row in parquet_rows(site.store)} == {
        b"b": {"id": 1},
        b"c": {"id": 2},
    }
    site.upload((b"a", b'{"id": 3}'))
    assert site.table.run(values=values).row_count == 3
    assert len(list(site.store.list("_bad/"))) == 1
    full = site.table.run(values=values, is_full=True)
    assert list(site.store.list("_bad/")) == []
    assert (full.bad_count, full.row_count, full.bad_files) == (0, 3, ())


def test_bad_records_that_a_full_refresh_left_at_its_death_go_with_the_next_one() -> None:
    values = JsonValues.of(pa.struct([("id", pa.int64())]))
    site = Site()
    site.upload((b"a", b"bad"))
    (first,) = site.table.run(values=values).bad_files
    site.upload((b"b", b"bad"))
    with deletions_fail_behind_the_commit(site.table):
        full = site.table.run(values=values, is_full=True)
    assert {info.key for info in site.store.list("_bad/")} == {first, *full.bad_files}
    site.upload((b"c", b"bad"))
    third = site.table.run(values=values)
    assert third.mode == "incremental"
    assert {info.key for info in site.store.list("_bad/")} == {*full.bad_files, *third.bad_files}


def test_schemas_are_added_to_a_table() -> None:
    """Without a new table if no value was set aside; those that were may be of the new schemas."""
    payloads = JsonValues.of(pa.struct([("id", pa.int64())]))
    one, two, three = (RegisteredValues.of(payloads, dict.fromkeys(range(1, end), b"")) for end in (2, 3, 4))
    site = Site()
    site.upload((b"a", b'\0\0\0\0\1{"id": 1}'))
    site.table.run(values=one)
    site.upload((b"b", b'\0\0\0\0\2{"id": 2}'))
    report = site.table.run(values=two)
    assert (report.mode, report.bad_count, report.row_count) == ("incremental", 0, 2)
    with pytest.raises(InvalidRequestError):
        site.table.run(values=one)
    site.upload((b"c", b'\0\0\0\0\3{"id": 3}'))
    report = site.table.run(values=two)
    assert (report.mode, report.bad_count, report.row_count) == ("incremental", 1, 2)
    (bad,) = pq.read_table(pa.BufferReader(site.store.get(report.bad_files[0]).data)).to_pylist()
    assert (bad["key"], bad["error"]) == (b"c", "the value has the schema 3, which is unknown")
    report = site.table.run(values=three)
    assert (report.mode, report.bad_count, report.row_count) == ("full", 0, 3)
    assert "schemas were added" in report.reason


def test_an_empty_topic_is_an_empty_table() -> None:
    site = Site()
    assert site.table.run().mode == "full"
    assert site.values == {}
    assert site.table.run().mode == "none"
    site.upload((b"a", None))
    assert site.table.run().tombstone_count == 1
    assert site.values == {}
    site.upload((b"a", b"1"))
    site.table.run()
    (tip,) = site.topic.tips["t"]
    assert raw_rows(parquet_rows(site.store)) == last_rows(0, site.topic.tiered.records(tip))


def test_a_lease_keeps_the_objects() -> None:
    site = Site()
    site.upload((b"a", b"1"))
    site.table.run(lease_s=60)
    (pin,) = site.topic.tiered.metadata.refresh().pins
    assert pin.until_ms == site.topic.clock.now_ms() + 60_000
    assert site.values == {b"a": b"1"}


def test_damage_is_named_and_leaves_no_files() -> None:
    site = Site()
    site.upload((b"a", b"1"))
    site.table.run()
    site.upload((b"a", b"2"))
    (tip,) = site.topic.tips["t"]
    live = site.topic.tiered.partition(tip).slices[1]
    key = site.topic.tiered.layout.data_key(live.object_name)
    data = bytearray(site.topic.store.get(key).data)
    data[live.entry.data_position + live.entry.data_bytes - 1] ^= 1
    site.topic.store.put(key, data)
    with pytest.raises(CorruptRecordError) as raised:
        site.table.run()
    assert raised.value.fields["topic"] == "t"
    assert raised.value.fields["slice"] == "1-2"
    assert raised.value.fields["key"] == key
    assert site.values == {b"a": b"1"}
    assert len({info.key.split("/")[1] for info in site.store.list("_data/")}) == 1
