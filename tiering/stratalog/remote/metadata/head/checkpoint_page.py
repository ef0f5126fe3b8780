"""A page of a checkpoint: rows of one kind, in the order of their keys. docs/formats/metadata.md has the
fields.

The text of a page is lines. The first is a JSON object with the kind and the columns; each other line is one
row, an array in the order of the columns. The first columns are the key, by which rows ascend; they hold
integers and short names, so a line's key can be read without parsing the line. A reader parses only the rows
that it wants, and a fold copies the lines of unchanged rows as they are.

A page does not name its checkpoint, so later checkpoints can share it: its bytes depend on its rows alone.
"""

from __future__ import annotations

import bisect
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import crc32c

from stratalog.base.errors import StoreCorruptError
from stratalog.remote.json_document import (
    FORMAT_VERSION,
    JsonFields,
    JsonObject,
    decode_fields,
    format_json,
    stored_text,
    to_integer,
    to_row,
    to_text,
)
from stratalog.remote.metadata.head.document_ref import FileKind, TrackedFile, newest_seq_of

RowKey = tuple[str | int, ...]
Row = Sequence[object]

PAGE_FORMAT = "stratalog-page"
_DIGEST_BYTES = 16


class KeyRange(NamedTuple):
    """Keys of rows, both ends inclusive."""

    first: RowKey
    last: RowKey


@dataclass(frozen=True, slots=True)
class TableChange:
    """The changes of one kind of rows since the checkpoint that a fold builds on. Immutable."""

    columns: tuple[str, ...]
    key_size: int
    """The number of columns, from the first on, that are a row's key."""
    gone: Sequence[KeyRange]
    """Ascending: stored rows in these ranges go, all others stay."""
    fresh: Sequence[tuple[RowKey, Row]]
    """Ascending rows to store. Each one's key is in a range of `gone`."""


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


class Page:
    """The rows of a page, as lines. Immutable."""

    __slots__ = ("_key_size", "columns", "lines", "what")

    def __init__(self, columns: tuple[str, ...], lines: Sequence[str], key_size: int, what: str) -> None:
        self.columns = columns
        self.lines = lines
        self._key_size = key_size
        self.what = what

    @property
    def memory_bytes(self) -> int:
        """About the size in memory."""
        return sum(map(len, self.lines)) + 64 * len(self.lines)

    def key(self, index: int) -> RowKey:
        """The key of a row. Raises StoreCorruptError."""
        try:
            return tuple(
                part[1:-1] if part[0] == '"' else int(part)
                for part in self.lines[index][1:].split(",", self._key_size)[: self._key_size]
            )
        except (ValueError, IndexError) as error:
            raise StoreCorruptError(
                "a row of a page has no key; keep the page and investigate", what=self.what, row=index
            ) from error

    def index_of(self, key: RowKey) -> int:
        """The index of the first row that is not below `key`."""
        return bisect.bisect_left(range(len(self.lines)), key, key=self.key)

    def index_behind(self, key: RowKey) -> int:
        """The index of the first row above `key`."""
        return bisect.bisect_right(range(len(self.lines)), key, key=self.key)

    def part(self, start: int, end: int) -> Page:
        """Some of the rows."""
        return Page(self.columns, self.lines[start:end], self._key_size, self.what)

    def row(self, index: int) -> JsonFields:
        """A row by column name. Raises StoreCorruptError."""
        return JsonFields(dict(zip(self.columns, self._values(index), strict=True)), f"{self.what}: rows")

    def rows(self) -> list[JsonFields]:
        """All rows by column name. Raises StoreCorruptError."""
        return [self.row(index) for index in range(len(self.lines))]

    def with_columns(self, columns: tuple[str, ...]) -> Page:
        """The page with these columns, which are all of its own and more; a row is null in a new one."""
        if columns == self.columns:
            return self
        lines: list[str] = []
        for index in range(len(self.lines)):
            values = dict(zip(self.columns, self._values(index), strict=True))
            lines.append(format_json([values.get(name) for name in columns]))
        return Page(columns, lines, self._key_size, self.what)

    def _values(self, index: int) -> Sequence[object]:
        try:
            value: object = json.loads(self.lines[index])
        except (ValueError, RecursionError) as error:
            raise StoreCorruptError(
                "a row of a page is not JSON; keep the page and investigate", what=self.what, row=index
            ) from error
        return to_row(value, f"{self.what}: rows", len(self.columns))


def format_row(row: Row, added: Sequence[str], extras: JsonObject | None) -> str:
    """The line of a row, with `added` columns of which `extras` has the values."""
    if not added:
        return format_json(row)
    given: JsonObject = extras or {}
    return format_json([*row, *(given.get(name) for name in added)])


def format_page(kind: str, columns: Sequence[str], lines: Sequence[str]) -> str:
    """Text of a page."""
    header = format_json(
        {
            "format": PAGE_FORMAT,
            "read_version": FORMAT_VERSION,
            "write_version": FORMAT_VERSION,
            "kind": kind,
            "columns": list(columns),
        }
    )
    return "\n".join([header, *lines])


def digest_of(text: str) -> str:
    """The digest of a page's text."""
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def decode_page(data: bytes, what: str, ref: PageRef) -> Page:
    """The page in stored bytes, which the caller has verified. Raises StoreCorruptError,
    StoreNotUsableError."""
    fields, lines = _decode(data, what)
    if fields.text("kind") != ref.kind:
        raise fields.fault("kind", f"a page of {ref.kind}")
    page = Page(_columns(fields), lines, len(ref.first_key), what)
    if len(lines) != ref.row_count or (page.key(0), page.key(-1)) != (ref.first_key, ref.last_key):
        raise StoreCorruptError(
            "a page has other rows than its checkpoint says; restore it from a backup", what=what
        )
    return page


def check_page(data: bytes, what: str) -> None:
    """Check as much of a page as shows without the root that names it. Raises StoreCorruptError,
    StoreNotUsableError."""
    fields, lines = _decode(data, what)
    fields.text("kind")
    Page(_columns(fields), lines, 1, what).rows()


def _decode(data: bytes, what: str) -> tuple[JsonFields, list[str]]:
    header, *lines = stored_text(data, what).split("\n")
    return decode_fields(header, what, format_name=PAGE_FORMAT), lines


def _columns(fields: JsonFields) -> tuple[str, ...]:
    columns = fields.each("columns", to_text)
    if len(set(columns)) != len(columns):
        raise fields.fault("columns", "different names")
    return columns


def _parse_key(fields: JsonFields, name: str) -> RowKey:
    return tuple(
        item if isinstance(item, str) else to_integer(item, f"{fields.what}: {name}")
        for item in fields.items(name)
    )
