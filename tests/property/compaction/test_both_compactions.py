"""The local cleaner and the compaction of objects, on the same history: what they leave is the same, record
for record: offsets, keys, values, headers and times, tombstones and the times at which they go included.

Transactions: what readers of committed records end with is the same on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from stratalog.compaction.plan.job_time import MAX_JOB_MS
from stratalog.log.isolation import Isolation
from stratalog.record.record import Record
from tests.support.compaction.twin_logs import Twin, TwinLogs
from tests.support.compaction.versions import winners
from tests.support.logs.log_consumer import table_of
from tests.support.logs.sampling import examples_of

ROUNDS = 4
STEPS = 12
COMPACTS_TRANSACTIONS = False
"""Slices with transactions are carried as they are, and keep what the local cleaner drops."""


@settings(max_examples=examples_of(8))
@given(st.integers(0, 2**32))
def test_both_leave_the_same_records(seed: int) -> None:
    logs = TwinLogs(seed, with_transactions=False)
    for _ in range(ROUNDS):
        for _ in range(logs.random.randrange(STEPS)):
            logs.step()
        logs.compact()
        for twin in logs.twins:
            assert logs.tiered_records(twin) == logs.local_records(twin)
    # Nothing more is written: tombstones are stamped, wait for their time, and go.
    for duration_ms in (0, MAX_JOB_MS + 999, 1, 4_000, 5_000):
        logs.advance(duration_ms)
        logs.compact()
        for twin in logs.twins:
            assert logs.tiered_records(twin) == logs.local_records(twin)
    for twin in logs.twins:
        left = logs.tiered_records(twin)
        assert len({record.key for record in left}) == len(left)
        assert not any(record.is_tombstone for record in left)
        assert table_of(left) == table_of(written(logs, twin))


@settings(max_examples=examples_of(8))
@example(238009, "timestamp")
@given(st.integers(0, 2**32), st.sampled_from(("timestamp", "header")))
def test_both_leave_the_highest_versions(seed: int, strategy: str) -> None:
    """And these are the highest of all that were written, as long as no tombstone has gone. A record that has
    lost stays away when the log start passes the winner."""
    logs = TwinLogs(seed, with_transactions=False, strategies=(strategy,))
    gone: set[Twin] = set()
    lost: dict[Twin, set[int]] = {twin: set() for twin in logs.twins}
    for _ in range(ROUNDS):
        for _ in range(logs.random.randrange(STEPS)):
            logs.step()
        before = {twin: logs.tiered_records(twin) for twin in logs.twins}
        logs.compact()
        for twin in logs.twins:
            left = logs.tiered_records(twin)
            assert left == logs.local_records(twin)
            start_offset = twin.local.offsets.log_start_offset
            there = [
                record
                for record in written(logs, twin)
                if record.offset >= start_offset and record.offset not in lost[twin]
            ]
            best = winners(there, strategy)
            lost[twin] |= {record.offset for record in there} - {record.offset for record in best}
            if any(one.is_tombstone and one not in left for one in before[twin]):
                gone.add(twin)
            if twin not in gone:
                assert left == best


@settings(max_examples=examples_of(10))
@given(st.integers(0, 2**32))
def test_readers_of_committed_records_end_with_the_same(seed: int) -> None:
    logs = TwinLogs(seed, with_transactions=True)
    for number in range(ROUNDS):
        for _ in range(logs.random.randrange(2 * STEPS)):
            logs.step()
        if number == ROUNDS - 1:
            logs.end_all()
        logs.compact()
        for twin in logs.twins:
            require_transactions(logs, twin)


def require_transactions(logs: TwinLogs, twin: Twin) -> None:
    """Check a partition that may have transactions."""
    local, tiered = logs.local_records(twin), logs.tiered_records(twin)
    isolation = Isolation.TXN_COMMITTED
    is_decided = logs.end_offset(twin) == logs.end_offset(twin, isolation)
    if not twin.has_transactions:
        assert tiered == local
    elif COMPACTS_TRANSACTIONS and is_decided:
        # Where a transaction was open, the clock of a tombstone may have started later.
        assert values_of(tiered) == values_of(local)
        assert set(tiered) >= set(local)
    elif not COMPACTS_TRANSACTIONS:
        assert set(tiered) >= set(local)
    committed = logs.tiered_records(twin, isolation)
    assert table_of(committed) == table_of(written(logs, twin))
    assert table_of(logs.local_records(twin, isolation)) == table_of(committed)
    assert set(committed) <= set(written(logs, twin)), "an aborted record was read, or one that never was"


def values_of(records: Sequence[Record]) -> list[Record]:
    """The records without tombstones."""
    return [record for record in records if not record.is_tombstone]


def written(logs: TwinLogs, twin: Twin) -> list[Record]:
    """The records that were committed, from log start on, up to where both sides are."""
    start_offset = twin.local.offsets.log_start_offset
    end_offset = logs.end_offset(twin, Isolation.TXN_COMMITTED)
    return [
        record
        for record in twin.records
        if start_offset <= record.offset < end_offset and record.offset not in twin.aborted
    ]
