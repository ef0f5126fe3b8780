"""A page of a checkpoint: rows of one kind, in the order of their keys. docs/formats/metadata.md has the
fields.

The text of a page is lines. The first is a JSON object with the kind and the columns. In format 1 each other
line is one row, an array in the order of the columns; in format 2 each other line is one column, see
`page_columns`. The first columns are the key, by which rows ascend; they hold integers and short names. In
memory a page is its columns, whatever its format was. A reader makes objects only of the rows that it wants,
and a fold copies unchanged rows as they are.

A page does not name its checkpoint, so later checkpoints can share it: its text depends on its rows and its
format alone.
"""

from __future__ import annotations

import bisect
import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import crc32c

from stratalog.base.errors import StoreCorruptError
from stratalog.remote.json_document import (
    JsonFields,
    JsonObject,
    decode_fields,
    format_json,
    stored_text,
    to_integer,
    to_items,
    to_row,
    to_text,
)
from stratalog.remote.metadata.head.document_ref import FileKind, TrackedFile, newest_seq_of
from stratalog.remote.metadata.head.page_columns import (
    MAX_ROWS,
    Column,
    Encoding,
    Encodings,
    decode_columns,
    encode_columns,
    memory_bytes,
    packed,
)

RowKey = tuple[str | int, ...]
Row = Sequence[object]

PAGE_FORMAT = "stratalog-page"
ROWS_FORMAT = 1
"""The format of a page with a line for each row."""
COLUMNS_FORMAT = 2
"""The format of a page with a line for each column."""
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
    encodings: Encodings = field(default_factory=dict[str, Encoding])
    """How pages by columns hold the columns."""


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

    def is_of(self, data: bytes) -> bool:
        """Whether `data` is the page as it is stored."""
        return len(data) == self.size_bytes and crc32c.crc32c(data) == self.crc

    def verify(self, data: bytes, what: str) -> None:
        """Check the data of the page. Raises StoreCorruptError if `data` is not the page."""
        if not self.is_of(data):
            raise StoreCorruptError(
                "a page is not the one that was written; restore it from a backup", what=what
            )


class Page:
    """The rows of a page, by columns. Immutable."""

    __slots__ = ("_key_size", "columns", "row_count", "values", "what")

    def __init__(
        self, columns: tuple[str, ...], values: Sequence[Column], row_count: int, key_size: int, what: str
    ) -> None:
        """`values`: those of the rows, for each of `columns`."""
        self.columns = columns
        self.values = values
        self.row_count = row_count
        self._key_size = key_size
        self.what = what

    @property
    def memory_bytes(self) -> int:
        """About the size in memory."""
        return sum(map(memory_bytes, self.values))

    def key(self, index: int) -> RowKey:
        """The key of a row."""
        return cast("RowKey", tuple([column[index] for column in self.values[: self._key_size]]))

    def index_of(self, key: RowKey) -> int:
        """The index of the first row that is not below `key`."""
        return self._indexes_of(key).start

    def index_behind(self, key: RowKey) -> int:
        """The index of the first row above `key`."""
        return self._indexes_of(key).stop

    def _indexes_of(self, key: RowKey) -> range:
        """The rows with this key, or the empty range between those below and above it."""
        start, stop = 0, self.row_count
        for column, value in zip(self.values, key, strict=False):
            # Rows that agree in the columns before ascend in this one.
            ascending = cast("Sequence[Any]", column)
            start = bisect.bisect_left(ascending, value, start, stop)
            stop = bisect.bisect_right(ascending, value, start, stop)
        return range(start, stop)

    def part(self, start: int, end: int) -> Page:
        """Some of the rows."""
        values = [column[start:end] for column in self.values]
        return Page(self.columns, values, end - start, self._key_size, self.what)

    def row(self, index: int) -> JsonFields:
        """A row by column name."""
        values = [column[index] for column in self.values]
        return JsonFields(dict(zip(self.columns, values, strict=True)), f"{self.what}: rows")

    def rows(self) -> Iterator[JsonFields]:
        """All rows by column name."""
        what = f"{self.what}: rows"
        for values in zip(*self.values, strict=True):
            yield JsonFields(dict(zip(self.columns, values, strict=True)), what)

    def with_columns(self, columns: tuple[str, ...]) -> Page:
        """The page with these columns, which are all of its own and more; a row is null in a new one."""
        if columns == self.columns:
            return self
        known = dict(zip(self.columns, self.values, strict=True))
        nothing: Column = [None] * self.row_count
        values = [known.get(name, nothing) for name in columns]
        return Page(columns, values, self.row_count, self._key_size, self.what)

    def text(self, kind: str, page_format: int, encodings: Encodings) -> str:
        """The text of the page in a format. `encodings`: those of its columns in format 2."""
        header: dict[str, object] = {
            "format": PAGE_FORMAT,
            "read_version": page_format,
            "write_version": page_format,
            "kind": kind,
        }
        if page_format == ROWS_FORMAT:
            header["columns"] = self.columns
            return "\n".join([format_json(header), *map(format_json, zip(*self.values, strict=True))])
        encoded = encode_columns(dict(zip(self.columns, self.values, strict=True)), encodings)
        header |= {"row_count": self.row_count, "columns": self.columns, "lines": encoded.lines}
        return "\n".join([format_json(header), *encoded.texts])


def digest_of(text: str) -> str:
    """The digest of a page's text."""
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def decode_page(data: bytes, what: str, ref: PageRef) -> Page:
    """The page in stored bytes, which the caller has verified. Raises StoreCorruptError,
    StoreNotUsableError."""
    kind, page = _decode(data, what, len(ref.first_key))
    if kind != ref.kind:
        raise StoreCorruptError(
            "a page is of another kind than its checkpoint says; restore it from a backup",
            what=what,
            kind=kind,
            expected=ref.kind,
        )
    if page.row_count != ref.row_count or (page.key(0), page.key(-1)) != (ref.first_key, ref.last_key):
        raise StoreCorruptError(
            "a page has other rows than its checkpoint says; restore it from a backup", what=what
        )
    return page


def check_page(data: bytes, what: str) -> Page:
    """The page, of which as much is checked as shows without the root that names it. Raises
    StoreCorruptError, StoreNotUsableError."""
    return _decode(data, what, 1)[1]


def _decode(data: bytes, what: str, key_size: int) -> tuple[str, Page]:
    """The kind of a page, and the page."""
    header, *lines = stored_text(data, what).split("\n")
    fields = decode_fields(header, what, format_name=PAGE_FORMAT, supported_version=COLUMNS_FORMAT)
    columns = _columns(fields)
    if fields.integer("read_version") == ROWS_FORMAT:
        row_count = len(lines)
        values = _by_rows(lines, len(columns), what)
    else:
        row_count = fields.integer("row_count", minimum=1, maximum=MAX_ROWS)
        values = _by_columns(fields, lines, columns, what)
    for column in values[:key_size]:
        if not isinstance(column, array) and not set(map(type, column)) <= {int, str}:
            raise StoreCorruptError("a row of a page has no key; keep the page and investigate", what=what)
    return fields.text("kind"), Page(columns, values, row_count, key_size, what)


def _by_rows(lines: Sequence[str], column_count: int, what: str) -> Sequence[Column]:
    """The columns of a page that has a line for each row."""
    try:
        rows: object = json.loads(f"[{','.join(lines)}]")
    except (ValueError, RecursionError) as error:
        raise StoreCorruptError(
            "a row of a page is not JSON; keep the page and investigate", what=what, reason=error
        ) from error
    arrays = [to_row(row, f"{what}: rows", column_count) for row in to_row(rows, f"{what}: rows", len(lines))]
    return [packed(column) for column in zip(*arrays, strict=True)]


def _by_columns(
    fields: JsonFields, lines: Sequence[str], columns: Sequence[str], what: str
) -> Sequence[Column]:
    """The columns of a page that has a line for each of them."""
    described = fields.each("lines", _parse_line)
    if len(described) != len(lines):
        raise fields.fault("lines", f"a list of {len(lines)}")
    found: Mapping[str, Column] = decode_columns(described, lines, fields.integer("row_count"), what)
    missing = [name for name in columns if name not in found]
    if missing:
        raise fields.fault("lines", f"lines of {', '.join(missing)}")
    return [found[name] for name in columns]


def _parse_line(item: object, what: str) -> tuple[str, ...]:
    words = tuple(to_text(word, what) for word in to_items(item, what))
    if len(words) < 2:
        raise StoreCorruptError("a column and its encoding are expected here", what=what)
    return words


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
