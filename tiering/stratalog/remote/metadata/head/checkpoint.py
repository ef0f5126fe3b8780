"""A checkpoint: the full state up to some commit, as a root and the pages that it names.

    {"format":"stratalog-checkpoint","read_version":N,"write_version":N,"store_id":UUID,"shard":N or null,
     "seq":N,"uuid":UUID,"time_ms":N,"base":NAME or null,"epoch":N,"horizon":N,"catalog_seq":N,
     "history_start":N,"pins":[...],"times":[[TIME_MS,SEQ]...],"pages":[PAGE...],
     and the fields of the kind of state}

Rows of one kind are divided into pages by ranges of their keys. A checkpoint that replaces another keeps its
boundaries and shares every page whose rows did not change, so only changed pages are written. The root is
written last, and only the commit of a fold makes it the current one. The files of a fold that never committed
are orphans, under names that are never used again; the collector sweeps them.

`times` is a sparse table from time to commit: one entry for each fold, thinned towards the past.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from stratalog.base.errors import StoreCorruptError
from stratalog.base.randomness import IdGenerator
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.json_document import (
    FORMAT_VERSION,
    JsonFields,
    decode_document,
    encode_document,
    encode_text,
    require_writable,
    to_integer,
    to_row,
)
from stratalog.remote.metadata.head.checkpoint_page import PageRef, Table, decode_page, digest_of, format_page
from stratalog.remote.metadata.head.document_ref import DocumentRef, FileKind, TrackedFile
from stratalog.remote.store_layout import StoreLayout, format_checkpoint_name

T = TypeVar("T")

_FORMAT = "stratalog-checkpoint"
_MAX_TIMES = 1024
COMMON_FIELDS = frozenset(
    [
        "format",
        "read_version",
        "write_version",
        "store_id",
        "shard",
        "seq",
        "uuid",
        "time_ms",
        "base",
        "epoch",
        "horizon",
        "catalog_seq",
        "history_start",
        "pins",
        "times",
        "pages",
    ]
)


class TimePoint(NamedTuple):
    """A commit and when it was made."""

    time_ms: int
    seq: int


@dataclass(frozen=True, slots=True)
class CheckpointRoot:
    """The root of a checkpoint. Immutable."""

    ref: DocumentRef
    fields: JsonFields
    pages: tuple[PageRef, ...]
    times: tuple[TimePoint, ...]

    @property
    def files(self) -> tuple[TrackedFile, ...]:
        """The root itself and its pages."""
        root = TrackedFile(FileKind.CHECKPOINT, self.ref.name, self.ref.size_bytes)
        return (root, *(page.file for page in self.pages))


@dataclass(frozen=True, slots=True)
class CheckpointParts:
    """The fields and rows of a state. Immutable."""

    fields: JsonFields
    """The state's fields of the root."""
    tables: Mapping[str, Table[Any]]
    """Rows by kind, to be written."""
    rows: Mapping[str, Sequence[JsonFields]]
    """Rows by kind, as they were read."""


class CheckpointWriter:
    """Writes the checkpoints of one metadata log. Not thread-safe: a log's folder keeps one and lets one fold
    run at a time."""

    def __init__(
        self,
        store: ObjectStore,
        ids: IdGenerator,
        layout: StoreLayout,
        store_id: UUID,
        page_rows: int,
    ) -> None:
        self._store = store
        self._ids = ids
        self._layout = layout
        self._store_id = store_id
        self._page_rows = page_rows
        self._items_of_pages: dict[str, Sequence[object]] = {}
        """The items of the last checkpoint's pages, by name of the page. States share the items that a
        commit did not touch, so a page is unchanged if its items are the same objects."""

    def write(self, seq: int, parts: CheckpointParts, base: CheckpointRoot | None) -> CheckpointRoot:
        """Store changed pages, then the root. Raises StoreError; files stored before are orphans then."""
        base_pages = () if base is None else base.pages
        # Pages of a kind that this version does not know are taken over as they are.
        pages = [page for page in base_pages if page.kind not in parts.tables]
        items_of_pages: dict[str, Sequence[object]] = {}
        for kind, table in parts.tables.items():
            known = sorted(
                (page for page in base_pages if page.kind == kind), key=lambda page: page.first_key
            )
            for page, items in self._write_table(seq, kind, table, known):
                pages.append(page)
                items_of_pages[page.name] = items
        self._items_of_pages = items_of_pages
        times = _with_time(base, TimePoint(parts.fields.integer("time_ms"), seq))
        document: dict[str, object] = {
            "format": _FORMAT,
            "read_version": FORMAT_VERSION,
            "write_version": FORMAT_VERSION,
            "store_id": str(self._store_id),
            "shard": self._layout.shard,
            "seq": seq,
            "base": None if base is None else base.ref.name,
            **parts.fields.values,
            "times": [list(point) for point in times],
            "pages": [page.to_json() for page in pages],
        }
        data = encode_document(document)
        name = format_checkpoint_name(seq, self._ids.uuid())
        self._store.put(self._layout.checkpoint_key(name), data)
        return CheckpointRoot(DocumentRef.of(name, data), JsonFields(document, name), tuple(pages), times)

    def _write_table(
        self, seq: int, kind: str, table: Table[T], known: Sequence[PageRef]
    ) -> Iterator[tuple[PageRef, Sequence[T]]]:
        for page, items in _divide(table, known):
            if page is not None and _are_identical(self._items_of_pages.get(page.name, ()), items):
                yield page, items
                continue
            for start in range(0, len(items), self._page_rows):
                chunk = items[start : start + self._page_rows]
                text = format_page(kind, table, chunk)
                if page is not None and page.digest == digest_of(text):
                    yield page, chunk
                else:
                    yield self._write_page(seq, kind, table, chunk, text), chunk

    def _write_page(self, seq: int, kind: str, table: Table[T], items: Sequence[T], text: str) -> PageRef:
        data = encode_text(text)
        name = format_checkpoint_name(seq, self._ids.uuid())
        self._store.put(self._layout.page_key(name), data)
        ref = DocumentRef.of(name, data)
        return PageRef(
            kind=kind,
            name=name,
            first_key=table.key(items[0]),
            last_key=table.key(items[-1]),
            row_count=len(items),
            size_bytes=ref.size_bytes,
            crc=ref.crc,
            digest=digest_of(text),
        )


def _are_identical(before: Sequence[object], now: Sequence[object]) -> bool:
    return len(before) == len(now) > 0 and all(map(operator.is_, before, now))


def _divide(table: Table[T], known: Sequence[PageRef]) -> list[tuple[PageRef | None, Sequence[T]]]:
    """Divide the items at the boundaries of the known pages; each part goes with the page of its range."""
    if not known:
        return [(None, table.items)]
    # A page's range ends at the next page's first key; items below the first page join it.
    cuts = [0, *(bisect.bisect_left(table.items, page.first_key, key=table.key) for page in known[1:])]
    ends = [*cuts[1:], len(table.items)]
    return [(page, table.items[cut:end]) for page, cut, end in zip(known, cuts, ends, strict=True)]


def _with_time(base: CheckpointRoot | None, point: TimePoint) -> tuple[TimePoint, ...]:
    times = [*(() if base is None else base.times), point]
    if len(times) > _MAX_TIMES:
        half = len(times) // 2
        times[:half] = times[:half:2]
    return tuple(times)


def replaced_files(base: CheckpointRoot | None, root: CheckpointRoot) -> tuple[TrackedFile, ...]:
    """The files that the base needs and `root` does not; a fold drops them."""
    if base is None:
        return ()
    kept = {file.name for file in root.files}
    return tuple(file for file in base.files if file.name not in kept)


def read_root(store: ObjectStore, layout: StoreLayout, ref: DocumentRef) -> CheckpointRoot:
    """Read the root of a checkpoint. Raises ObjectNotFoundError, StoreCorruptError, StoreNotUsableError."""
    key = layout.checkpoint_key(ref.name)
    data = store.get(key).data
    ref.verify(data, key)
    fields = decode_document(data, key, format_name=_FORMAT)
    if fields.integer("seq") != ref.seq:
        raise fields.fault("seq", "the number in the name")
    pages = fields.each("pages", lambda item, what: PageRef.from_json(JsonFields.of(item, what)))
    return CheckpointRoot(ref, fields, pages, fields.each("times", _parse_time))


def read_root_to_replace(store: ObjectStore, layout: StoreLayout, ref: DocumentRef) -> CheckpointRoot:
    """Read a root for a fold to build on. Raises as `read_root`, and StoreNotUsableError if only newer
    software may write.
    """
    root = read_root(store, layout, ref)
    require_writable(root.fields.integer("write_version", minimum=1), root.fields.what)
    return root


def read_checkpoint(store: ObjectStore, layout: StoreLayout, ref: DocumentRef) -> CheckpointParts:
    """The whole state, root and pages. Raises as `read_root`."""
    root = read_root(store, layout, ref)
    rows: dict[str, list[JsonFields]] = {}
    for page in root.pages:
        key = layout.page_key(page.name)
        data = store.get(key).data
        page.verify(data, key)
        found = decode_page(data, key, page.kind)
        if len(found) != page.row_count:
            raise StoreCorruptError(
                "a page has another number of rows than its checkpoint says; restore it from a backup",
                what=key,
            )
        rows.setdefault(page.kind, []).extend(found)
    return CheckpointParts(root.fields, {}, rows)


def _parse_time(item: object, what: str) -> TimePoint:
    time_ms, seq = to_row(item, what, 2)
    return TimePoint(to_integer(time_ms, what), to_integer(seq, what))
