"""Rows of a dump, and the corrupt places between them, which codecs yield in the order of the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from stratalog.cli.log_dump.dumped_file import DumpedFile
from stratalog.cli.records.record_json import JsonValue


class Row(NamedTuple):
    """One batch, record, index entry, producer or line. `type` names the kind of row and so its fields."""

    type: str
    fields: dict[str, JsonValue]


class CorruptPlace(NamedTuple):
    """A place that no writer of such a file leaves, or that contradicts the segment beside it."""

    position: int | None
    """Where in the file, in bytes; None if the file is wrong as a whole."""
    reason: str
    unreached_bytes: int = 0
    """Bytes from the position on that the codec could not decode."""


DumpItem = Row | CorruptPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """Which rows of a file to yield."""

    with_records: bool = False
    """Yield the records after their batch."""
    from_offset: int = 0
    """Leave out lower offsets, in segments and indexes."""
    compares_indexes: bool = False
    """Compare each index entry with the segment beside it."""


Codec = Callable[[DumpedFile, DumpOptions], Iterator[DumpItem]]
"""Decodes one kind of file. Raises OSError; everything else that is wrong is a CorruptPlace."""
