"""Reads the parts of a committed object that lie beside its data, in few GETs, and verifies how the object
describes itself.

    header | data | directory | key streams | indexes | footer

A small object is read in one GET. Of others the header is read in one, and all behind the data in another
one if that is not large. What lies in these bytes needs no request of its own afterwards.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Generator
from typing import NamedTuple

from stratalog.base.errors import StoreCorruptError
from stratalog.base.filesystem import Buffer
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.objects.object_directory import parse_directory, parse_slice_index
from stratalog.remote.objects.object_format import FOOTER, decode_footer, decode_header
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.objects.slice_index import SliceIndex
from stratalog.remote.store_layout import StoreLayout

WHOLE_BYTES = 256 << 10
"""An object of up to so many bytes is read in one GET."""
TAIL_BYTES = 1 << 20
"""All that lies behind the data is read in one GET if it has at most so many bytes."""


class _Window(NamedTuple):
    """Bytes of the object that were read, from a position."""

    position: int
    data: memoryview


class ObjectParts:
    """The parts of one object. Not thread-safe: one reader uses it. Every method raises ObjectNotFoundError
    if the object is gone, and StoreCorruptError or StoreNotUsableError (a newer format) if a part is not as
    it was committed."""

    def __init__(self, store: ObjectStore, layout: StoreLayout, ref: ObjectRef) -> None:
        self._store = store
        self._layout = layout
        self._ref = ref
        self._key = layout.data_key(ref.name)
        self._windows: tuple[_Window, ...] = ()

    def verify_frame(self) -> None:
        """Read the header and the footer, and what is read along with them. They must be sound, and those of
        the committed object."""
        ref, layout = self._ref, self._layout
        footer_position = ref.size_bytes - FOOTER.size_bytes
        tail_bytes = ref.size_bytes - ref.directory_position
        if ref.size_bytes <= WHOLE_BYTES:
            places = [(0, ref.size_bytes)]
        elif tail_bytes <= TAIL_BYTES:
            places = [(0, ref.data_position), (ref.directory_position, tail_bytes)]
        else:
            places = [(0, ref.data_position), (footer_position, FOOTER.size_bytes)]
        self._windows = ()
        self._windows = tuple(
            _Window(position, memoryview(self._store.get_range(self._key, position, size)))
            for position, size in places
        )
        header = decode_header(self._read(0, ref.data_position))
        own = decode_footer(self._read(footer_position, FOOTER.size_bytes), ref.name)
        if (header.name, header.shard) != (ref.name, layout.shard):
            raise StoreCorruptError(
                "an object file is under the name or in the shard of another one; restore the object",
                name=ref.name,
                own_name=header.name,
                own_shard=header.shard,
            )
        if own != ref:
            raise StoreCorruptError(
                "the footer of an object gives other places than the commit; restore the object",
                name=ref.name,
                size_bytes=own.size_bytes,
                committed_size_bytes=ref.size_bytes,
            )

    def forget(self) -> None:
        """Read each part by its own GET from now on: a connection may have garbled what was read along."""
        self._windows = ()

    def directory(self) -> tuple[SliceEntry, ...]:
        """The slices of the object, sorted by (topic id, partition)."""
        return parse_directory(self._read(self._ref.directory_position, self._ref.directory_bytes), self._ref)

    def slice_index(self, entry: SliceEntry) -> SliceIndex:
        """The index of a slice."""
        return parse_slice_index(
            self._read(entry.index.position, entry.index.size_bytes), self._ref.name, entry
        )

    @contextlib.contextmanager
    def opened(self, position: int, size_bytes: int) -> Generator[Callable[[int], Buffer]]:
        """Read a range of at least one byte piece by piece, with the function that the block gets."""
        found = self._found(position, size_bytes)
        if found is not None:
            yield io.BytesIO(found).read
            return
        with contextlib.closing(self._store.open_range(self._key, position, size_bytes)) as stream:
            yield stream.read

    def _read(self, position: int, size_bytes: int) -> Buffer:
        found = self._found(position, size_bytes)
        return found if found is not None else self._store.get_range(self._key, position, size_bytes)

    def _found(self, position: int, size_bytes: int) -> memoryview | None:
        """These bytes if they were read along."""
        for window in self._windows:
            start = position - window.position
            if start >= 0 and start + size_bytes <= len(window.data):
                return window.data[start : start + size_bytes]
        return None
