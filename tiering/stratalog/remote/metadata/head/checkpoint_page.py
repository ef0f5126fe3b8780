"""A page of a checkpoint: rows of one kind, in the order of their keys. docs/formats/metadata.md has the
fields.

A row is an array in the order of `columns`. The first columns are the key, by which rows ascend. A page does
not name its checkpoint, so later checkpoints can share it: its bytes depend on its rows alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import crc32c

from stratalog.base.errors import StoreCorruptError
from stratalog.remote.json_document import (
    FORMAT_VERSION,
    JsonFields,
    JsonObject,
    decode_document,
    format_json,
    to_integer,
    to_items,
    to_row,
    to_text,
)
from stratalog.remote.metadata.head.document_ref import FileKind, TrackedFile, newest_seq_of

RowKey = tuple[str | int, ...]
Row = Sequence[object]
T = TypeVar("T")

_FORMAT = "stratalog-page"
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Table(Generic[T]):
    """All rows of one kind, as items that are formatted when their page is written. Immutable.

    An unchanged page is never formatted.
    """

    columns: tuple[str, ...]
    items: Sequence[T]
    """Ascending by key."""
    key: Callable[[T], RowKey]
    """The first columns of an item's row."""
    row: Callable[[T], Row]
    extras: Mapping[RowKey, JsonObject] = field(default_factory=dict[RowKey, JsonObject])
    """Values of columns that this version does not know, by key of the row."""


class PageRef(NamedTuple):
    """A page as the root of a checkpoint names it."""

    kind: str
    name: str
    first_key: RowKey
    last_key: RowKey
    """Inclusive."""
    row_count: int
    size_bytes: int
    crc: int
    digest: str
    """BLAKE2b-128 of the text, in hexadecimal. Pages with equal digests are equal."""

    def to_json(self) -> JsonObject:
        return self._asdict()

    @property
    def file(self) -> TrackedFile:
        return TrackedFile(FileKind.PAGE, self.name, self.size_bytes)

    @staticmethod
    def from_json(fields: JsonFields) -> PageRef:
        """Parse a reference. Raises StoreCorruptError."""
        name = fields.text("name")
        newest_seq_of(FileKind.PAGE, name)
        return PageRef(
            kind=fields.text("kind"),
            name=name,
            first_key=_parse_key(fields, "first_key"),
            last_key=_parse_key(fields, "last_key"),
            row_count=fields.integer("row_count", minimum=1),
            size_bytes=fields.integer("size_bytes"),
            crc=fields.integer("crc", maximum=(1 << 32) - 1),
            digest=fields.text("digest"),
        )

    def verify(self, data: bytes, what: str) -> None:
        """Check the data of the page. Raises StoreCorruptError if `data` is not the page."""
        if len(data) != self.size_bytes or crc32c.crc32c(data) != self.crc:
            raise StoreCorruptError(
                "a page is not the one that was written; restore it from a backup", what=what
            )


def format_page(kind: str, table: Table[T], items: Sequence[T]) -> str:
    """Text of a page that holds `items` of the table."""
    rows = [table.row(item) for item in items]
    extras = [table.extras.get(table.key(item), {}) for item in items] if table.extras else []
    added = tuple(sorted({name for extra in extras for name in extra}))
    if added:
        rows = [[*row, *(extra.get(name) for name in added)] for row, extra in zip(rows, extras, strict=True)]
    return format_json(
        {
            "format": _FORMAT,
            "read_version": FORMAT_VERSION,
            "write_version": FORMAT_VERSION,
            "kind": kind,
            "columns": [*table.columns, *added],
            "rows": rows,
        }
    )


def digest_of(text: str) -> str:
    """The digest of a page's text."""
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def decode_page(data: bytes, what: str, kind: str) -> list[JsonFields]:
    """The rows by column name. Raises StoreCorruptError, StoreNotUsableError."""
    fields = decode_document(data, what, format_name=_FORMAT)
    if fields.text("kind") != kind:
        raise fields.fault("kind", f"a page of {kind}")
    columns = fields.each("columns", to_text)
    if len(set(columns)) != len(columns):
        raise fields.fault("columns", "different names")
    row_what = f"{what}: rows"
    return [
        JsonFields(dict(zip(columns, to_row(row, row_what, len(columns)), strict=True)), row_what)
        for row in to_items(fields.values.get("rows"), row_what)
    ]


def _parse_key(fields: JsonFields, name: str) -> RowKey:
    return tuple(
        item if isinstance(item, str) else to_integer(item, f"{fields.what}: {name}")
        for item in fields.items(name)
    )
