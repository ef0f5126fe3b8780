"""The kernels of the log cleaner: its map from keys to their last offsets, and the filter that uses the map.

A clean passes over a log twice. The first pass puts the keys of the dirty part into an OffsetMap; the second
keeps the records below the end of the first for which the map has no higher offset. The functions and classes
are compiled if possible: `NATIVE` of ``kernels`` says whether they come from ``_kernels`` or from
``pure_offset_map``, ``pure_clean_kernels`` and ``pure_batch_kernels``. Without compiled kernels `put_batches`
and `clean_batches` take no batch, and the cleaner handles each batch by itself. All take bytes-like objects,
are safe on any bytes, and release the interpreter lock while they work.

OffsetMap(hash_key16, capacity, load_factor, rule=None)
    Keys by a 128-bit hash with the highest offset of each; with a `VersionRule` the highest version of each,
    and the highest offset with that version. The hash is keyed with 16 bytes, which must be random for each
    clean. A slot takes 24 bytes, 32 with a version; `slots_for(memory_bytes, has_versions=False)` is the
    capacity for that memory. The map takes at most `max_entries` keys. Not thread-safe.

    put_records(payload, records_count, base_offset, first_offset, last_offset_delta, versions=None) -> None
        Puts the keys of one plain payload; skips records below `first_offset`. `versions` (`BatchVersions`):
        if the map has a rule. Raises CorruptRecordError if a record has a bad frame or lies above
        `last_offset_delta`; the map is useless then.
    put_batches(data, position, first_offset, stop_offset, aborted=()) -> (end_position, next_offset)
        Puts the keys of the batches from `position` on, as far as they are whole, uncompressed (or without
        records), sound (checksum, framing of all records) and begin below `stop_offset`. Control batches
        and data of transactions in `aborted` (`AbortedSpans.values`) have no keys that count: only their
        checksums are proved. Returns the position after the last batch that it took, and the exclusive end
        of its offsets, -1 if it took none. The caller handles the next batch by itself, and ends the clean
        if that is damaged: some of its records may be in the map.
    rule
        The `VersionRule`, or None.
    close()
        The map takes no further keys and no later offsets, and is not full any more: later puts only raise
        the versions of the keys that it has. For maps with a rule.
    skip_to(offset)
        Marks everything up to `offset`, inclusive, as seen, unless the map is closed.

    The map has seen everything up to `latest_offset`, inclusive: after `put_batches` it is the last offset
    of the last batch, after `put_records` that of the last record, so that the caller calls `skip_to` with
    the batch's. When a key has no room, the map `is_full` and stops there; `latest_offset` is that of the
    record before, and later puts do nothing.

aborted_spans_in(entries, start_offset, end_offset) -> array[int]
    The `AbortedSpans.values` of those transaction index entries, in Kafka's format and in any order, that
    have data in [start_offset, end_offset).
OpenTransactions()
    The open transactions with data that a clean has met: on_data(producer_id, *, is_kept),
    on_marker(producer_id) -> bool | None, len().
clean_batches(data, position, offset_map, rule, transactions) -> CleanedBatches
    Cleans the batches from `position` on. It takes batches like `put_batches`, up to the first that begins
    above `latest_offset`, but of control batches only markers that end a transaction; and it returns after
    1024 kept batches. The rules are those of ``keep_rules``. A batch that loses no record is unchanged. One
    that loses some is rebuilt with the same base offset, last offset delta, leader epoch, producer and
    attributes. One that loses all is dropped, or stays as a header if its last offset is in
    `rule.kept_empty`. Records above `latest_offset` stay. `transactions` are updated.
clean_records(payload, records_count, base_offset, offset_map, *, last_offset_delta, drop_tombstones,
              timestamp_shift, versions=None) -> CleanedRecords
    Cleans the records of one batch by the same rules. `drop_tombstones`: the batch's horizon has passed.
    `timestamp_shift` is added to timestamp deltas: the old base timestamp minus the new one. `versions`
    (`BatchVersions`): if the map has a rule. Raises CorruptRecordError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.record.native.kernels import NATIVE

__all__ = ("OffsetMap", "OpenTransactions", "aborted_spans_in", "clean_batches", "clean_records")

if TYPE_CHECKING or not NATIVE:
    from stratalog.record.native.pure_batch_kernels import clean_batches
    from stratalog.record.native.pure_clean_kernels import OpenTransactions, aborted_spans_in, clean_records
    from stratalog.record.native.pure_offset_map import OffsetMap
else:
    from stratalog.record.native._kernels import (
        OffsetMap,
        OpenTransactions,
        aborted_spans_in,
        clean_batches,
        clean_records,
    )
