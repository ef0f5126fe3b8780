"""A commit: the actions that one replacement of the head added, and their writer. docs/formats/metadata.md
has the fields.

`uuid` is fresh for every attempt, so a writer recognises its own commit after an unknown outcome. A commit
keeps the JSON that it was read from, unknown fields included, and is written again unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import InvalidRequestError
from stratalog.remote.json_document import JsonFields, format_json
from stratalog.remote.metadata.head.head_actions import (
    Action,
    ActionTable,
    Finalize,
    UnknownAction,
    parse_action,
)


class Writer(NamedTuple):
    """The author of commits. `kind`: owner, compactor, collector, spark, ...; `id`: a name that operators
    know.
    """

    kind: str
    id: str


MAX_COMMIT_BYTES = 64 * 1024
"""The JSON text of a commit is at most this long, whatever it touches."""
ACTIONS_BYTES = 48 * 1024
"""Judges leave further actions of a request to its next commit beyond about this size."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of a shard or of the catalog. Immutable."""

    seq: int
    uuid: UUID
    time_ms: int
    writer: Writer
    epoch: int | None
    """The epoch of an owner; None for other writers."""
    actions: tuple[Action, ...]
    text: str = field(compare=False, repr=False)
    """The commit as JSON."""

    @staticmethod
    def build(
        seq: int, uuid: UUID, time_ms: int, writer: Writer, epoch: int | None, actions: Sequence[Action]
    ) -> Commit:
        assert actions, "a commit has actions"
        assert seq >= 1, "commits are numbered from one"
        document = {
            "seq": seq,
            "uuid": str(uuid),
            "time_ms": time_ms,
            "writer": {"kind": writer.kind, "id": writer.id} | ({} if epoch is None else {"epoch": epoch}),
            "actions": [action.to_json() for action in actions],
        }
        return Commit(
            seq=seq,
            uuid=uuid,
            time_ms=time_ms,
            writer=writer,
            epoch=epoch,
            actions=tuple(actions),
            text=format_json(document),
        )

    def require_small(self) -> None:
        """Raise InvalidRequestError if the commit is too large: every later commit writes it again, until a
        fold. Judges divide what is large; what they cannot divide is refused here."""
        size_bytes = len(self.text.encode())
        if size_bytes > MAX_COMMIT_BYTES:
            raise InvalidRequestError(
                "a commit would be too large; ask for less at once",
                size_bytes=size_bytes,
                max_bytes=MAX_COMMIT_BYTES,
            )

    @staticmethod
    def parse(fields: JsonFields, table: ActionTable) -> Commit:
        """Parse a commit. Raises StoreCorruptError."""
        writer = fields.fields("writer")
        return Commit(
            seq=fields.integer("seq", minimum=1),
            uuid=fields.uuid("uuid"),
            time_ms=fields.integer("time_ms"),
            writer=Writer(writer.text("kind"), writer.text("id")),
            epoch=writer.optional_integer("epoch"),
            actions=fields.each("actions", lambda item, what: parse_action(JsonFields.of(item, what), table)),
            text=format_json(fields.values),
        )

    @property
    def unknown_action(self) -> str | None:
        """Name of the first action that this version does not know."""
        return next((action.name for action in self.actions if isinstance(action, UnknownAction)), None)

    @property
    def finalized_version(self) -> int:
        """The metadata version that the commit finalizes; 0 if it finalizes none."""
        return max((one.metadata_version for one in self.actions if isinstance(one, Finalize)), default=0)
