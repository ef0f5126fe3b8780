"""A commit: everything that one replaced head added, and who did it.

    {"seq":N,"uuid":UUID,"time_ms":N,"writer":{"kind":TEXT,"id":TEXT,"epoch":N},"actions":[ACTION...]}

`uuid` is fresh for every attempt; it is how a writer recognises its own commit after an unknown outcome. A
commit keeps the JSON that it was read from, unknown fields included, and is written again as exactly that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from stratalog.remote.metadata.head.json_document import JsonFields, format_json
from stratalog.remote.metadata.shard.actions import Action, ActionTable, UnknownAction, parse_action


class Writer(NamedTuple):
    """Who commits. `kind`: owner, compactor, collector, spark, ...; `id`: something that an operator can
    find.
    """

    kind: str
    id: str


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of a shard or of the catalog. Immutable."""

    seq: int
    uuid: UUID
    time_ms: int
    writer: Writer
    epoch: int | None
    """The epoch under which an owner acts; None for everybody else."""
    actions: tuple[Action, ...]
    text: str = field(compare=False, repr=False)
    """Its JSON."""

    @staticmethod
    def build(
        seq: int, uuid: UUID, time_ms: int, writer: Writer, epoch: int | None, actions: Sequence[Action]
    ) -> Commit:
        """A new commit."""
        assert actions, "a commit does something"
        assert seq >= 1, "commits are numbered from one"
        document = {
            "seq": seq,
            "uuid": str(uuid),
            "time_ms": time_ms,
            "writer": {"kind": writer.kind, "id": writer.id} | ({} if epoch is None else {"epoch": epoch}),
            "actions": [action.to_json() for action in actions],
        }
        return Commit(seq, uuid, time_ms, writer, epoch, tuple(actions), format_json(document))

    @staticmethod
    def parse(fields: JsonFields, table: ActionTable) -> Commit:
        """Raises StoreCorruptError."""
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
