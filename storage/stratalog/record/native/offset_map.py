"""The kernels of the log cleaner: its map from keys to their last offsets, and the filter that obeys it.

A clean passes over a log twice. The first pass puts the keys of the dirty part into an OffsetMap; the second
keeps of all that comes before the end of the first what the map does not know better. Compiled where
possible: `NATIVE` of ``kernels`` says whether these come from ``_kernels`` or from the twins
``pure_offset_map`` and ``pure_clean_kernels``; results are the same byte for byte. All take bytes-like
objects, are safe on any bytes, and let go of the interpreter lock while they work.

OffsetMap(hash_key16, capacity, load_factor)
    Keys by a 128-bit hash that is keyed with 16 bytes, which are to be random for every clean, with the
    highest offset that was put for each. A slot takes 24 bytes; `slots_for(memory_bytes)` says what capacity
    that memory has room for. No more than `max_entries` keys are taken. Not thread-safe.

    put_records(payload, records_count, base_offset, first_offset) -> PutRecords
        The keys of one batch's plain payload; records below `first_offset` are passed over. Raises
        CorruptRecordError where a record is not framed well; those before it are in the map then, which is
        of no use any more.
    put_batches(data, position, first_offset, stop_offset, aborted=()) -> PutBatches
        The keys of the batches from `position` on, as far as they are whole, uncompressed (or without
        records), sound (checksum, framing of all records) and begin below `stop_offset`. Those of the log
        itself (control), and data of transactions that `aborted` names (`AbortedSpans.values`), have no keys
        that count: their checksums have to be true, and that is all. The caller takes the first batch that
        is none of these the long way, and ends the clean where it is damaged: some of its records may be in
        the map.
    skip_to(offset)
        Everything up to `offset`, inclusive, was looked at.

    `latest_offset` is up to where, inclusive, everything was looked at, by puts and by `skip_to`: behind a
    batch that `put_batches` took it is the batch's last offset, behind `put_records` that of the last record,
    so that the caller calls `skip_to` with the batch's. When a key comes that the map has no room for, it
    `is_full` and stops there; `latest_offset` is that of what came before, and nothing is put any more.

aborted_spans_in(entries, start_offset, end_offset) -> array[int]
    Of entries of transaction indexes, in Kafka's format and in any order, those with data in
    [start_offset, end_offset), as `AbortedSpans.values` has them.
OpenTransactions()
    The transactions that have not ended yet of which a clean has met data: on_data(producer_id, *, is_kept),
    on_marker(producer_id) -> bool | None, len().
clean_batches(data, position, offset_map, rule, transactions, output_position=0) -> CleanedBatches
    What stays of the batches from `position` on, which are taken as far as `put_batches` would take them, but
    of control batches only markers that end a transaction, until there are MAX_ROW_COUNT rows. (Of records
    all of which are above `latest_offset` no more is proven than that there is room for so many.)
    `output_position` is where the result will lie in the new file. A record stays if its offset is above
    `latest_offset`; or if it has a key, the map knows no higher offset for the key, and it has a value or its
    batch no horizon up to `rule.now_ms`. A batch that loses nothing stays as it is. One that loses records is
    made anew around them, with the same base offset, last offset delta, leader epoch, producer and
    attributes. One that loses all goes, or stays as a header without records where its last offset is in
    `rule.kept_empty`. Where a batch keeps tombstones, has no horizon yet, and `latest_offset` is not below
    its last offset, it gets `rule.horizon_ms`. (Not earlier: a tombstone above is kept together with what it
    deletes, and both would go at once, whoever is reading between them.) Data of aborted transactions
    (`rule.aborted`) loses all. A marker stays as it is where `transactions`, of which this is a part, have
    met data of it, be it such as goes, or where `rule.kept_epochs` has its producer and epoch; otherwise it
    gets `rule.horizon_ms`, unless it has a horizon, and goes when that has come. The result says between
    which times what has a horizon goes that stays for a while.
clean_records(payload, records_count, base_offset, offset_map, *, drop_tombstones, timestamp_shift)
        -> CleanedRecords
    The same for the records of one batch. `drop_tombstones` says that the batch's horizon has come;
    `timestamp_shift` is added to timestamp deltas: the old base timestamp minus the new one. Raises
    CorruptRecordError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.record.native.batch_row import MAX_ROW_COUNT
from stratalog.record.native.clean_rule import CleanRule
from stratalog.record.native.cleaned_batches import CleanedBatches, CleanedRecords
from stratalog.record.native.kernels import NATIVE
from stratalog.record.native.put_batches import PutBatches, PutRecords

__all__ = (
    "MAX_ROW_COUNT",
    "CleanRule",
    "CleanedBatches",
    "CleanedRecords",
    "OffsetMap",
    "OpenTransactions",
    "PutBatches",
    "PutRecords",
    "aborted_spans_in",
    "clean_batches",
    "clean_records",
)

if TYPE_CHECKING or not NATIVE:
    from stratalog.record.native.pure_clean_kernels import aborted_spans_in, clean_batches, clean_records
    from stratalog.record.native.pure_offset_map import OffsetMap
    from stratalog.record.native.pure_open_transactions import OpenTransactions
else:
    from stratalog.record.native._kernels import (
        OffsetMap,
        OpenTransactions,
        aborted_spans_in,
        clean_batches,
        clean_records,
    )
