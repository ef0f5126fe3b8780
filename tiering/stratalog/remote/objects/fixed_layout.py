"""Little-endian binary fields at fixed places, each place derived from the field before it.

The tuple of fields, in order, is the only table of a structure. Writing, reading and the tables in
docs/formats follow from it, so no position is typed by hand. Immutable, so thread-safe.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Container, Iterable, Mapping
from typing import Any

Buffer = bytes | bytearray | memoryview

ALIGNMENT_BYTES = 8
"""Parts with columns begin at a multiple of this, so that they can be read in place."""


def padding_bytes(size_bytes: int) -> int:
    """The number of zero bytes from `size_bytes` to the next multiple of `ALIGNMENT_BYTES`."""
    return -size_bytes % ALIGNMENT_BYTES


class FixedLayout:
    """Named fields without gaps, with the types of ``struct``: B H I Q unsigned, i q signed, Ns bytes.
    Immutable.
    """

    __slots__ = ("_struct", "fields", "positions", "size_bytes")

    def __init__(self, *fields: tuple[str, str]) -> None:
        self.fields = fields
        self._struct = struct.Struct("<" + "".join(code for _, code in fields))
        self.size_bytes = self._struct.size
        self.positions: dict[str, int] = {}
        position = 0
        for name, code in fields:
            assert name not in self.positions, f"field {name} is named twice"
            self.positions[name] = position
            position += struct.calcsize("<" + code)
        # A little-endian ``struct`` has no hidden gaps, so the derived places end where it ends.
        assert position == self.size_bytes

    def pack(self, *values: object) -> bytes:
        """Encode all fields, in order. Raises struct.error where a value does not fit."""
        return self._struct.pack(*values)

    def unpack(self, buffer: Buffer, position: int = 0) -> tuple[Any, ...]:
        """Decode all fields, in order, from `position`. Raises struct.error where the buffer is too short."""
        return self._struct.unpack_from(buffer, position)

    def pack_rows(self, columns: Mapping[str, Iterable[object]]) -> bytes:
        """Encode rows, given as a column for each field. Raises struct.error where a value does not fit."""
        values = zip(*[columns[name] for name in self.positions], strict=True)
        return b"".join(itertools.starmap(self._struct.pack, values))

    def unpack_rows(
        self,
        buffer: Buffer,
        position: int,
        row_count: int,
        row_bytes: int,
        names: Container[str] | None = None,
    ) -> dict[str, tuple[Any, ...]]:
        """Decode rows of `row_bytes`, which begin with all fields, as columns: those of all fields, or of
        some. The buffer must have all of them."""
        wanted = [name for name, _ in self.fields if names is None or name in names]
        codes = [code if name in wanted else f"{struct.calcsize(code)}x" for name, code in self.fields]
        rows = struct.Struct(f"<{''.join(codes)}{row_bytes - self.size_bytes}x")
        unpacked = rows.iter_unpack(memoryview(buffer)[position : position + row_count * row_bytes])
        columns = zip(*unpacked, strict=True) if row_count else ((),) * len(wanted)
        return dict(zip(wanted, columns, strict=True))

    def packed(self, name: str) -> tuple[int, str]:
        """The position of a field, and its type."""
        return self.positions[name], dict(self.fields)[name]
