"""What a dump is made of, whichever file it comes from.

A dump is a row of entries and of corrupt places, in the order of the file. Entries are JSON objects already;
the text form is made from them (see `log_dump_text`), so that both say the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stratalog.cli.record_json import JsonValue


class DumpEntry(NamedTuple):
    """One batch, record, index entry, producer, line. `type` tells which, and so which fields there are."""

    type: str
    fields: dict[str, JsonValue]


class CorruptPlace(NamedTuple):
    """Something that the file should not hold, or that does not fit the file beside it."""

    position: int | None
    """Where in the file; None where the file is wrong as a whole."""
    reason: str
    unreached_bytes: int = 0
    """So many from the position on could not be looked at."""


DumpItem = DumpEntry | CorruptPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """What to print of a file."""

    with_records: bool = False
    """Records under their batches."""
    from_offset: int = 0
    """Leave out what lies below, in segments and indexes."""
    compares_indexes: bool = False
    """Hold each entry of an index against the segment beside it."""
