"""Markers that the cleaning kernels leave to Python: by the same rules, and due at the same times."""

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
ODDITIES = ("below the log start", "of a later version", "not transactional")
Kept = tuple[int, int, int | None]


class OddMarkers(Cleaned):
    """A log with a producer whose markers are odd. Used by one thread."""

    def __init__(self, oddity: str) -> None:
        super().__init__()
        self._oddity = oddity

    def data(self, *, epoch: int, sequence: int, is_transactional: bool) -> None:
        producer = BatchProducer(1, epoch, sequence, is_transactional)
        now_ms = self.machine.clock.now_ms()
        records = [Record(0, now_ms, b"a%d" % sequence, b"v")]
        self.log.appender.append_as_leader(encode_batch(records, producer=producer), 1)

    def mark(self, epoch: int, control_type: ControlType = ControlType.COMMIT) -> None:
        now_ms = self.machine.clock.now_ms()
        version = int(self._oddity == "of a later version")
        batch = encode_batch(
            [Record(0, now_ms, struct.pack(">hh", version, control_type), struct.pack(">hi", version, 1))],
            base_offset=self.log.offsets.log_end_offset,
            leader_epoch=1,
            producer=BatchProducer(1, epoch, is_transactional=self._oddity != "not transactional"),
            is_control=True,
        )
        assert EndTransactionMarker.read(batch, 0, parse_header(batch)) == (control_type, 1)
        self.log.appender.append_as_follower(batch)

    def begin_at(self, offset: int) -> None:
        """Records below that offset are deleted, those of the segment that it lies in are still there."""
        self.log.increment_log_start_offset(offset)
        self.log.retention.delete_old_segments()
        assert self.log.local_log.segments.start_offset < offset

    def aborts(self) -> list[int]:
        """The offsets of the markers that the transaction indexes have."""
        return [
            entry.last_offset
            for entry in self.log.local_log.segments.aborted_in(0, self.log.offsets.log_end_offset)
        ]

    def markers(self) -> list[Kept]:
        return [
            (header.base_offset, header.records_count, header.delete_horizon_ms)
            for header in self.headers()
            if header.is_control
        ]


@pytest.mark.parametrize("control_type", list(ControlType))
@pytest.mark.parametrize("oddity", ODDITIES)
def test_one_that_is_alone_goes_in_its_time(oddity: str, control_type: ControlType) -> None:
    cleaned = OddMarkers(oddity)
    cleaned.data(epoch=0, sequence=0, is_transactional=True)
    cleaned.log.roll()
    cleaned.mark(0, control_type)
    cleaned.put((b"x", b"1"))
    cleaned.data(epoch=0, sequence=1, is_transactional=False)
    cleaned.put((b"y", b"1"))
    cleaned.log.increment_log_start_offset(1)
    cleaned.log.retention.delete_old_segments()
    if oddity == "below the log start":
        cleaned.begin_at(2)
    due_ms = cleaned.machine.clock.now_ms() + RETENTION_MS
    for wait_ms in (RETENTION_MS - 1, 1):
        cleaned.clean(all_dirty=True)
        assert cleaned.markers() == [(1, 1, due_ms)]
        assert cleaned.result.horizon_ms == due_ms
        assert cleaned.aborts() == [1] * (control_type is ControlType.ABORT)
        cleaned.machine.clock.advance(wait_ms)
    cleaned.clean(all_dirty=True)
    assert (cleaned.markers(), cleaned.aborts()) == ([], [])
    assert cleaned.result.horizon_ms == NO_HORIZON
    assert cleaned.result.stats.dropped_marker_count == 1
    assert {one.offset for one in read_local(cleaned.log)} >= {2, 3, 4}
