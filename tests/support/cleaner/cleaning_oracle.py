"""The promises of a clean, checked against all that was ever written. The oracle knows records, not how a
clean works.

* What is read after a clean is a part of what was read before, in the same order, no record changed.
* Whatever is gone had a reason: a later record of its key below the end of a clean, an aborted transaction,
  no key, a tombstone whose time had come, or the log's start.
* Below the end of a clean that was finished no key has two records, nothing is aborted, and nothing lacks a
  key.
* A tombstone that nothing has superseded is there until `delete.retention.ms` after the first clean that
  reached the end of its batch, and gone after the next clean behind that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stratalog.log.isolation import Isolation
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.record import Record
from tests.support.logs.log_consumer import read_as_consumer, table_of
from tests.support.logs.log_ledger import read_local


@dataclass(slots=True)
class Written:
    """A record of a user, as it was stored. Not thread-safe: guarded by the oracle's user."""

    record: Record
    batch_last_offset: int
    producer_id: int = -1
    """The producer of the transaction; -1 outside of any."""
    is_decided: bool = True
    is_aborted: bool = False
    first_horizon_ms: int | None = None
    """The earliest time at which a tombstone may go; None as long as no clean can have met it."""
    last_horizon_ms: int = -1
    """The time from which on it has to go, once it is settled."""
    is_settled: bool = False
    """A clean that was finished has met it."""
    may_be_gone: bool = False
    must_be_gone: bool = False

    @property
    def is_committed(self) -> bool:
        return self.is_decided and not self.is_aborted


class CleaningOracle:
    """The history of one log. Used by one thread."""

    def __init__(self, delete_retention_ms: int) -> None:
        self.delete_retention_ms = delete_retention_ms
        self.history: dict[int, Written] = {}
        self.reached_offset = 0
        """Where the furthest clean may have ended, be it one that was broken off."""
        self.clean_end_offset = 0
        """Where the last clean ended that was finished."""

    def write(self, records: Iterable[Record], producer_id: int = -1) -> None:
        """One batch was stored; `producer_id`: as a part of this one's transaction."""
        placed = list(records)
        for record in placed:
            is_decided = producer_id < 0
            self.history[record.offset] = Written(
                record, placed[-1].offset, producer_id, is_decided=is_decided
            )

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        for written in self.history.values():
            if written.producer_id == producer_id and not written.is_decided:
                written.is_decided, written.is_aborted = True, not committed

    def note_clean(self, stop_offset: int, now_ms: int, end_offset: int | None) -> None:
        """A clean that began at that time might have reached `stop_offset` and has ended at `end_offset`;
        None where it was broken off, anywhere."""
        self.reached_offset = max(self.reached_offset, stop_offset)
        if end_offset is not None:
            self.clean_end_offset = end_offset
        horizon_ms = now_ms + self.delete_retention_ms
        for written in self.history.values():
            if written.record.value is not None or not written.is_decided:
                continue
            first_ms = written.first_horizon_ms
            written.may_be_gone |= first_ms is not None and first_ms <= now_ms
            if end_offset is not None:
                written.must_be_gone |= written.is_settled and written.last_horizon_ms <= now_ms
            limit_offset = stop_offset if end_offset is None else end_offset
            if not written.is_settled and written.batch_last_offset < limit_offset:
                written.first_horizon_ms = horizon_ms if first_ms is None else min(first_ms, horizon_ms)
                written.last_horizon_ms = max(written.last_horizon_ms, horizon_ms)
                written.is_settled = end_offset is not None

    def verify(
        self, log: UnifiedLog, before: Sequence[Record] | None = None, *, is_finished: bool = True
    ) -> list[Record]:
        """The log is what it must be; `before`: what `read_local` gave before a clean. `is_finished`: the
        last clean was not broken off. Returns what is read now, markers included."""
        log.check()
        after = read_local(log)
        if before is not None:
            self._require_part(before, after, log.offsets.log_start_offset)
        start_offset = log.offsets.log_start_offset
        users = {one.offset: one for one in after if one.offset in self.history}
        for offset, one in users.items():
            assert one == self.history[offset].record, "a record has changed"
        self._require_reasons(users, start_offset)
        if is_finished:
            self._require_clean(users, start_offset)
        committed = [
            one
            for offset, one in users.items()
            if self.history[offset].is_committed and start_offset <= offset < log.offsets.last_stable_offset
        ]
        for max_bytes in (1, 1 << 20):
            found = read_as_consumer(log, Isolation.TXN_COMMITTED, max_bytes)
            assert found == committed, "readers of committed records get others"
        assert table_of(one for one in committed if one.key is not None) == self.final_values(
            start_offset, log.offsets.last_stable_offset
        ), "an older value is bared"
        return after

    def _require_part(self, before: Sequence[Record], after: Sequence[Record], log_start_offset: int) -> None:
        known = {one.offset: one for one in before}
        offsets = [one.offset for one in after]
        assert offsets == sorted(set(offsets)), "offsets do not ascend"
        for one in after:
            assert one.offset < log_start_offset or known.get(one.offset) == one, "a record came, or changed"

    def _require_reasons(self, users: dict[int, Record], start_offset: int) -> None:
        newest: dict[bytes, int] = {}
        for offset, written in self.history.items():
            key = written.record.key
            if key is not None and written.is_committed and offset < self.reached_offset:
                newest[key] = max(offset, newest.get(key, -1))
        for offset, written in self.history.items():
            if offset in users or offset < start_offset:
                continue
            assert offset < self.reached_offset, "what no clean has reached is gone"
            key = written.record.key
            is_superseded = key is not None and newest.get(key, -1) > offset
            is_expired = written.record.value is None and written.may_be_gone
            assert written.is_aborted or key is None or is_superseded or is_expired, (
                f"the last record of a key is gone: {written}"
            )

    def _require_clean(self, users: dict[int, Record], start_offset: int) -> None:
        seen: set[bytes] = set()
        for offset, one in users.items():
            written = self.history[offset]
            if not start_offset <= offset < self.clean_end_offset:
                continue
            assert not written.is_aborted, "an aborted record is there"
            assert one.key is not None, "a record without a key is there"
            assert one.key not in seen, "a key has two records"
            seen.add(one.key)
            assert not written.must_be_gone, "a tombstone outlives its time"

    def final_values(self, start_offset: int, end_offset: int) -> dict[bytes | None, bytes]:
        """The values that a consumer of committed records has after it has read [start_offset,
        end_offset)."""
        return table_of(
            written.record
            for offset, written in self.history.items()
            if written.record.key is not None and written.is_committed and start_offset <= offset < end_offset
        )
