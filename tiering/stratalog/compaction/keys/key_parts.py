"""Sorts the keys of a slice part by part, in bounded memory.

A number of keys is sorted and put into scratch as one part, which is read as a key stream is. The entries of
a part have different hashes. Where a key is in a part twice, its second newest entry can go into a part of
its own, so that a merge of all parts meets it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from stratalog.record.native.kernels import KeyEntries, sort_key_entries
from stratalog.remote.objects.key_stream import KeyBlock, encode_key_stream, read_key_stream
from stratalog.remote.objects.slice_entry import KeyStreamRef
from stratalog.remote.objects.spool import Spool, SpoolReader


class KeyParts:
    """The sorted parts of the keys of one slice. Not thread-safe: guarded by its user. `close` gives the
    scratch back."""

    def __init__(
        self,
        make_scratch: Callable[[], Spool],
        record_count: int,
        max_part_entries: int,
        *,
        keeps_repeats: bool,
        has_versions: bool,
    ) -> None:
        """`keeps_repeats`: the second newest entry of a key counts, too. `has_versions`: entries have
        versions."""
        self.entries = KeyEntries(has_versions=has_versions)
        """Add the next entries here, and call `added`."""
        self.entry_count = 0
        """Entries so far, with all that repeat a key."""
        self._make_scratch = make_scratch
        self.record_count = record_count
        self._max_part_entries = max_part_entries
        self._keeps_repeats = keeps_repeats
        self._parts: list[tuple[Spool, KeyStreamRef]] = []

    def added(self) -> None:
        """Put a part away once it is large enough."""
        if len(self.entries) >= self._max_part_entries:
            self._put_away()

    def end(self) -> list[Callable[[], Iterator[KeyBlock]]]:
        """A function for each part, oldest first, which reads its blocks. Call it once, last."""
        if len(self.entries):
            self._put_away()
        return [partial(self._blocks, scratch, stream) for scratch, stream in self._parts]

    def close(self) -> None:
        """May be called again."""
        with contextlib.ExitStack() as closing:
            for scratch, _ in self._parts:
                closing.callback(scratch.close)
        self._parts = []

    def _blocks(self, scratch: Spool, stream: KeyStreamRef) -> Iterator[KeyBlock]:
        return read_key_stream(SpoolReader(scratch, 0, stream.size_bytes).read, stream, self.record_count)

    def _put_away(self) -> None:
        entries, self.entries = self.entries, KeyEntries(has_versions=self.entries.version is not None)
        self.entry_count += len(entries)
        newest = sort_key_entries(entries)
        self._write(newest)
        if self._keeps_repeats and len(newest) < len(entries):
            repeated = set(entries.ordinal) - set(newest.ordinal)
            self._write(sort_key_entries(entries.of_ordinals(repeated)))

    def _write(self, entries: KeyEntries) -> None:
        encoded = encode_key_stream(entries)
        scratch = self._make_scratch()
        stream = KeyStreamRef(0, encoded.size_bytes, encoded.entry_count, encoded.crc, hash_key_id=0)
        self._parts.append((scratch, stream))
        for part in encoded.parts:
            scratch.append(part)
