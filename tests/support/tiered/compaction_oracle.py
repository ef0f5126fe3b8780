"""The promises of compaction, checked against all that was ever written. The oracle knows records, not how
compaction works.

The oracle keeps all records of a partition since its beginning. After every compaction it compares what is
readable with what was readable before and with the whole history:

* what is left is a part of what was there, in the same order, each record unchanged in every field;
* the last value of each key is what the whole history above log start says, so nothing reappears and nothing
  is lost;
* a record went only because a later one of its key is there, old enough for `min.compaction.lag.ms`, or
  because it is a tombstone whose time has come: `delete.retention.ms` after the first compaction that left it
  below `compacted_upto`;
* below `compacted_upto` no key has two records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stratalog.record.record import Record


class PartitionOracle:
    """The history of one partition. Not thread-safe: one test uses it."""

    def __init__(
        self, *, is_compacted: bool, delete_retention_ms: int = 0, min_compaction_lag_ms: int = 0
    ) -> None:
        self.is_compacted = is_compacted
        self._delete_retention_ms = delete_retention_ms
        self._min_compaction_lag_ms = min_compaction_lag_ms
        self._history: list[Record] = []
        self._settled_ms: dict[int, int] = {}
        """When a tombstone's clock started, by its offset."""
        self._compacted_upto = 0

    @property
    def end_offset(self) -> int:
        return self._history[-1].offset + 1 if self._history else 0

    def append(self, records: Iterable[Record]) -> None:
        """Records were uploaded."""
        self._history += records

    def readable(self, log_start_offset: int) -> list[Record]:
        """Everything that was written at or above log start."""
        return [record for record in self._history if record.offset >= log_start_offset]

    def require(
        self,
        before: Sequence[Record],
        after: Sequence[Record],
        *,
        log_start_offset: int,
        compacted_upto: int,
        now_ms: int,
    ) -> None:
        """Check that a compaction at `now_ms` broke no promise. Raises AssertionError."""
        self._require_part(before, after)
        expected = final_values(self.readable(log_start_offset))
        assert final_values(after) == expected, "the last value of a key changed"
        assert compacted_upto >= self._compacted_upto, "compacted_upto only grows"
        if not self.is_compacted:
            assert list(after) == list(before), "a plain topic lost or gained records"
            assert compacted_upto == 0
            return
        below = [record.key for record in after if record.offset < compacted_upto and record.key is not None]
        assert len(below) == len(set(below)), "a key has two records below compacted_upto"
        self._require_reasons(before, after, now_ms)
        for record in self._history:
            if _deletes(record) and self._compacted_upto <= record.offset < compacted_upto:
                self._settled_ms.setdefault(record.offset, now_ms)
        self._compacted_upto = compacted_upto

    def overdue_tombstones(self, after: Sequence[Record], now_ms: int) -> list[Record]:
        """Tombstones that a quiet shard should have removed by now."""
        return [record for record in after if _deletes(record) and self._may_go(record, now_ms)]

    def _require_part(self, before: Sequence[Record], after: Sequence[Record]) -> None:
        offsets = [record.offset for record in after]
        assert offsets == sorted(set(offsets)), "records are out of order"
        were = {record.offset: record for record in before}
        for record in after:
            assert were.get(record.offset) == record, f"a record changed or appeared: {record}"

    def _require_reasons(self, before: Sequence[Record], after: Sequence[Record], now_ms: int) -> None:
        kept = {record.offset for record in after}
        latest_ms = now_ms - self._min_compaction_lag_ms if self._min_compaction_lag_ms else None
        newest: dict[bytes | None, int] = {}
        for record in reversed(before):
            is_old_enough = latest_ms is None or record.timestamp_ms <= latest_ms
            if record.offset not in kept:
                assert is_old_enough, f"a record went before its time: {record}"
                is_displaced = record.key is not None and newest.get(record.key, -1) > record.offset
                is_over = _deletes(record) and self._may_go(record, now_ms)
                assert is_displaced or is_over, f"a record went for nothing: {record}"
            if is_old_enough and record.key not in newest:
                newest[record.key] = record.offset

    def _may_go(self, tombstone: Record, now_ms: int) -> bool:
        settled_ms = self._settled_ms.get(tombstone.offset)
        return settled_ms is not None and settled_ms + self._delete_retention_ms <= now_ms


def _deletes(record: Record) -> bool:
    """Whether the record is a tombstone: one without a key deletes nothing."""
    return record.is_tombstone and record.key is not None


def final_values(records: Iterable[Record]) -> Mapping[bytes, bytes]:
    """The last value of each key; a tombstone takes the key away."""
    values: dict[bytes, bytes] = {}
    for record in records:
        if record.key is None:
            continue
        if record.value is None:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
    return values
