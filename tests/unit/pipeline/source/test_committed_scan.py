"""Scans of logs with transactions, wherever slices end, beside an oracle that knows what became of each."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.base.errors import ObjectNotFoundError
from stratalog.client.isolation_level import IsolationLevel
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.source.slice_scan import scan
from tests.support.logs.sampling import examples_of
from tests.support.spark.topic_scan import topic_spans
from tests.support.tiered.counting_object_store import CountingObjectStore
from tests.support.tiered.tiered_site import TieredSite
from tests.support.tiered.transaction_history import STEPS, Step, TransactionHistory

COMMITTED = IsolationLevel.READ_COMMITTED


class Scanned(TieredSite):
    """A partition whose uploads may end inside of transactions, as objects may."""

    def __init__(self, max_object_bytes: int) -> None:
        super().__init__(max_object_bytes=max_object_bytes)
        self.store = self.counting = CountingObjectStore(self.bucket)
        self.history = TransactionHistory(self.start(), is_unstable=True)


def scanned(store: ObjectStore, isolation: IsolationLevel) -> list[int]:
    """The offsets of the rows, in their order; each has its offset for a value."""
    found = topic_spans(
        store, topic="t", isolationLevel=isolation.value, maxPartitionBytes="1", failOnDataLoss="false"
    )
    spans = sorted(found, key=lambda span: span.first_offset)
    rows = [row for batch in scan(store, spans, ("offset", "value")) for row in batch.to_pylist()]
    assert all(row["value"] == b"%d" % row["offset"] for row in rows)
    return [row["offset"] for row in rows]


@settings(max_examples=examples_of(2))
@given(STEPS, st.sampled_from([1, 300, 1 << 20]), st.floats(0, 1))
def test_a_scan_has_what_was_committed_or_all_there_is(
    steps: list[Step], max_object_bytes: int, start_share: float
) -> None:
    found = Scanned(max_object_bytes)
    history, logs = found.history, found.history.logs
    history.play(steps)
    end_offset = history.upload()
    for log_start_offset in (0, int(end_offset * start_share)):
        logs.metadata.advance_log_start(
            {history.tip: log_start_offset}, epoch=logs.claimed.epoch, catalog_seq=None
        )
        for isolation in IsolationLevel:
            is_committed = isolation is COMMITTED
            end = history.stable_end(end_offset) if is_committed else end_offset
            expected = history.readable(log_start_offset, end, is_committed=is_committed)
            assert scanned(found.store, isolation) == expected, (isolation, log_start_offset)


def committed_and_aborted() -> Scanned:
    """Producer 1 aborts the records 0 and 2, whose marker lies in another object, commits 4, aborts 6."""
    found = Scanned(1 << 20)
    history = found.history
    history.send(1)
    history.send(9, is_transactional=False)
    history.send(1)
    history.upload()
    history.end(1, committed=False)
    history.send(1)
    history.end(1, committed=True)
    history.send(1)
    history.end(1, committed=False)
    assert history.upload() == 8
    return found


def test_a_transaction_that_a_gap_leaves_undecided_is_left_out() -> None:
    found = Scanned(1 << 20)
    history = found.history
    history.send(1)
    history.send(9, is_transactional=False)
    history.upload()
    history.end(1, committed=False)
    history.log.retention.drop_for_space(1 << 40, may_lose=True)
    history.send(9, is_transactional=False)
    history.upload()
    assert scanned(found.store, COMMITTED) == [1, 3]
    assert scanned(found.store, IsolationLevel.READ_UNCOMMITTED) == [0, 1, 3]


def requests_of_scan(found: Scanned, isolation: IsolationLevel) -> tuple[int, int]:
    """GETs of a scan, and its spans."""
    spans = topic_spans(found.store, topic="t", isolationLevel=isolation.value)
    found.counting.reset()
    list(scan(found.store, spans, ("offset",)))
    return found.counting.total("GET").requests, len(spans)


def test_a_marker_in_a_later_object_hides_the_records_before_it() -> None:
    found = committed_and_aborted()
    assert scanned(found.store, COMMITTED) == [1, 4]
    assert scanned(found.store, IsolationLevel.READ_UNCOMMITTED) == [0, 1, 2, 4, 6]


def test_indexes_are_read_only_where_they_tell_something() -> None:
    assert requests_of_scan(committed_and_aborted(), IsolationLevel.READ_UNCOMMITTED) == (2, 2)
    plain = Scanned(1)
    for _ in range(3):
        plain.history.send(9, is_transactional=False)
        plain.history.log.roll()
    plain.history.upload()
    assert requests_of_scan(plain, COMMITTED) == (3, 3)


def test_an_index_that_compaction_deleted_says_run_it_again() -> None:
    found = committed_and_aborted()
    spans = topic_spans(found.store, topic="t", isolationLevel=COMMITTED.value)
    first, second = sorted(spans, key=lambda span: span.first_offset)
    found.store.delete_many([second.object_key])
    with pytest.raises(ObjectNotFoundError):
        list(scan(found.store, [first], ("offset",)))
