"""Both ways to fill an offset map and to clean batches: many with one call of a compiled kernel, or each by
itself in plain Python, as the cleaner does without compiled kernels."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any
from unittest import mock

from stratalog.base.errors import CorruptRecordError
from stratalog.cleaner.clean import rebuilt_batch
from stratalog.cleaner.clean.batch_rewrite import BatchRewrite
from stratalog.record.batch import require_crc
from stratalog.record.header import BatchHeader
from stratalog.record.keep_rules import VersionRule
from stratalog.record.native import pure_clean_kernels, pure_offset_map
from stratalog.record.native.aborted_spans import is_aborted
from stratalog.record.native.cleaned_batches import CleanedBatches, CleanRule
from stratalog.record.reading.record_sections import RecordSections
from tests.support.logs.damaged_batches import sound_headers

try:
    native: Any = importlib.import_module("stratalog.record.native._kernels")
except ImportError:
    native = None


class RowWay:
    """The compiled kernels."""

    name = "row"

    def new_map(self, capacity: int = 1000, load_factor: float = 0.9, rule: VersionRule | None = None) -> Any:
        return native.OffsetMap(bytes(16), capacity, load_factor, rule)

    def transactions(self) -> Any:
        return native.OpenTransactions()

    def put(
        self, offset_map: Any, data: bytes, first_offset: int, stop_offset: int, aborted: Sequence[int] = ()
    ) -> int:
        """The position behind the last batch whose keys were put."""
        end_position: int = offset_map.put_batches(data, 0, first_offset, stop_offset, aborted)[0]
        return end_position

    def clean(self, data: bytes, offset_map: Any, rule: CleanRule, transactions: Any) -> CleanedBatches:
        cleaned: CleanedBatches = native.clean_batches(data, 0, offset_map, rule, transactions)
        return cleaned._replace(data=bytes(cleaned.data))


class BatchWay:
    """Plain Python, which takes batches of all kinds and stops before the first that is not sound."""

    name = "batch"

    def new_map(self, capacity: int = 1000, load_factor: float = 0.9, rule: VersionRule | None = None) -> Any:
        return pure_offset_map.OffsetMap(bytes(16), capacity, load_factor, rule)

    def transactions(self) -> Any:
        return pure_clean_kernels.OpenTransactions()

    def put(
        self, offset_map: Any, data: bytes, first_offset: int, stop_offset: int, aborted: Sequence[int] = ()
    ) -> int:
        end_position = 0
        for position, header in sound_headers(data):
            if header.base_offset >= stop_offset or offset_map.is_full:
                break
            batch = data[position : position + header.size_in_bytes]
            try:
                require_crc(batch, 0, header)
                if not (header.is_control or header.is_bare or is_aborted(aborted, header)):
                    _put(offset_map, batch, header, first_offset)
            except CorruptRecordError:
                break
            if not offset_map.is_full:
                offset_map.skip_to(header.last_offset)
                end_position = position + header.size_in_bytes
        return end_position

    def clean(self, data: bytes, offset_map: Any, rule: CleanRule, transactions: Any) -> CleanedBatches:
        done: list[CleanedBatches] = []
        end_position = 0
        batch_rewrite = BatchRewrite(offset_map, transactions, 0, lambda _: None, lambda _: None)
        with mock.patch.object(rebuilt_batch, "clean_records", pure_clean_kernels.clean_records):
            for position, header in sound_headers(data):
                if header.base_offset > offset_map.latest_offset:
                    break
                batch = data[position : position + header.size_in_bytes]
                try:
                    done.append(batch_rewrite.rewrite(batch, header, rule))
                except CorruptRecordError:
                    break
                end_position = position + header.size_in_bytes
        return together(done, end_position)


def _put(offset_map: Any, batch: bytes, header: BatchHeader, first_offset: int) -> None:
    versions = None if offset_map.rule is None else offset_map.rule.of_batch(header)
    for section, count in RecordSections(batch, header):
        offset_map.put_records(
            section, count, header.base_offset, first_offset, header.last_offset_delta, versions
        )


BATCH_WAY = BatchWay()
WAYS: list[RowWay | BatchWay] = [BATCH_WAY, *([RowWay()] if native is not None else [])]


def together(done: Sequence[CleanedBatches], end_position: int) -> CleanedBatches:
    """The same of all batches as of each by itself."""
    totals: dict[str, Any] = {
        name: sum(getattr(one, name) for one in done)
        for name in CleanedBatches._fields
        if name.endswith("_count") or name.startswith("records_")
    }
    empty = CleanedBatches(b"", 0, -1)
    return empty._replace(
        data=b"".join(one.data for one in done),
        end_position=end_position,
        next_offset=done[-1].next_offset if done else -1,
        dropped_aborts=tuple(offset for one in done for offset in one.dropped_aborts),
        has_waiting_marker=any(one.has_waiting_marker for one in done),
        earliest_horizon_ms=min((one.earliest_horizon_ms for one in done), default=empty.earliest_horizon_ms),
        latest_horizon_ms=max((one.latest_horizon_ms for one in done), default=-1),
        **totals,
    )
