"""Reads every document that a head refers to, and names those that are missing, damaged or archived."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from stratalog.base.errors import (
    LogStoreError,
    ObjectArchivedError,
    ObjectNotFoundError,
    StoreCorruptError,
    StoreNotUsableError,
)
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.head.checkpoint import read_root
from stratalog.remote.metadata.head.checkpoint_page import decode_page
from stratalog.remote.metadata.head.document_ref import DocumentRef
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.head.history import check_history
from stratalog.remote.restore.stored_log import StoredLog
from stratalog.remote.store_layout import StoreLayout

_DAMAGE = (ObjectArchivedError, ObjectNotFoundError, StoreCorruptError, StoreNotUsableError)


class DocumentFault(NamedTuple):
    """A document of the metadata that is missing or cannot be read."""

    key: str
    error: LogStoreError


def document_faults(log: StoredLog[Any], history_start_seq: int) -> list[DocumentFault]:
    """The faults of a log's head, checkpoint, pages and history from a commit on. What another commit has
    replaced meanwhile is none. Raises StoreUnavailableError, StoreAccessDeniedError.
    """
    faults: list[DocumentFault] = []
    for _ in range(2):
        try:
            head = log.head()
        except (ObjectArchivedError, StoreCorruptError, StoreNotUsableError) as error:
            return [DocumentFault(log.layout.head_key, error)]
        if head is None:
            lost = ObjectNotFoundError(
                "the head is lost; restore it, or rebuild it with `stratalog tier rebuild-head`",
                key=log.layout.head_key,
            )
            return [DocumentFault(log.layout.head_key, lost)]
        found = list(_faults_below(log.store, log.layout, head, log, history_start_seq))
        # A connection may have garbled one, and a fold may have replaced one: only what stays counts.
        known = {fault.key for fault in faults}
        faults = found if not known else [fault for fault in found if fault.key in known]
        if not faults:
            break
    return faults


def _faults_below(
    store: ObjectStore, layout: StoreLayout, head: Head, log: StoredLog[Any], history_start_seq: int
) -> Iterator[DocumentFault]:
    if head.checkpoint is not None:
        yield from _checkpoint_faults(store, layout, head.checkpoint)
    before = head.history
    while before is not None and before.seq >= history_start_seq:
        ref = before
        try:
            before = check_history(store, layout, ref, log.table)
        except _DAMAGE as error:
            yield DocumentFault(layout.history_key(ref.name), error)
            return


def _checkpoint_faults(store: ObjectStore, layout: StoreLayout, ref: DocumentRef) -> Iterator[DocumentFault]:
    try:
        pages = read_root(store, layout, ref).pages
    except _DAMAGE as error:
        yield DocumentFault(layout.checkpoint_key(ref.name), error)
        return
    for page in pages:
        key = layout.page_key(page.name)
        try:
            data = store.get(key).data
            page.verify(data, key)
            decode_page(data, key, page)
        except _DAMAGE as error:
            yield DocumentFault(key, error)
