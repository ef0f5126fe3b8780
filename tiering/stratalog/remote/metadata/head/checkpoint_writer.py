"""Writes checkpoints: the changed pages, then the root.

A checkpoint that replaces another keeps its boundaries and shares every page whose rows did not change. Only
the pages whose range holds a change are read, merged with the changes and written again, so the work is
proportional to what changed. The root is written last, and only the commit of a fold makes it the current
one. The files of a fold that never committed are orphans, under names that are never used again; the
collector sweeps them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from uuid import UUID

from stratalog.base.randomness import IdGenerator
from stratalog.remote.json_document import FORMAT_VERSION, JsonFields, encode_document, encode_text
from stratalog.remote.metadata.head.checkpoint import (
    CHECKPOINT_FORMAT,
    CheckpointFolder,
    CheckpointRoot,
    TimePoint,
)
from stratalog.remote.metadata.head.checkpoint_page import (
    COLUMNS_FORMAT,
    ROWS_FORMAT,
    Page,
    PageRef,
    TableChange,
    digest_of,
)
from stratalog.remote.metadata.head.document_ref import DocumentRef, TrackedFile
from stratalog.remote.metadata.head.metadata_version import COLUMN_PAGES_VERSION, METADATA_VERSION
from stratalog.remote.metadata.head.page_rewrite import PageRewrite, divided, merged, plan_rewrites
from stratalog.remote.store_layout import format_checkpoint_name

_MAX_TIMES = 1024
_PAGES_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class CheckpointChanges:
    """A state as a fold writes it: its fields, and what changed in its rows. Immutable."""

    fields: JsonFields
    """The state's fields of the root."""
    tables: Mapping[str, TableChange]
    """Changes since the base checkpoint, by kind; those of every kind that this version knows."""


class PageWrite(NamedTuple):
    """The pages of one kind that a fold writes."""

    seq: int
    """The commit of the checkpoint."""
    kind: str
    change: TableChange
    page_format: int


class CheckpointWriter:
    """Writes the checkpoints of one metadata log. Thread-safe: it keeps nothing between calls."""

    def __init__(self, folder: CheckpointFolder, ids: IdGenerator, store_id: UUID, page_rows: int) -> None:
        self._folder = folder
        self._ids = ids
        self._store_id = store_id
        self._page_rows = page_rows

    def write(
        self,
        seq: int,
        changes: CheckpointChanges,
        base: CheckpointRoot | None,
        *,
        replaced: Sequence[TrackedFile] = (),
        metadata_version: int = METADATA_VERSION,
    ) -> CheckpointRoot:
        """Store changed pages, then the root. `replaced`: files that its fold drops besides those of `base`.
        `metadata_version`: the finalized one, whose software must be able to read the pages. Raises
        StoreError; files stored before are orphans then.
        """
        page_format = COLUMNS_FORMAT if metadata_version >= COLUMN_PAGES_VERSION else ROWS_FORMAT
        base_pages = () if base is None else base.pages
        # Pages of a kind that this version does not know are taken over as they are.
        pages = [page for page in base_pages if page.kind not in changes.tables]
        for kind, change in changes.tables.items():
            known = sorted(
                (page for page in base_pages if page.kind == kind), key=lambda page: page.first_key
            )
            pages += self._write_table(PageWrite(seq, kind, change, page_format), known)
        times = _with_time(base, TimePoint(changes.fields.integer("time_ms"), seq))
        replaced = (*replaced, *_replaced_files(base, {page.name for page in pages}))
        layout = self._folder.layout
        document: dict[str, object] = {
            "format": CHECKPOINT_FORMAT,
            "read_version": FORMAT_VERSION,
            "write_version": FORMAT_VERSION,
            "store_id": str(self._store_id),
            "shard": layout.shard,
            "seq": seq,
            "base": None if base is None else base.ref.name,
            **changes.fields.values,
            "metadata_version": metadata_version,
            "times": [list(point) for point in times],
            "replaced": [file.to_json() for file in replaced],
            "pages": [page.to_json() for page in pages],
        }
        data = encode_document(document)
        name = format_checkpoint_name(seq, self._ids.uuid())
        self._folder.store.put(layout.checkpoint_key(name), data)
        return CheckpointRoot(
            ref=DocumentRef.of(name, data),
            fields=JsonFields(document, name),
            pages=tuple(pages),
            times=times,
            replaced=replaced,
        )

    def _write_table(self, write: PageWrite, known: Sequence[PageRef]) -> Iterator[PageRef]:
        """The pages of a kind. Only those whose ranges hold a change are read and written again."""
        rewrites = plan_rewrites(write.change, known, self._page_rows)
        written: dict[int, Sequence[PageRef]] = {}
        for start in range(0, len(rewrites), _PAGES_AT_ONCE):
            part = rewrites[start : start + _PAGES_AT_ONCE]
            works = [partial(self._rewrite, write, rewrite) for rewrite in part]
            results = self._folder.loader.run_all(works)
            written.update((rewrite.first_page, pages) for rewrite, pages in zip(part, results, strict=True))
        if not known:
            yield from (page for pages in written.values() for page in pages)
            return
        replaced = {rewrite.first_page + n for rewrite in rewrites for n in range(len(rewrite.pages))}
        for number, page in enumerate(known):
            if number not in replaced:
                yield page
            yield from written.get(number, ())

    def _rewrite(self, write: PageWrite, rewrite: PageRewrite) -> Sequence[PageRef]:
        """Merge the rows of some pages with the changes in their range, and store what is new."""
        folder = self._folder
        rows = merged(write.change, rewrite, [folder.read_page(page) for page in rewrite.pages])
        pages: list[PageRef] = []
        for chunk in divided(rows, self._page_rows):
            text = chunk.text(write.kind, write.page_format, write.change.encodings)
            digest = digest_of(text)
            same = next((page for page in rewrite.pages if page.digest == digest), None)
            pages.append(same or self._write_page(write, chunk, text, digest))
        return pages

    def _write_page(self, write: PageWrite, rows: Page, text: str, digest: str) -> PageRef:
        data = encode_text(text)
        name = format_checkpoint_name(write.seq, self._ids.uuid())
        self._folder.store.put(self._folder.layout.page_key(name), data)
        self._folder.loader.keep(self._folder.layout, name, data)
        ref = DocumentRef.of(name, data)
        return PageRef(
            kind=write.kind,
            name=name,
            first_key=rows.key(0),
            last_key=rows.key(-1),
            row_count=rows.row_count,
            size_bytes=ref.size_bytes,
            crc=ref.crc,
            digest=digest,
        )


def _with_time(base: CheckpointRoot | None, point: TimePoint) -> tuple[TimePoint, ...]:
    times = [*(() if base is None else base.times), point]
    if len(times) > _MAX_TIMES:
        half = len(times) // 2
        times[:half] = times[:half:2]
    return tuple(times)


def _replaced_files(base: CheckpointRoot | None, kept: Collection[str]) -> tuple[TrackedFile, ...]:
    """The files that the base needs and a checkpoint of the pages `kept` does not."""
    if base is None:
        return ()
    return tuple(file for file in base.files if file.name not in kept)
