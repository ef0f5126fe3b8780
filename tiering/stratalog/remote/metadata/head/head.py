"""The head: the only object of a shard or of the catalog that is ever replaced, always by If-Match on its
ETag.

    {"format":"stratalog-head","read_version":N,"write_version":N,"store_id":UUID,"shard":N or null,
     "seq":N,"uuid":UUID,"epoch":N,"horizon":N,"catalog_seq":N,
     "checkpoint":DOC or null,"history":DOC or null,"pins":[...],"commits":[COMMIT...],"crc":N}

The state is the checkpoint's state with `commits` applied in order. They are numbered from the checkpoint's
SEQ + 1 to `seq` without a gap. `uuid` is the uuid of the newest commit (a new head has a fresh one), so no
two heads have the same bytes, and an ETag is unique however the store computes it. `epoch`, `horizon`,
`catalog_seq` and `pins` repeat values of the state, for people and for a check.

No document has the checksum of a head, because a head is replaced. From metadata version 5 on it has its own.
Heads of earlier versions have none, because earlier software would keep it unchanged beside a new commit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Final
from uuid import UUID

from stratalog.base.errors import StoreCorruptError
from stratalog.objectstore.protocol import StoredObject
from stratalog.remote.json_document import (
    JsonFields,
    JsonObject,
    decode_fields,
    encode_plain,
    format_json,
    plain_bytes,
    plain_text,
    prove_checksum,
    with_checksum,
)
from stratalog.remote.metadata.head.commit import Commit
from stratalog.remote.metadata.head.document_ref import DocumentRef, FileKind
from stratalog.remote.metadata.head.head_actions import ActionTable
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.metadata.head.metadata_version import CHECKSUM_VERSION, METADATA_VERSION
from stratalog.remote.metadata.head.pin import Pin

RESTORE: Final = (
    "write nothing to the store, and restore the newest version of this key from the bucket's versions"
    " or a backup"
)
"""The advice of an error about a damaged or lost head. Everything else is still there; a writer that goes on
without the right head may overwrite what that head refers to.
"""

REBUILD: Final = "or, if there is none, rebuild it: `stratalog tier rebuild-head`"
"""The further advice of an error about a lost head."""

_text_of = attrgetter("text")

_FORMAT = "stratalog-head"
_KNOWN = frozenset(
    [
        "format",
        "read_version",
        "write_version",
        "store_id",
        "shard",
        "seq",
        "uuid",
        "epoch",
        "horizon",
        "catalog_seq",
        "checkpoint",
        "history",
        "pins",
        "commits",
        "crc",
    ]
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Contents of a head. Immutable."""

    store_id: UUID
    shard: int | None
    """None in the catalog."""
    uuid: UUID
    seq: int = 0
    epoch: int = 0
    orphan_horizon_seq: int = 0
    catalog_seq: int = 0
    checkpoint: DocumentRef | None = None
    history: DocumentRef | None = None
    pins: tuple[Pin, ...] = ()
    commits: tuple[Commit, ...] = ()
    read_version: int = METADATA_VERSION
    write_version: int = METADATA_VERSION
    """The finalized metadata version: commits have the actions of this version and of earlier ones."""
    extra: JsonObject = dataclasses.field(default_factory=dict[str, object])
    """Fields that this version does not know."""

    @property
    def folded_seq(self) -> int:
        """Commits up to this one are in the checkpoint."""
        return 0 if self.checkpoint is None else self.checkpoint.seq

    @property
    def inline_bytes(self) -> int:
        """Size of the commits' JSON, before compression."""
        return sum(map(len, map(_text_of, self.commits)))

    @property
    def unknown_action(self) -> str | None:
        return next((name for commit in self.commits if (name := commit.unknown_action) is not None), None)

    def after(self, commit: Commit, state: HeadState) -> Head:
        """The head with one more commit; `state` is the state after it."""
        assert commit.seq == self.seq + 1 == state.seq, "a head gets one commit at a time"
        commits = (*self.commits, commit)
        if state.checkpoint != self.checkpoint:
            folded_seq = state.folded_seq
            commits = tuple(kept for kept in commits if kept.seq > folded_seq)
        return dataclasses.replace(
            self,
            uuid=commit.uuid,
            seq=commit.seq,
            epoch=state.epoch,
            orphan_horizon_seq=state.orphan_horizon_seq,
            catalog_seq=state.catalog_seq,
            checkpoint=state.checkpoint,
            history=state.history,
            pins=state.pins,
            commits=commits,
            read_version=max(self.read_version, commit.finalized_version),
            write_version=max(self.write_version, commit.finalized_version),
        )

    def encode(self) -> bytes:
        """Bytes to store. Each commit keeps its own text."""
        fields = {
            "format": _FORMAT,
            "read_version": self.read_version,
            "write_version": self.write_version,
            "store_id": str(self.store_id),
            "shard": self.shard,
            "seq": self.seq,
            "uuid": str(self.uuid),
            "epoch": self.epoch,
            "horizon": self.orphan_horizon_seq,
            "catalog_seq": self.catalog_seq,
            "checkpoint": None if self.checkpoint is None else self.checkpoint.to_json(),
            "history": None if self.history is None else self.history.to_json(),
            "pins": [pin.to_json() for pin in self.pins],
        }
        opened = format_json(fields | dict(self.extra)).removesuffix("}")
        data = f'{opened},"commits":[{",".join(map(_text_of, self.commits))}]'.encode()
        if self.write_version < CHECKSUM_VERSION:
            return encode_plain(data + b"}")
        return encode_plain(with_checksum(data))

    @staticmethod
    def decode(data: bytes, what: str, table: ActionTable) -> Head:
        """Decode a head. Raises StoreCorruptError, StoreNotUsableError if newer software is needed to read
        it."""
        try:
            fields = _proven_fields(data, what)
        except StoreCorruptError as error:
            raise StoreCorruptError(
                f"a head is damaged; {RESTORE}, {REBUILD}, once the damaged one is moved to another key",
                **{"key": what, "reason": error.message} | error.fields,
            ) from error
        head = Head(
            store_id=fields.uuid("store_id"),
            shard=fields.optional_integer("shard"),
            uuid=fields.uuid("uuid"),
            seq=fields.integer("seq"),
            epoch=fields.integer("epoch"),
            orphan_horizon_seq=fields.integer("horizon"),
            catalog_seq=fields.integer("catalog_seq"),
            checkpoint=_parse_ref(fields, "checkpoint", FileKind.CHECKPOINT),
            history=_parse_ref(fields, "history", FileKind.HISTORY),
            pins=fields.each("pins", Pin.from_json),
            commits=fields.each("commits", lambda item, what: Commit.parse(JsonFields.of(item, what), table)),
            read_version=fields.integer("read_version", minimum=1),
            write_version=fields.integer("write_version", minimum=1),
            extra=fields.unknown(_KNOWN),
        )
        head._require_whole(what)
        return head

    @staticmethod
    def decode_answer(
        stored: StoredObject, ask_again: Callable[[], StoredObject], what: str, table: ActionTable
    ) -> tuple[Head, StoredObject]:
        """Decode a head that was read; returns it with the answer that it is from. A damaged one is read once
        more, because the connection may have changed it. Raises as `decode` and `ask_again`.
        """
        try:
            return Head.decode(stored.data, what, table), stored
        except StoreCorruptError:
            again = ask_again()
            return Head.decode(again.data, what, table), again

    def require_of(self, store_id: UUID, shard: int | None) -> None:
        """Check that the head belongs to this store and shard. Raises StoreCorruptError if the head
        belongs to another store or shard."""
        if (self.store_id, self.shard) != (store_id, shard):
            raise StoreCorruptError(
                "a head belongs to another store or shard; restore the whole bucket, not parts of it",
                store_id=self.store_id,
                shard=self.shard,
                expected_store_id=store_id,
                expected_shard=shard,
            )

    def commit(self, seq: int) -> Commit | None:
        """The commit with this number; None if it is not inline."""
        position = seq - self.folded_seq - 1
        return self.commits[position] if 0 <= position < len(self.commits) else None

    def _require_whole(self, what: str) -> None:
        expected = range(self.folded_seq + 1, self.seq + 1)
        if [commit.seq for commit in self.commits] != list(expected):
            raise StoreCorruptError(
                f"a head's commits do not reach from its checkpoint to its end; {RESTORE}",
                key=what,
                seq=self.seq,
                checkpoint_seq=self.folded_seq,
            )
        if self.commits and self.commits[-1].uuid != self.uuid:
            raise StoreCorruptError(
                "a head does not have the uuid of its newest commit; stop and investigate", what=what
            )


def _proven_fields(data: bytes, what: str) -> JsonFields:
    """The fields of a head. The checksum is compared first: any other field may be the damaged one, those
    that say which version it is, too."""
    plain = plain_bytes(data, what)
    has_checksum = prove_checksum(plain)
    fields = decode_fields(
        plain_text(plain, what), what, format_name=_FORMAT, supported_version=METADATA_VERSION
    )
    version = fields.integer("write_version", minimum=1)
    if has_checksum != (version >= CHECKSUM_VERSION):
        raise StoreCorruptError(
            "its version and its checksum do not fit together",
            write_version=version,
            has_checksum=has_checksum,
            first_version_with_checksum=CHECKSUM_VERSION,
        )
    return fields


def _parse_ref(fields: JsonFields, name: str, kind: FileKind) -> DocumentRef | None:
    found = fields.optional_fields(name)
    return None if found is None else DocumentRef.from_json(found, kind)
