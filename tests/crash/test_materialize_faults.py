"""A fault at each request of a refresh to the table's store: the table is as before or as after, never
between, and later refreshes delete the files of those that did not commit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from stratalog.base.errors import LogStoreError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.pipeline.lake.table_rows import table_schema
from stratalog.pipeline.lake.values.value_format import RawValues
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore
from stratalog.testing.store_faults import FAULTS_OF_VERB, Fault, FaultsAt, Operation
from tests.support.lake.table_formats import FORMATS, TableFormat
from tests.support.lake.topic_table import TopicTable
from tests.support.logs.sampling import Sampling
from tests.support.spark.plain_store import PlainStore


class Trial:
    """A table with one version, and a topic that goes on. Not thread-safe: one test uses it."""

    def __init__(self, form: TableFormat) -> None:
        self.topic = PlainStore()
        self.topic.create("t", 2)
        self.topic.upload({("t", 0): 10, ("t", 1): 3})
        self.inner = MemoryObjectStore(self.topic.clock)
        self.table = TopicTable(
            Random(1),
            self.topic.clock,
            self.topic.store,
            "t",
            self.inner,
            lambda store: form.make(store, self.topic.clock, table_schema(RawValues().arrow_type)),
        )
        self.committed: set[str] = set()
        self.table.run()
        self.before = self.look()
        self.topic.upload({("t", 0): 3})

    def look(self) -> tuple[int, int]:
        """The version of the table: the sum of the offsets that its position names, and its rows."""
        state = self.table.table().read()
        assert state.position is not None
        self.committed.add(state.position.refresh_id)
        return sum(state.position.offsets.values()), sum(file.live_count for file in state.files)

    def run(self, plan: Callable[[Operation], Fault]) -> FaultyObjectStore:
        """Run with faults, until it ends or stops."""
        faulty = FaultyObjectStore(self.inner, Random(1), plan)
        self.table.table_store = faulty
        with suppress(LogStoreError, ActorStopped):
            self.table.run()
        self.table.table_store = self.inner
        return faulty

    def require_clean(self) -> None:
        """Check that all files of the table are there, and none of refreshes that did not commit. Raises
        AssertionError."""
        self.look()
        state = self.table.table().read()
        used = {file.path for file in state.files}
        used |= {file.dead.path for file in state.files if file.dead is not None}
        found = {info.key for prefix in ("data/", "_data/") for info in self.inner.list(prefix)}
        assert used <= found
        assert {key.split("/")[1] for key in found} <= self.committed
        assert [info.key for info in self.inner.list("_stratalog/")] == []


@pytest.mark.parametrize("form", FORMATS, ids=lambda one: one.name)
def test_a_fault_at_each_request(form: TableFormat) -> None:
    calm = Trial(form)
    operations: list[Operation] = []

    def note(operation: Operation) -> Fault:
        operations.append(operation)
        return Fault.NONE

    calm.run(note)
    after = calm.look()
    assert after != calm.before
    (commit,) = [one for one in operations if one.condition.startswith("if_")]
    decisive = [(commit.number, fault) for fault in FAULTS_OF_VERB[commit.verb]]
    others = [(one.number, fault) for one in operations for fault in FAULTS_OF_VERB[one.verb]]
    assert len(others) > 30
    for number, fault in [*decisive, *Sampling().at_most(others, 4)]:
        trial = Trial(form)
        faulty = trial.run(FaultsAt({number: fault}))
        assert trial.look() in (trial.before, after), (number, fault)
        faulty.release_all()
        assert trial.look() in (trial.before, after), (number, fault)
        trial.table.run()
        assert trial.look() == after, (number, fault)
        trial.topic.upload({("t", 0): 1})
        trial.table.run()
        trial.require_clean()
