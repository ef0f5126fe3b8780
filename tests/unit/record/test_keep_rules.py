"""The rules of compaction, case by case: in ``keep_rules`` and, the same table, in both ways to clean."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch, rebuild_batch
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import DELETE_HORIZON_BIT, HEADER_SIZE, parse_header
from stratalog.record.keep_rules import (
    MAX_HORIZON_MS,
    MarkerFate,
    RecordFate,
    VersionRule,
    gets_horizon,
    is_due,
    new_horizon_ms,
)
from stratalog.record.native.aborted_spans import ordered
from stratalog.record.native.cleaned_batches import NO_HORIZON, CleanedBatches, CleanRule
from stratalog.record.record import Record
from tests.support.cleaner.clean_ways import WAYS

NOW_MS, NEW_MS = 1000, 9000
both_ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)

RECORD_FATES = {
    # has_key, is_newest, is_tombstone, is_due
    case: (
        RecordFate.WITHOUT_KEY
        if not case[0]
        else RecordFate.OUTDATED
        if not case[1]
        else RecordFate.TOMBSTONE_DUE
        if case[2:] == (True, True)
        else RecordFate.STAYS
    )
    for case in product((False, True), repeat=4)
}

MARKER_FATES = [
    # is_data_kept, holds_epoch, horizon_ms
    (True, False, None, MarkerFate.STAYS),
    (True, False, NOW_MS, MarkerFate.STAYS),
    (True, True, NOW_MS, MarkerFate.STAYS),
    (None, True, None, MarkerFate.STAYS),
    (None, True, NOW_MS, MarkerFate.STAYS),
    (False, True, NOW_MS, MarkerFate.STAYS),
    (False, False, None, MarkerFate.STAYS_ONCE_MORE),
    (False, False, NOW_MS, MarkerFate.STAYS_ONCE_MORE),
    (None, False, None, MarkerFate.GETS_HORIZON),
    (None, False, NOW_MS + 1, MarkerFate.STAYS_UNTIL_HORIZON),
    (None, False, NOW_MS, MarkerFate.GOES),
    (None, False, NOW_MS - 1, MarkerFate.GOES),
]


@both_ways
@pytest.mark.parametrize(("case", "fate"), RECORD_FATES.items())
def test_a_cleaned_record_has_its_fate(
    way: Any, case: tuple[bool, bool, bool, bool], fate: RecordFate
) -> None:
    has_key, is_newest, is_tombstone, due = case
    record = Record(0, 0, b"k" if has_key else None, None if is_tombstone else b"v")
    later = b"" if is_newest else encode_batch([Record(0, 0, b"k", b"later")], base_offset=1)
    batch = encode_batch([record], delete_horizon_ms=NOW_MS + (not due))
    cleaned = clean(way, batch, later)
    assert cleaned.records_kept == (fate is RecordFate.STAYS)
    assert cleaned.dropped_tombstone_count == (fate is RecordFate.TOMBSTONE_DUE)
    assert cleaned.null_key_count == (fate is RecordFate.WITHOUT_KEY)
    assert cleaned.data == (batch if fate is RecordFate.STAYS else b"")


@both_ways
@pytest.mark.parametrize("is_known", [False, True])
def test_by_versions_a_due_tombstone_stays_while_its_key_is_known(way: Any, is_known: bool) -> None:
    tombstone = encode_batch([Record(0, 5, b"k", None)], delete_horizon_ms=NOW_MS)
    late = encode_batch([Record(0, 4, b"k" if is_known else b"other", b"late")], base_offset=1)
    offset_map = way.new_map(rule=VersionRule(None))
    assert way.put(offset_map, late, 1, 2) == len(late)
    offset_map.close()
    assert way.put(offset_map, tombstone, 0, 1) == len(tombstone)
    cleaned = way.clean(tombstone + late, offset_map, CleanRule(NOW_MS, NEW_MS), way.transactions())
    assert cleaned.data == (tombstone if is_known else late)
    assert cleaned.dropped_tombstone_count == (not is_known)
    noted = (NOW_MS, NOW_MS) if is_known else (NO_HORIZON, -1)
    assert (cleaned.earliest_horizon_ms, cleaned.latest_horizon_ms) == noted


@both_ways
@pytest.mark.parametrize(("is_data_kept", "holds_epoch", "horizon_ms", "fate"), MARKER_FATES)
def test_a_cleaned_marker_has_its_fate(
    way: Any, is_data_kept: bool | None, holds_epoch: bool, horizon_ms: int | None, fate: MarkerFate
) -> None:
    marker = EndTransactionMarker(ControlType.ABORT, 0).to_batch(7, 3, 5)
    header = parse_header(marker)
    if horizon_ms is not None:
        stamped = header._replace(
            attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=horizon_ms
        )
        marker = rebuild_batch(stamped, marker[HEADER_SIZE:], records_count=1, max_timestamp=5)
    transactions = way.transactions()
    if is_data_kept is not None:
        transactions.on_data(7, is_kept=is_data_kept)
    offset_map = way.new_map()
    offset_map.skip_to(0)
    rule = CleanRule(NOW_MS, NEW_MS, kept_epochs=(7, 3) if holds_epoch else (7, 2))
    cleaned = way.clean(marker, offset_map, rule, transactions)
    assert (cleaned.end_position, len(transactions)) == (len(marker), 0)
    assert (cleaned.data == b"") == (fate is MarkerFate.GOES)
    assert (cleaned.data == marker) == (fate not in (MarkerFate.GOES, MarkerFate.GETS_HORIZON))
    assert cleaned.has_waiting_marker == (fate is MarkerFate.STAYS_ONCE_MORE)
    gone = fate is MarkerFate.GOES
    assert (cleaned.dropped_marker_count, cleaned.dropped_aborts) == ((1, (0,)) if gone else (0, ()))
    due_ms = {MarkerFate.GETS_HORIZON: NEW_MS, MarkerFate.STAYS_UNTIL_HORIZON: horizon_ms}.get(fate)
    noted = (NO_HORIZON, -1) if due_ms is None else (due_ms, due_ms)
    assert (cleaned.earliest_horizon_ms, cleaned.latest_horizon_ms) == noted
    if fate is MarkerFate.GETS_HORIZON:
        assert parse_header(cleaned.data).delete_horizon_ms == NEW_MS


@pytest.mark.parametrize(
    ("horizon_ms", "now_ms", "expected"),
    [(None, 5, False), (5, None, False), (4, 5, True), (5, 5, True), (6, 5, False)],
)
def test_a_horizon_has_passed_when_it_is_reached(
    horizon_ms: int | None, now_ms: int | None, expected: bool
) -> None:
    assert is_due(horizon_ms, now_ms) is expected


@pytest.mark.parametrize("horizon_ms", [None, NOW_MS + 1])
@pytest.mark.parametrize("has_tombstones", [False, True])
@pytest.mark.parametrize("sees_all_older", [False, True])
@pytest.mark.parametrize("way", [None, *WAYS])
def test_a_batch_gets_one_horizon_when_all_older_records_are_known(
    way: Any, horizon_ms: int | None, has_tombstones: bool, sees_all_older: bool
) -> None:
    expected = horizon_ms is None and has_tombstones and sees_all_older
    if way is None:
        found = gets_horizon(horizon_ms, has_tombstones=has_tombstones, sees_all_older=sees_all_older)
        assert found is expected
        return
    records = [Record(0, 0, b"k", None if has_tombstones else b"v"), Record(0, 0, b"other", b"v")]
    batch = encode_batch(records, delete_horizon_ms=horizon_ms, producer=BatchProducer(7, 0, 0))
    offset_map = way.new_map()
    offset_map.skip_to(1 if sees_all_older else 0)
    cleaned = way.clean(batch, offset_map, CleanRule(NOW_MS, NEW_MS), way.transactions())
    assert parse_header(cleaned.data).delete_horizon_ms == (NEW_MS if expected else horizon_ms)


@both_ways
def test_each_record_of_an_aborted_transaction_goes_and_counts(way: Any) -> None:
    producer = BatchProducer(7, 0, 0, is_transactional=True)
    batch = encode_batch([Record(0, 0, b"k", b"v"), Record(0, 0, b"other", b"v")], producer=producer)
    offset_map, transactions = way.new_map(), way.transactions()
    offset_map.skip_to(1)
    cleaned = way.clean(
        batch, offset_map, CleanRule(NOW_MS, NEW_MS, aborted=ordered([(7, 0, 2)])), transactions
    )
    assert (cleaned.data, cleaned.aborted_count, cleaned.records_in) == (b"", 2, 0)
    assert transactions.on_marker(7) is False


def test_the_latest_horizon_is_never() -> None:
    assert new_horizon_ms(NOW_MS, 500) == NOW_MS + 500
    assert new_horizon_ms(NOW_MS, 2**63 - 1) == MAX_HORIZON_MS


def clean(way: Any, batch: bytes, later: bytes) -> CleanedBatches:
    """The first of two batches, with a map that knows both."""
    offset_map = way.new_map()
    assert way.put(offset_map, batch + later, 0, NO_HORIZON) == len(batch + later)
    cleaned: CleanedBatches = way.clean(batch, offset_map, CleanRule(NOW_MS, NEW_MS), way.transactions())
    return cleaned
