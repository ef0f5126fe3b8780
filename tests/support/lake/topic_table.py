"""Runs of a materialization on a cluster in one process, and the rows that pandas would have."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from random import Random
from typing import NamedTuple

from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.lake.lake_table import LakeTable
from stratalog.pipeline.lake.materialization import Materialization, MaterializeOrder, MaterializeReport
from stratalog.pipeline.lake.values.value_format import RawValues, ValueFormat
from stratalog.record.record import Record
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Fault, Operation
from tests.support.compaction.inline_cluster import InlineCluster, InlinePlace


class Row(NamedTuple):
    """A row of a table of raw values."""

    partition: int
    key: bytes
    offset: int
    value: bytes


class TopicTable:
    """A table of one topic. Not thread-safe: one test uses it."""

    def __init__(
        self,
        random: Random,
        clock: ManualClock,
        store: ObjectStore,
        topic: str,
        table_store: ObjectStore,
        make_table: Callable[[ObjectStore], LakeTable],
    ) -> None:
        self.cluster = InlineCluster(random)
        self.table_store = table_store
        self._place = InlinePlace(MemoryFileSystem(), clock, SequentialIds(random.randrange(1 << 20)), store)
        self._topic = topic
        self._make_table = make_table
        self._random = random

    def table(self) -> LakeTable:
        """A new object for the table."""
        return self._make_table(self.table_store)

    def run(
        self,
        *,
        is_full: bool = False,
        values: ValueFormat | None = None,
        table: LakeTable | None = None,
        max_task_bytes: int | None = None,
        max_changed_records: int = 1_000,
        lease_s: int | None = None,
        fails_on_data_loss: bool = True,
    ) -> MaterializeReport:
        """Bring the table to the latest state."""
        order = MaterializeOrder(
            topic=self._topic,
            values=values or RawValues(),
            is_full=is_full,
            max_changed_records=max_changed_records,
            lease_s=lease_s,
            fails_on_data_loss=fails_on_data_loss,
            max_task_bytes=max_task_bytes or self._random.choice((100, 1_000, 1 << 20)),
        )
        run = Materialization(self.cluster, self._place, lambda: self.table_store, order)
        return run.run(table or self.table())


@contextmanager
def deletions_fail_behind_the_commit(table: TopicTable) -> Generator[None]:
    """The refresh in the block ends as if its process had died behind its commit."""
    inner, has_committed = table.table_store, False

    def plan(operation: Operation) -> Fault:
        nonlocal has_committed
        has_committed = has_committed or operation.condition.startswith("if_")
        return Fault.FAILS if has_committed and operation.verb == "DELETE" else Fault.NONE

    table.table_store = FaultyObjectStore(inner, Random(1), plan)
    yield
    table.table_store = inner
    assert has_committed


def pandas_rows(partition: int, records: Iterable[Record]) -> list[Row]:
    """The rows of a partition, by pandas."""
    import pandas as pd

    fields = [(record.key, record.offset, record.value) for record in records]
    frame = pd.DataFrame(fields, columns=["key", "offset", "value"], dtype=object).dropna(subset=["key"])
    last = frame.sort_values("offset").drop_duplicates("key", keep="last").dropna(subset=["value"])
    return [Row(partition, *fields) for fields in last.itertuples(index=False, name=None)]


def last_rows(partition: int, records: Iterable[Record]) -> list[Row]:
    """The rows of a partition, by an oracle of its own: the last record of each key, without tombstones."""
    last = {record.key: record for record in records if record.key is not None}
    return [
        Row(partition, key, record.offset, record.value)
        for key, record in last.items()
        if record.value is not None
    ]
