"""The keys that a log needs, found from its head alone: a quiet system that was collected has no others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.head.checkpoint import read_root
from stratalog.remote.metadata.head.committed_log import CommittedLog
from stratalog.remote.metadata.head.document_ref import DocumentRef, DroppedObject, FileKind
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_actions import SHARD_ACTIONS
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.store_layout import StoreLayout
from stratalog.remote.tier.replaced_files import ReplacedFiles
from tests.support.stored_fields import stored_fields


def current_keys(
    store: ObjectStore, layout: StoreLayout, live_names: Iterable[str], history_start_seq: int = 1
) -> Iterator[str]:
    """The head, the live objects, the checkpoint with its pages, and the history from that commit on."""
    # Actions of the catalog are unknown to this table, which the fields of the head do not mind.
    head = Head.decode(store.get(layout.head_key).data, layout.head_key, SHARD_ACTIONS)
    yield layout.head_key
    yield from map(layout.data_key, live_names)
    if head.checkpoint is not None:
        yield layout.checkpoint_key(head.checkpoint.name)
        for page in read_root(store, layout, head.checkpoint).pages:
            yield layout.page_key(page.name)
    ref = head.history
    while ref is not None and ref.seq >= history_start_seq:
        yield layout.history_key(ref.name)
        fields = stored_fields(store.get(layout.history_key(ref.name)).data, ref.name)
        earlier = fields.optional_fields("predecessor")
        ref = None if earlier is None else DocumentRef.from_json(earlier, FileKind.HISTORY)


def left_over_keys(store: ObjectStore, log: MetadataLog | Catalog) -> set[str]:
    """Keys of the log's tree that it does not need; asserts that those that it needs are there."""
    state = log.refresh()
    live = tuple(state.objects) if isinstance(state, ShardState) else ()
    needed = set(current_keys(store, log.layout, live, state.history_start_seq))
    found = {info.key for info in store.list(log.layout.prefix)}
    assert needed <= found, f"lost: {sorted(needed - found)}"
    return found - needed


def waiting_files(store: ObjectStore, log: CommittedLog[Any]) -> tuple[DroppedObject, ...]:
    """The files that wait to be deleted, also those that folds replaced, in the order of their commits."""
    lists = ReplacedFiles(store, log.layout)
    found = [*log.state().dropped]
    for replacement in log.state().replacements:
        found += lists.read(replacement) or ()
    return tuple(sorted(found, key=lambda file: (file.seq, file.name)))
