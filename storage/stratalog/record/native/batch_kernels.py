"""Everything that is done to whole rows of batches, compiled where possible.

What a batch costs in Python is more than what its records cost in C, and small slices hold one batch. So
these take many batches with one call. The first four take batches of every kind; the others take them as far
as they are *plain*: whole, sound, with records, neither compressed nor part of a transaction. They stop
before the first batch that is not, and leave it to the caller, who takes it the long way (``batch``,
``kernels``) and has the words for what is wrong with it. `NATIVE` of ``kernels`` says which of ``_kernels``
and ``pure_batch_kernels`` is in use; results are the same byte for byte.

All take bytes-like objects and are safe on any bytes, as ``kernels`` says; none but `hash_batches` raises
CorruptRecordError.

whole_batches(data) -> (size_bytes, records_count)
    The whole batches that `data` begins with, of any kind, up to a torn one or a header that cannot be. Only
    headers are looked at.
sound_batches(data, end_offset, first_offset=0, leader_epoch=-1) -> (size_bytes, next_offset)
    The whole batches that `data` begins with, of any kind, whose checksums are true, whose offsets ascend
    from `first_offset` on and end at or below `end_offset`, and whose leader epoch is that one, unless it is
    -1; the offset behind them, -1 where there is none. Records are not looked at.
skip_batches(data, offset, next_offset, leader_epoch) -> (size_bytes, next_offset, leader_epoch)
    How many bytes are taken by the batches, of any kind, that `data` begins with and that end below `offset`;
    offset and leader epoch of what follows. Offsets ascend from `next_offset` on and leader epochs do not go
    back from `leader_epoch` on. Only headers are looked at: the last batch may end behind `data`.
walk_batches(data, position, data_position, next_offset, leader_epoch) -> list[BatchRow]
    What an index asks of the batches from `position` on, of any kind: those that are whole, with true
    checksums, offsets that ascend from `next_offset` on and leader epochs that do not go back from
    `leader_epoch` on; no more than MAX_ROW_COUNT at once. `data_position` is where `data` lies in the file.
index_rows(rows, interval_bytes, segment_base_offset, progress) -> IndexRows
    What goes into a segment's indexes when batches follow on those of `progress`: Kafka's rule, which
    ``segment_indexes`` explains. Offsets are not further from the segment's base, and positions not higher,
    than an entry can say.
rank_entries(data, entry_size, key_position, key_size, limit) -> int
    How many of the entries of an index, which ascend, have a key of at most `limit`: big-endian, not
    negative, of 4 or 8 bytes.
scan_batches(data, position, begin_limit, fingerprint) -> ScannedBatches
    Proves plain batches from `position` on as ``batch.verify`` does (checksum, framing of all records,
    timestamps): those that begin before `begin_limit`, have the leader epoch of the first and ascend.
    `fingerprint` is continued with the base offset, checksum and record count of each.
filter_batches(data, position, survivors, first_ordinal, rule, fingerprint) -> FilteredBatches
    Copies what stays of plain batches from `position` on: records whose bit is set in `survivors` (the first
    record's is `first_ordinal`; None keeps every batch that reaches `rule.first_offset`) and that `rule`
    keeps. A batch that loses records is made anew, one that loses none is copied as it is. Stops before a
    batch that reaches beyond `rule.end_offset` or has other records than its bits say. Checksums are not
    looked at: the caller proves that of the slice.
hash_batches(data, hash_key16, first_ordinal, entries) -> None
    `kernels.hash_keys` over plain batches, of which `data` must consist.
merge_key_streams(streams) -> list[bytearray] | None
    Whole key streams, oldest slice first, each as (data, entry_count, crc, record_count). Proves all of them
    (``key_block`` has their form), and returns a bitmap of survivors for each, as `kernels.merge_windows`
    would set it. None where one is not what it must be, or has versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.record.native.kernels import NATIVE

__all__ = (
    "filter_batches",
    "hash_batches",
    "index_rows",
    "merge_key_streams",
    "rank_entries",
    "scan_batches",
    "skip_batches",
    "sound_batches",
    "walk_batches",
    "whole_batches",
)

if TYPE_CHECKING or not NATIVE:
    from stratalog.record.native.pure_batch_kernels import (
        filter_batches,
        hash_batches,
        index_rows,
        merge_key_streams,
        rank_entries,
        scan_batches,
        skip_batches,
        sound_batches,
        walk_batches,
        whole_batches,
    )
else:
    from stratalog.record.native._kernels import (
        filter_batches,
        hash_batches,
        index_rows,
        merge_key_streams,
        rank_entries,
        scan_batches,
        skip_batches,
        sound_batches,
        walk_batches,
        whole_batches,
    )
