"""A checkpoint: the full state up to some commit, as a root and the pages that it names.

    {"format":"stratalog-checkpoint","read_version":N,"write_version":N,"store_id":UUID,"shard":N or null,
     "seq":N,"uuid":UUID,"time_ms":N,"base":NAME or null,"epoch":N,"horizon":N,"catalog_seq":N,
     "history_start":N,"deleted_seq":N,"deleted_brought_seq":N,"pins":[...],"replacements":[...],
     "metadata_version":N,"times":[[TIME_MS,SEQ]...],"replaced":[FILE...],"pages":[PAGE...],
     and the fields of the kind of state}

Rows of one kind are divided into pages by ranges of their keys. `checkpoint_writer` writes checkpoints. The
state does not keep all rows in memory: it may read a page when it wants one.

`metadata_version` is the finalized one, for a head that has to be rebuilt; earlier software wrote none.
`times` is a sparse table from time to commit: one entry for each fold, thinned towards the past. `replaced`
has the files of the base that this checkpoint does not share; its fold drops them. `replacements` has the
folds whose replaced files still wait, by the roots that name them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.json_document import JsonFields, decode_document, require_writable, to_integer, to_row
from stratalog.remote.metadata.head.checkpoint_page import Page, PageRef
from stratalog.remote.metadata.head.document_ref import (
    DocumentRef,
    FileKind,
    TrackedFile,
    parse_tracked_file,
)
from stratalog.remote.metadata.head.metadata_version import FIRST_VERSION, UNRECORDED_VERSION
from stratalog.remote.metadata.head.page_loader import PageLoader
from stratalog.remote.store_layout import StoreLayout

CHECKPOINT_FORMAT = "stratalog-checkpoint"
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
        "deleted_seq",
        "deleted_brought_seq",
        "pins",
        "replacements",
        "metadata_version",
        "times",
        "replaced",
        "pages",
    ]
)


class TimePoint(NamedTuple):
    """A commit and when it was made."""

    time_ms: int
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRoot:
    """The root of a checkpoint. Immutable."""

    ref: DocumentRef
    fields: JsonFields
    pages: tuple[PageRef, ...]
    times: tuple[TimePoint, ...]
    replaced: tuple[TrackedFile, ...] = ()
    """The files of its base that it does not share."""

    @property
    def metadata_version(self) -> int:
        """The metadata version that was finalized when this was written; the last one that kept no record of
        it if there is none."""
        found = self.fields.optional_integer("metadata_version", minimum=FIRST_VERSION)
        return UNRECORDED_VERSION if found is None else found

    @property
    def files(self) -> tuple[TrackedFile, ...]:
        """The root itself and its pages."""
        root = TrackedFile(FileKind.CHECKPOINT, self.ref.name, self.ref.size_bytes)
        return (root, *(page.file for page in self.pages))

    def pages_of(self, kind: str) -> tuple[PageRef, ...]:
        """The pages of a kind, in the order of their keys."""
        found = (page for page in self.pages if page.kind == kind)
        return tuple(sorted(found, key=lambda page: page.first_key))


class CheckpointFolder:
    """Reads the checkpoints of one log. Thread-safe: the loader is, and the last root is replaced whole."""

    def __init__(self, store: ObjectStore, layout: StoreLayout, loader: PageLoader) -> None:
        self.store = store
        self.layout = layout
        self.loader = loader
        self._last: CheckpointRoot | None = None

    def root(self, ref: DocumentRef) -> CheckpointRoot:
        """The root: one GET, unless it is the last one again. Raises as `read_root`."""
        last = self._last
        if last is None or last.ref != ref:
            last = self._last = read_root(self.store, self.layout, ref)
        return last

    def root_to_replace(self, ref: DocumentRef) -> CheckpointRoot:
        """The root, for a fold to build on. Raises as `root`, and StoreNotUsableError if only newer software
        may write.
        """
        root = self.root(ref)
        require_writable(root.fields.integer("write_version", minimum=1), root.fields.what)
        return root

    def keep(self, root: CheckpointRoot) -> None:
        """Remember a root that was just written."""
        self._last = root

    def page(self, ref: PageRef) -> Page:
        """A page, through the cache. Raises as `PageLoader.page`."""
        return self.loader.page(self.store, self.layout, ref)

    def read_ahead(self, refs: Iterable[PageRef]) -> None:
        """Read pages together that `page` will be asked for. Raises as `PageLoader.page`."""
        self.loader.read_ahead(self.store, self.layout, refs)

    def read_page(self, ref: PageRef) -> Page:
        """A page, past the cache. Raises as `page`."""
        return self.loader.read(self.store, self.layout, ref)

    def rows(self, root: CheckpointRoot, kind: str) -> list[JsonFields]:
        """All rows of a kind. Raises as `PageLoader.page`."""
        reads = [partial(self.read_page, ref) for ref in root.pages_of(kind)]
        pages = self.loader.run_all(reads)
        return [row for page in pages for row in page.rows()]


def read_root(store: ObjectStore, layout: StoreLayout, ref: DocumentRef) -> CheckpointRoot:
    """Read the root of a checkpoint. Raises ObjectNotFoundError, StoreCorruptError, StoreNotUsableError."""
    key = layout.checkpoint_key(ref.name)
    data = store.get(key).data
    ref.verify(data, key)
    fields = decode_document(data, key, format_name=CHECKPOINT_FORMAT)
    if fields.integer("seq") != ref.seq:
        raise fields.fault("seq", "the number in the name")
    pages = fields.each("pages", lambda item, what: PageRef.from_json(JsonFields.of(item, what)))
    return CheckpointRoot(
        ref=ref,
        fields=fields,
        pages=pages,
        times=fields.each("times", _parse_time),
        replaced=fields.each("replaced", parse_tracked_file),
    )


def read_replaced(store: ObjectStore, layout: StoreLayout, ref: DocumentRef) -> tuple[TrackedFile, ...]:
    """The files that a checkpoint replaced, by its root. Raises as `read_root`."""
    key = layout.checkpoint_key(ref.name)
    data = store.get(key).data
    ref.verify(data, key)
    return decode_document(data, key, format_name=CHECKPOINT_FORMAT).each("replaced", parse_tracked_file)


def _parse_time(item: object, what: str) -> TimePoint:
    time_ms, seq = to_row(item, what, 2)
    return TimePoint(to_integer(time_ms, what), to_integer(seq, what))
