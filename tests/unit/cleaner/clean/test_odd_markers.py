"""Markers that the compiled kernels leave to Python: by the same rules, and due at the same times."""

from __future__ import annotations

import struct

import pytest

from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import parse_header
from stratalog.record.native.cleaned_batches import NO_HORIZON
from stratalog.record.record import Record
from tests.support.cleaner.cleaned_log import CONFIG, Cleaned
from tests.support.logs.log_ledger import read_local

RETENTION_MS = CONFIG.delete_retention_ms


def marker(cleaned: Cleaned, oddity: str, control_type: ControlType) -> bytes:
    version = int(oddity == "of a later version")
    key, value = struct.pack(">hh", version, control_type), struct.pack(">hi", version, 1)
    batch = encode_batch(
        [Record(0, cleaned.machine.clock.now_ms(), key, value)],
        base_offset=cleaned.log.offsets.log_end_offset,
        leader_epoch=1,
        producer=BatchProducer(1, 0, is_transactional=oddity != "not transactional"),
        is_control=True,
    )
    assert EndTransactionMarker.read(batch, 0, parse_header(batch)) == (control_type, 1)
    return batch


def data(cleaned: Cleaned, sequence: int, *, is_transactional: bool) -> bytes:
    record = Record(0, cleaned.machine.clock.now_ms(), b"a%d" % sequence, b"v")
    return encode_batch([record], producer=BatchProducer(1, 0, sequence, is_transactional))


@pytest.mark.parametrize("control_type", list(ControlType))
@pytest.mark.parametrize("oddity", ["below the log start", "of a later version", "not transactional"])
def test_one_that_is_alone_goes_in_its_time(oddity: str, control_type: ControlType) -> None:
    cleaned = Cleaned()
    log = cleaned.log
    log.appender.append_as_leader(data(cleaned, 0, is_transactional=True), 1)
    log.roll()
    log.appender.append_as_follower(marker(cleaned, oddity, control_type))
    cleaned.put((b"x", b"1"))
    log.appender.append_as_leader(data(cleaned, 1, is_transactional=False), 1)
    cleaned.put((b"y", b"1"))
    log.increment_log_start_offset(1)
    log.retention.delete_old_segments()
    if oddity == "below the log start":
        log.increment_log_start_offset(2)
    assert log.local_log.segments.start_offset == 1

    def left() -> tuple[list[tuple[int, int, int | None]], list[int]]:
        """The markers, and the offsets of those that the transaction indexes have."""
        found = [
            (header.base_offset, header.records_count, header.delete_horizon_ms)
            for header in cleaned.headers()
            if header.is_control
        ]
        aborted = log.local_log.segments.aborted_in(0, log.offsets.log_end_offset)
        return found, [entry.last_offset for entry in aborted]

    due_ms = cleaned.machine.clock.now_ms() + RETENTION_MS
    for wait_ms in (RETENTION_MS - 1, 1):
        cleaned.clean(all_dirty=True)
        assert left() == ([(1, 1, due_ms)], [1] * (control_type is ControlType.ABORT))
        assert cleaned.result.next_clean_ms == due_ms
        cleaned.machine.clock.advance(wait_ms)
    cleaned.clean(all_dirty=True)
    assert left() == ([], [])
    assert cleaned.result.next_clean_ms == NO_HORIZON
    assert cleaned.result.stats.dropped_marker_count == 1
    assert {one.offset for one in read_local(log)} >= {2, 3, 4}
