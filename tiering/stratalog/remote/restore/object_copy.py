"""Copies data objects from one store to another: by the server that has both, else through this machine.

An object that is in the target already is not copied again if its footer says that it is the committed one:
the footer has the checksum of the directory, which has those of all parts. An object appears whole or not at
all, so an attempt that dies leaves none of which only a part is there.

The server is asked once: if it cannot copy, all further objects come through this machine. Their parts are
compared with the checksums of the directory on the way, and an object that a connection has garbled is read
again. One that stays damaged is copied as it is, and said: it may have sound slices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import crc32c

from stratalog.base.errors import ObjectNotFoundError, StoreCorruptError, StoreNotUsableError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.objects.object_directory import read_directory
from stratalog.remote.objects.object_format import FOOTER, decode_footer
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.store_layout import StoreLayout

READ_BYTES = 1 << 20
PART_BYTES = 8 << 20
"""Memory of one copy through this machine, and `READ_BYTES`."""
_MAX_PARTS = 9_000
_DAMAGE = (StoreCorruptError, StoreNotUsableError)


class CopiedObject(NamedTuple):
    """The outcome of one copy."""

    was_there: bool = False
    through_here: bool = False
    """Whether its bytes came through this machine."""
    damage: str = ""
    """The damage that the source has too; a text for people. Empty if none was seen."""


class ObjectCopy:
    """Copies the objects of one store to another. Thread-safe if the stores are: its flag is set once."""

    def __init__(self, source: ObjectStore, target: ObjectStore) -> None:
        self._source = source
        self._target = target
        self._is_server_able = True

    def copy(self, layout: StoreLayout, ref: ObjectRef, found_bytes: int | None) -> CopiedObject:
        """Copy an object, unless the target has it; `found_bytes` is the size in a listing of the target.

        Raises ObjectNotFoundError if the source has lost it, StoreError.
        """
        key = layout.data_key(ref.name)
        if found_bytes == ref.size_bytes and self._has(key, ref):
            return CopiedObject(was_there=True)
        place = self._source.place_of(key)
        if place is not None and self._is_server_able:
            self._is_server_able = self._target.copy(place, key, ref.size_bytes)
            if self._is_server_able and self._has(key, ref):
                return CopiedObject()
        return self._copy_through_here(layout, ref)

    def _has(self, key: str, ref: ObjectRef) -> bool:
        """Whether the target has the committed object."""
        position = ref.size_bytes - FOOTER.size_bytes
        try:
            return decode_footer(self._target.get_range(key, position, FOOTER.size_bytes), ref.name) == ref
        except (ObjectNotFoundError, *_DAMAGE):
            return False

    def _copy_through_here(self, layout: StoreLayout, ref: ObjectRef) -> CopiedObject:
        damage = ""
        for _ in range(2):
            try:
                self._stream(layout.data_key(ref.name), ref, read_directory(self._source, layout, ref))
            except _DAMAGE as error:
                damage = str(error)
            else:
                return CopiedObject(through_here=True)
        self._stream(layout.data_key(ref.name), ref, ())
        return CopiedObject(through_here=True, damage=damage)

    def _stream(self, key: str, ref: ObjectRef, entries: Sequence[SliceEntry]) -> None:
        """Read and write the object once. Raises StoreCorruptError if a part of one of these slices fails its
        checksum; nothing is stored then."""
        part_bytes = max(PART_BYTES, -(-ref.size_bytes // _MAX_PARTS))
        with contextlib.closing(self._source.open_range(key, 0, ref.size_bytes)) as stream:
            pieces = iter(lambda: stream.read(READ_BYTES), b"")
            self._target.put_parts(key, _checked(pieces, ref.name, entries), part_bytes=part_bytes)


class _Part(NamedTuple):
    position: int
    end_position: int
    crc: int


def _parts_of(entries: Sequence[SliceEntry]) -> Iterator[_Part]:
    """The parts of an object that have a checksum in its directory."""
    for entry in entries:
        if entry.data_bytes:
            yield _Part(entry.data_position, entry.data_end_position, entry.data_crc)
        for ref in (entry.key_stream, entry.index):
            if ref is not None and ref.size_bytes:
                yield _Part(ref.position, ref.position + ref.size_bytes, ref.crc)


def _checked(pieces: Iterable[bytes], name: str, entries: Sequence[SliceEntry]) -> Iterator[bytes]:
    """The pieces of an object, which raise StoreCorruptError behind a part that fails its checksum."""
    parts = sorted(_parts_of(entries), reverse=True)
    position = crc = 0
    for piece in pieces:
        view, end_position = memoryview(piece), position + len(piece)
        while parts and parts[-1].position < end_position:
            part = parts[-1]
            start, end = max(part.position, position), min(part.end_position, end_position)
            crc = crc32c.crc32c(view[start - position : end - position], crc)
            if part.end_position > end_position:
                break
            if crc != part.crc:
                raise StoreCorruptError(
                    "a part of an object fails its checksum; restore the object from a copy",
                    name=name,
                    position=part.position,
                )
            parts.pop()
            crc = 0
        position = end_position
        yield piece
