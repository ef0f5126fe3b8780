"""Checkpoint pages as tests make and read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.json_document import encode_text
from stratalog.remote.metadata.head.checkpoint_page import (
    COLUMNS_FORMAT,
    Page,
    PageRef,
    check_page,
    digest_of,
)
from stratalog.remote.metadata.head.document_ref import DocumentRef
from stratalog.remote.metadata.head.page_columns import Encodings
from stratalog.remote.store_layout import StoreLayout


def page_of_rows(rows: Sequence[Mapping[str, object]], key_size: int = 1) -> Page:
    """A page of these rows, which have the same columns."""
    columns = tuple(rows[0])
    values = [[row[name] for row in rows] for name in columns]
    return Page(columns, values, len(rows), key_size, "page")


def rows_of(page: Page) -> list[dict[str, object]]:
    """The rows of a page by column name."""
    return [dict(row.values) for row in page.rows()]


def stored_rows(store: ObjectStore, layout: StoreLayout, ref: PageRef) -> list[dict[str, object]]:
    """The rows of a page in the store."""
    return rows_of(check_page(store.get(layout.page_key(ref.name)).data, ref.name))


def put_page(
    store: ObjectStore,
    layout: StoreLayout,
    ref: PageRef,
    page: Page,
    *,
    page_format: int = COLUMNS_FORMAT,
    encodings: Encodings | None = None,
) -> PageRef:
    """Store a page in the place of another one; returns the new reference."""
    text = page.text(ref.kind, page_format, encodings or {})
    data = encode_text(text)
    store.put(layout.page_key(ref.name), data)
    size = DocumentRef.of(ref.name, data)
    return ref._replace(size_bytes=size.size_bytes, crc=size.crc, digest=digest_of(text))


def reference(kind: str, name: str, page: Page) -> PageRef:
    """The reference to a page that is not stored yet."""
    return PageRef(
        kind=kind,
        name=name,
        first_key=page.key(0),
        last_key=page.key(-1),
        row_count=page.row_count,
        size_bytes=0,
        crc=0,
        digest="",
    )
