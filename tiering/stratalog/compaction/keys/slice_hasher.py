"""Makes sorted key streams of a slice that has no usable one, from its data and in bounded memory.

The slice's bytes are spooled while they are read: phase 2 needs them again, and the data stream only moves
forward. Keys are hashed batch by batch; a number of them is sorted and put into scratch as one *part*. Parts
are merged like slices, later ones being newer, so that there is no second pass over the data and no bound on
the number of keys.

No other record can replace a record without a key: its bit is set at once. Such records come from a time at
which the topic was plain. They have no entry in a key stream, so a slice that holds one is written without a
key stream (``slice_builder``): readers would take it for all records of the slice.

Data of an aborted transaction is passed over, and so are markers: they have no part in this phase. All
records of an undecided transaction stay, and replace none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from stratalog.base.filesystem import Buffer
from stratalog.compaction.keys.survivor_bits import set_bit, set_bits
from stratalog.compaction.run_transactions import RunTransactions
from stratalog.compaction.slice_reader import SliceReader
from stratalog.record.batch import batches, records_payload
from stratalog.record.header import BatchHeader
from stratalog.record.native.kernels import KeyEntries, hash_keys, sort_key_entries
from stratalog.remote.objects.key_stream import KeyBlock, KeyHashing, encode_key_stream, read_key_stream
from stratalog.remote.objects.slice_entry import KeyStreamRef
from stratalog.remote.objects.spool import Spool, SpoolReader


class SliceHasher:
    """Makes the sorted key stream of a slice that has no usable one. Not thread-safe: guarded by the job.
    `close` gives the scratch of the parts back."""

    def __init__(
        self,
        hashing: KeyHashing,
        transactions: RunTransactions,
        record_count: int,
        make_scratch: Callable[[], Spool],
        max_part_entries: int,
    ) -> None:
        self._hashing = hashing
        self._transactions = transactions
        self._record_count = record_count
        self._make_scratch = make_scratch
        self._max_part_entries = max_part_entries
        self._entries = KeyEntries()
        self._parts: list[tuple[Spool, KeyStreamRef]] = []

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
                if len(self._entries) >= self._max_part_entries:
                    self._put_part_away()
        assert ordinal == self._record_count
        if len(self._entries):
            self._put_part_away()
        return [partial(self._blocks, scratch, stream) for scratch, stream in self._parts]

    def close(self) -> None:
        """May be called again."""
        with contextlib.ExitStack() as closing:
            for scratch, _ in self._parts:
                closing.callback(scratch.close)
        self._parts = []

    def _hash(
        self, row: Buffer, position: int, header: BatchHeader, first_ordinal: int, survivors: bytearray
    ) -> None:
        if header.is_control or self._transactions.is_aborted(header):
            return
        if self._transactions.is_undecided(header):
            set_bits(survivors, first_ordinal, first_ordinal + header.records_count)
            return
        payload = records_payload(row, position, header)
        before = len(self._entries)
        hash_keys(payload, header.records_count, self._hashing.hash_key, first_ordinal, self._entries)
        if len(self._entries) - before < header.records_count:
            with_key = set(self._entries.ordinal[before:])
            for ordinal in range(first_ordinal, first_ordinal + header.records_count):
                if ordinal not in with_key:
                    set_bit(survivors, ordinal)

    def _put_part_away(self) -> None:
        encoded = encode_key_stream(sort_key_entries(self._entries))
        scratch = self._make_scratch()
        stream = KeyStreamRef(
            position=0,
            size_bytes=encoded.size_bytes,
            entry_count=encoded.entry_count,
            crc=encoded.crc,
            hash_key_id=0,
        )
        self._parts.append((scratch, stream))
        for part in encoded.parts:
            scratch.append(part)
        self._entries = KeyEntries()

    def _blocks(self, scratch: Spool, stream: KeyStreamRef) -> Iterator[KeyBlock]:
        return read_key_stream(SpoolReader(scratch, 0, stream.size_bytes).read, stream, self._record_count)
