"""History: the commits that folds took out of the head. Writers find their own commits there, operators look
back. docs/formats/metadata.md has the fields.

Each object names the one before it; the head names the newest. Objects are immutable. Old ones may be
trimmed: a walk that passes the oldest object finds nothing, which is not an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stratalog.base.errors import ObjectNotFoundError, StoreCorruptError
from stratalog.base.randomness import IdGenerator
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.json_document import (
    FORMAT_VERSION,
    JsonFields,
    decode_document,
    encode_text,
    format_json,
)
from stratalog.remote.metadata.head.commit import Commit
from stratalog.remote.metadata.head.document_ref import DocumentRef, FileKind, newest_seq_of
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.head.head_actions import ActionTable
from stratalog.remote.store_layout import StoreLayout, first_seq_of_history, format_history_name

_FORMAT = "stratalog-history"


def write_history(
    store: ObjectStore, layout: StoreLayout, ids: IdGenerator, head: Head, commits: Sequence[Commit]
) -> DocumentRef:
    """Store `commits`, all that the head holds; the head's newest history object is the predecessor."""
    first, last = commits[0].seq, commits[-1].seq
    fields = {
        "format": _FORMAT,
        "read_version": FORMAT_VERSION,
        "write_version": FORMAT_VERSION,
        "store_id": str(head.store_id),
        "shard": head.shard,
        "first": first,
        "last": last,
        "predecessor": None if head.history is None else head.history.to_json(),
    }
    opened = format_json(fields).removesuffix("}")
    data = encode_text(f'{opened},"commits":[{",".join(commit.text for commit in commits)}]}}')
    name = format_history_name(first, last, ids.uuid())
    store.put(layout.history_key(name), data)
    return DocumentRef.of(name, data)


def find_in_history(
    store: ObjectStore, layout: StoreLayout, newest: DocumentRef | None, seq: int, table: ActionTable
) -> Commit | None:
    """The folded commit with this number; None if the history begins after it. Raises
    StoreCorruptError.
    """
    for commits in _read_backwards(store, layout, newest, table):
        if commits[0].seq <= seq:
            return next((commit for commit in commits if commit.seq == seq), None)
    return None


def predecessor_of(store: ObjectStore, layout: StoreLayout, name: str) -> str | None:
    """The name of the history object before this one; None for the first. Raises ObjectNotFoundError,
    StoreCorruptError.
    """
    key = layout.history_key(name)
    predecessor = decode_document(store.get(key).data, key, format_name=_FORMAT).optional_fields(
        "predecessor"
    )
    return None if predecessor is None else DocumentRef.from_json(predecessor, FileKind.HISTORY).name


def read_history(
    store: ObjectStore, layout: StoreLayout, name: str, table: ActionTable
) -> tuple[DocumentRef, tuple[Commit, ...]]:
    """The commits of a history file that was listed, and a reference to it. Raises ObjectNotFoundError,
    StoreCorruptError, StoreNotUsableError.
    """
    key = layout.history_key(name)
    data = store.get(key).data
    commits = _parse_commits(decode_document(data, key, format_name=_FORMAT), table)
    if (commits[0].seq, commits[-1].seq) != (
        first_seq_of_history(name),
        newest_seq_of(FileKind.HISTORY, name),
    ):
        raise StoreCorruptError(
            "a history file has other commits than its name says; restore the right one from a backup",
            what=key,
        )
    return DocumentRef.of(name, data), commits


def check_history(
    store: ObjectStore, layout: StoreLayout, ref: DocumentRef, table: ActionTable
) -> DocumentRef | None:
    """Read a history file whole; returns its predecessor, None for the first. Raises ObjectNotFoundError,
    StoreCorruptError, StoreNotUsableError.
    """
    key = layout.history_key(ref.name)
    data = store.get(key).data
    ref.verify(data, key)
    fields = decode_document(data, key, format_name=_FORMAT)
    _parse_commits(fields, table)
    predecessor = fields.optional_fields("predecessor")
    return None if predecessor is None else DocumentRef.from_json(predecessor, FileKind.HISTORY)


def _read_backwards(
    store: ObjectStore, layout: StoreLayout, newest: DocumentRef | None, table: ActionTable
) -> Iterator[tuple[Commit, ...]]:
    ref = newest
    while ref is not None:
        key = layout.history_key(ref.name)
        try:
            data = store.get(key).data
        except ObjectNotFoundError:
            return  # trimmed
        ref.verify(data, key)
        fields = decode_document(data, key, format_name=_FORMAT)
        yield _parse_commits(fields, table)
        predecessor = fields.optional_fields("predecessor")
        ref = None if predecessor is None else DocumentRef.from_json(predecessor, FileKind.HISTORY)


def _parse_commits(fields: JsonFields, table: ActionTable) -> tuple[Commit, ...]:
    commits = fields.each("commits", lambda item, what: Commit.parse(JsonFields.of(item, what), table))
    expected = range(fields.integer("first", minimum=1), fields.integer("last", minimum=1) + 1)
    if not commits or [commit.seq for commit in commits] != list(expected):
        raise StoreCorruptError(
            "a history object lacks commits that it names; restore it from a backup", what=fields.what
        )
    return commits
