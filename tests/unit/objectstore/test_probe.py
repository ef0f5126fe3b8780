"""The probe refuses a store that overwrites in spite of a precondition."""

from __future__ import annotations

from random import Random

import pytest

from stratalog.base.errors import StoreNotUsableError, StoreUnavailableError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.probe import require_conditional_writes
from stratalog.testing.faulty_object_store import FaultyObjectStore, StoreTrace
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import FAULTS_OF_VERB, Fault, FaultsAt
from tests.support.tiered.stores.careless_store import CarelessStore


@pytest.mark.parametrize(
    ("ignores_match", "ignores_absent", "header"),
    [(True, False, "If-Match"), (False, True, "If-None-Match"), (True, True, "If-None-Match")],
)
def test_a_careless_store_is_refused(ignores_match: bool, ignores_absent: bool, header: str) -> None:
    store = CarelessStore(ignores_match=ignores_match, ignores_absent=ignores_absent)
    with pytest.raises(StoreNotUsableError) as refused:
        require_conditional_writes(store, SequentialIds(1))
    assert refused.value.fields["header"] == header
    assert list(store.list("")) == []


def test_a_careful_store_passes_with_names_of_the_callers_choice() -> None:
    store = FaultyObjectStore(MemoryObjectStore(ManualClock()), Random(1))
    require_conditional_writes(store, SequentialIds(1), "shards/0000/scratch/")
    keys = {entry.operation.key for entry in store.trace.entries}
    assert len(keys) == 1
    assert keys.pop().startswith("shards/0000/scratch/")
    assert list(store.list("")) == []


@pytest.mark.parametrize("fault", [fault for fault in FAULTS_OF_VERB["PUT"] if "stops" not in fault.value])
@pytest.mark.parametrize("number", range(4))
def test_no_fault_makes_it_blame_a_careful_store(number: int, fault: Fault) -> None:
    """An outcome that is unclear says nothing about the store: try again."""
    trace = StoreTrace()
    store = FaultyObjectStore(
        MemoryObjectStore(ManualClock()), Random(1), FaultsAt({number: fault}), trace=trace
    )
    refused_anyway = number in (1, 3) and fault is Fault.LANDS_AND_IS_REFUSED
    if refused_anyway:
        require_conditional_writes(store, SequentialIds(1))
    else:
        with pytest.raises(StoreUnavailableError):
            require_conditional_writes(store, SequentialIds(1))


def test_a_deletion_that_fails_does_not_matter() -> None:
    inner = MemoryObjectStore(ManualClock())
    require_conditional_writes(
        FaultyObjectStore(inner, Random(1), FaultsAt({4: Fault.FAILS})), SequentialIds(1)
    )
    assert len(list(inner.list("scratch/"))) == 1
