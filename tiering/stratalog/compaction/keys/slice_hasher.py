"""Makes sorted key streams of a slice that has no usable one, from its data and in bounded memory.

The slice's bytes are spooled while they are read: phase 2 needs them again, and the data stream only moves
forward. Keys are hashed batch by batch, and sorted part by part (`KeyParts`). Parts are merged like slices,
later ones being newer, so that there is no second pass over the data and no bound on the number of keys.

No other record can replace a record without a key: its bit is set at once. Such records come from a time at
which the topic was plain. They have no entry in a key stream, so a slice that holds one is written without a
key stream (``slice_builder``): readers would take it for all records of the slice.

Data of an aborted transaction is passed over, and so are markers: they have no part in this phase. All
records of an undecided transaction stay, and replace none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stratalog.base.filesystem import Buffer
from stratalog.compaction.keys.key_parts import KeyParts
from stratalog.compaction.keys.survivor_bits import set_bit, set_bits
from stratalog.compaction.run_transactions import RunTransactions
from stratalog.compaction.slice_reader import SliceReader
from stratalog.record.batch import batches, decode, records_payload
from stratalog.record.header import BatchHeader
from stratalog.record.native.kernels import hash_keys
from stratalog.remote.objects.key_stream import KeyBlock, KeyHashing
from stratalog.remote.objects.spool import Spool


class SliceHasher:
    """Makes the sorted key stream of a slice that has no usable one. Not thread-safe: guarded by the job."""

    def __init__(
        self, hashing: KeyHashing, transactions: RunTransactions, keys: KeyParts, first_offset: int
    ) -> None:
        """The `keys` get those of the slice. Where versions decide, records below `first_offset` take no
        part: they are not readable, and must not win."""
        self._first_offset = first_offset if hashing.has_versions else 0
        self._hashing = hashing
        self._transactions = transactions
        self._keys = keys

    def hash_slice(
        self, reader: SliceReader, copy: Spool, survivors: bytearray
    ) -> list[Callable[[], Iterator[KeyBlock]]]:
        """Read the slice to its end, into `copy`. Returns a function for each sorted part, oldest first,
        which reads its blocks. Raises what `SliceReader` raises."""
        ordinal = 0
        for row in reader.rows():
            copy.append(row)
            for position, header in batches(row):
                self._hash(row, position, header, ordinal, survivors)
                ordinal += header.records_count
                self._keys.added()
        assert ordinal == self._keys.record_count
        return self._keys.end()

    def _hash(
        self, row: Buffer, position: int, header: BatchHeader, first_ordinal: int, survivors: bytearray
    ) -> None:
        if header.is_control or self._transactions.is_aborted(header):
            return
        if self._transactions.is_undecided(header):
            set_bits(survivors, first_ordinal, first_ordinal + header.records_count)
            return
        if header.next_offset <= self._first_offset:
            return
        payload = records_payload(row, position, header)
        entries = self._keys.entries
        if header.base_offset < self._first_offset:
            entries = self._hashing.new_entries()
        before = len(entries)
        hash_keys(
            payload,
            header.records_count,
            self._hashing.hash_key,
            first_ordinal,
            entries,
            self._hashing.versions_of(header),
        )
        if entries is not self._keys.entries:
            offsets = enumerate((record.offset for record in decode(row, position)), first_ordinal)
            readable = {ordinal for ordinal, offset in offsets if offset >= self._first_offset}
            self._keys.entries.extend(entries.of_ordinals(readable))
        if len(entries) - before < header.records_count:
            with_key = set(entries.ordinal[before:])
            for ordinal in range(first_ordinal, first_ordinal + header.records_count):
                if ordinal not in with_key:
                    set_bit(survivors, ordinal)
