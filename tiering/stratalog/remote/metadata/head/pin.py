"""A pin: keeps every file that is live at a commit, until it ends. docs/formats/metadata.md has the fields.

A long scan or an import takes one, so that the files of the state that it reads are not deleted under it. A
pin is identified by the commit that made it. It holds the state after that commit, or after an earlier one:
the data objects, and the checkpoint, the history and the directories from which that state can be built
again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stratalog.remote.json_document import JsonFields, JsonObject

_KNOWN = frozenset(["seq", "holder", "until_ms", "folded_seq", "state_seq"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A pin in the state of a log. Immutable."""

    seq: int
    """The commit that made the pin, and identifies it."""
    holder: str
    """A name that operators know, and that no other job uses, such as the job's kind and a UUID. The queries
    of one snapshot are one job."""
    until_ms: int
    """The time of the store's clock from which on the collector ends the pin."""
    folded_seq: int
    """The commit of the checkpoint that the pinned state is built from, with the commits behind it."""
    earlier_seq: int | None = None
    """The commit after which the pinned state is, if that is not the one that made the pin."""
    extra: JsonObject = field(default_factory=dict[str, object], compare=False)
    """Fields of the checkpoint that this version does not know."""

    @property
    def state_seq(self) -> int:
        """The commit after which the pinned state is."""
        return self.seq if self.earlier_seq is None else self.earlier_seq

    def to_json(self) -> JsonObject:
        earlier = {} if self.earlier_seq is None else {"state_seq": self.earlier_seq}
        return {
            "seq": self.seq,
            "holder": self.holder,
            "until_ms": self.until_ms,
            "folded_seq": self.folded_seq,
            **earlier,
            **self.extra,
        }

    @staticmethod
    def from_json(item: object, what: str) -> Pin:
        """Parse a pin. Raises StoreCorruptError."""
        fields = JsonFields.of(item, what)
        return Pin(
            seq=fields.integer("seq", minimum=1),
            holder=fields.text("holder"),
            until_ms=fields.integer("until_ms"),
            folded_seq=fields.integer("folded_seq"),
            earlier_seq=fields.optional_integer("state_seq", minimum=1),
            extra=fields.unknown(_KNOWN),
        )
