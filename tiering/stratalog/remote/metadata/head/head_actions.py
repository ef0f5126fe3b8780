"""The actions that every metadata log knows, and how an action is read from JSON.

`shard_actions` and `catalog_actions` have the others, docs/formats/metadata.md the fields of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from stratalog.remote.json_document import JsonFields, JsonObject, to_integer, to_text
from stratalog.remote.metadata.head.document_ref import (
    DocumentRef,
    FileKind,
    TrackedFile,
    newest_seq_of,
    parse_tracked_file,
)
from stratalog.remote.metadata.head.metadata_version import ActionVersions


class Action(Protocol):
    """One action of a commit. Immutable."""

    def to_json(self) -> JsonObject: ...


@dataclass(frozen=True, slots=True)
class Forget:
    """Takes files off the list of dropped files, after a collector has deleted them from the store."""

    names: tuple[str, ...]

    def to_json(self) -> JsonObject:
        return {"action": "forget", "names": list(self.names)}

    @staticmethod
    def from_json(fields: JsonFields) -> Forget:
        return Forget(fields.each("names", to_text))


@dataclass(frozen=True, slots=True)
class Fold:
    """Moves the commits up to the checkpoint out of the head."""

    checkpoint: DocumentRef
    history: DocumentRef | None
    base: str | None
    """Name of the checkpoint that this one was built from; None for the first. Its files that the new one
    does not share are dropped; the root of the new one names them."""

    def to_json(self) -> JsonObject:
        return _fold_json("fold", self)

    @staticmethod
    def from_json(fields: JsonFields) -> Fold:
        history = fields.optional_fields("history")
        return Fold(
            checkpoint=DocumentRef.from_json(fields.fields("checkpoint"), FileKind.CHECKPOINT),
            history=None if history is None else DocumentRef.from_json(history, FileKind.HISTORY),
            base=None if fields.values.get("base") is None else fields.text("base"),
        )


@dataclass(frozen=True, slots=True)
class ListedFold(Fold):
    """A fold whose replaced files stay where they are named: in the root of the new checkpoint."""

    file_count: int
    """The replaced files."""
    size_bytes: int
    """Size of all of them."""

    def to_json(self) -> JsonObject:
        files = {"file_count": self.file_count, "size_bytes": self.size_bytes}
        return _fold_json("listed_fold", self) | files

    @staticmethod
    def from_json(fields: JsonFields) -> ListedFold:
        fold = Fold.from_json(fields)
        return ListedFold(
            fold.checkpoint,
            fold.history,
            fold.base,
            fields.integer("file_count"),
            fields.integer("size_bytes"),
        )


@dataclass(frozen=True, slots=True)
class FinishList:
    """Forgets a replacement, whose files a collector has deleted from the store, but for some that must stay:
    a pin holds them, or the store keeps them. These become rows of the state, and wait from then on as files
    that the fold has dropped."""

    root: str
    """The name of the replacement's root."""
    kept: tuple[TrackedFile, ...]
    """The files that stay."""
    is_part: bool = False
    """Whether more files stay, which later commits name. The last of these forgets the replacement."""

    def to_json(self) -> JsonObject:
        fields: JsonObject = {"action": "finish_list", "root": self.root}
        return dict(fields) | given_fields(kept=[file.to_json() for file in self.kept], is_part=self.is_part)

    @staticmethod
    def from_json(fields: JsonFields) -> FinishList:
        root = fields.text("root")
        newest_seq_of(FileKind.CHECKPOINT, root)
        is_part = "is_part" in fields.values and fields.flag("is_part")
        return FinishList(root, fields.each("kept", parse_tracked_file), is_part)


def _fold_json(name: str, fold: Fold) -> dict[str, object]:
    fields: JsonObject = {"action": name, "checkpoint": fold.checkpoint.to_json()}
    return dict(fields) | given_fields(
        history=None if fold.history is None else fold.history.to_json(),
        base=fold.base,
    )


@dataclass(frozen=True, slots=True)
class RaiseHorizon:
    """Refuses from now on what was born before commit `seq`: a sweep is about to delete the orphans of it."""

    seq: int

    def to_json(self) -> JsonObject:
        return {"action": "raise_horizon", "seq": self.seq}

    @staticmethod
    def from_json(fields: JsonFields) -> RaiseHorizon:
        return RaiseHorizon(fields.integer("seq", minimum=1))


@dataclass(frozen=True, slots=True)
class TrimHistory:
    """Drops the history of commits before `before`."""

    before: int
    dropped: tuple[TrackedFile, ...] = ()
    """History files whose commits all have smaller numbers."""

    def to_json(self) -> JsonObject:
        fields: JsonObject = {"action": "trim_history", "before": self.before}
        return dict(fields) | given_fields(dropped=[file.to_json() for file in self.dropped])

    @staticmethod
    def from_json(fields: JsonFields) -> TrimHistory:
        return TrimHistory(fields.integer("before", minimum=1), fields.each("dropped", parse_tracked_file))


@dataclass(frozen=True, slots=True)
class TakePin:
    """Pins the state after this commit."""

    holder: str
    until_ms: int
    folded_seq: int
    """The commit of the checkpoint then. A follower that begins with a later checkpoint does not know it."""

    def to_json(self) -> JsonObject:
        return {
            "action": "pin",
            "holder": self.holder,
            "until_ms": self.until_ms,
            "folded_seq": self.folded_seq,
        }

    @staticmethod
    def from_json(fields: JsonFields) -> TakePin:
        return TakePin(fields.text("holder"), fields.integer("until_ms"), fields.integer("folded_seq"))


@dataclass(frozen=True, slots=True)
class PinCommit:
    """Pins the state after an earlier commit."""

    state_seq: int
    holder: str
    until_ms: int
    folded_seq: int
    """The commit of the checkpoint that the state is built from."""

    def to_json(self) -> JsonObject:
        return {
            "action": "pin_commit",
            "state_seq": self.state_seq,
            "holder": self.holder,
            "until_ms": self.until_ms,
            "folded_seq": self.folded_seq,
        }

    @staticmethod
    def from_json(fields: JsonFields) -> PinCommit:
        return PinCommit(
            fields.integer("state_seq", minimum=1),
            fields.text("holder"),
            fields.integer("until_ms"),
            fields.integer("folded_seq"),
        )


@dataclass(frozen=True, slots=True)
class BeginDeletion:
    """Says which dropped files a collector is about to delete. From now on no pin of an earlier commit may
    need one of them."""

    dropped_seq: int
    """The last commit that dropped one of them."""
    brought_seq: int
    """The last commit that brought one of them; 0 for metadata."""

    def to_json(self) -> JsonObject:
        return {
            "action": "begin_deletion",
            "dropped_seq": self.dropped_seq,
            "brought_seq": self.brought_seq,
        }

    @staticmethod
    def from_json(fields: JsonFields) -> BeginDeletion:
        return BeginDeletion(fields.integer("dropped_seq", minimum=1), fields.integer("brought_seq"))


@dataclass(frozen=True, slots=True)
class RenewPin:
    """Replaces the end of a pin."""

    pin: int
    """The commit that made the pin."""
    until_ms: int

    def to_json(self) -> JsonObject:
        return {"action": "renew_pin", "pin": self.pin, "until_ms": self.until_ms}

    @staticmethod
    def from_json(fields: JsonFields) -> RenewPin:
        return RenewPin(fields.integer("pin", minimum=1), fields.integer("until_ms"))


@dataclass(frozen=True, slots=True)
class Unpin:
    """Ends pins, by the commits that made them."""

    pins: tuple[int, ...]

    def to_json(self) -> JsonObject:
        return {"action": "unpin", "pins": list(self.pins)}

    @staticmethod
    def from_json(fields: JsonFields) -> Unpin:
        return Unpin(fields.each("pins", lambda item, what: to_integer(item, what, 1)))


@dataclass(frozen=True, slots=True)
class Finalize:
    """Finalizes a metadata version: the commits of the head may have its actions from now on. The state stays
    as it is.
    """

    metadata_version: int

    def to_json(self) -> JsonObject:
        return {"action": "finalize", "metadata_version": self.metadata_version}

    @staticmethod
    def from_json(fields: JsonFields) -> Finalize:
        return Finalize(fields.integer("metadata_version", minimum=1))


@dataclass(frozen=True, slots=True)
class UnknownAction:
    """An action of newer software. It is kept as it is, and this version writes no commit on top of it."""

    name: str
    document: JsonObject

    def to_json(self) -> JsonObject:
        return self.document


ActionTable = Mapping[str, Callable[[JsonFields], Action]]
"""Parsers of a log's actions, by name."""

COMMON_ACTIONS: ActionTable = {
    "forget": Forget.from_json,
    "fold": Fold.from_json,
    "listed_fold": ListedFold.from_json,
    "finish_list": FinishList.from_json,
    "raise_horizon": RaiseHorizon.from_json,
    "trim_history": TrimHistory.from_json,
    "begin_deletion": BeginDeletion.from_json,
    "pin": TakePin.from_json,
    "pin_commit": PinCommit.from_json,
    "renew_pin": RenewPin.from_json,
    "unpin": Unpin.from_json,
    "finalize": Finalize.from_json,
}
"""The actions of every log, which keep its files in order."""
COMMON_VERSIONS: ActionVersions = {
    RaiseHorizon: 2,
    TrimHistory: 2,
    TakePin: 2,
    RenewPin: 2,
    Unpin: 2,
    BeginDeletion: 4,
    PinCommit: 4,
    ListedFold: 5,
    FinishList: 5,
}
"""The metadata versions of these actions."""


def parse_action(fields: JsonFields, table: ActionTable) -> Action:
    """The action that a JSON object describes. Raises StoreCorruptError if it is malformed."""
    name = fields.text("action")
    parse = table.get(name)
    return UnknownAction(name, fields.values) if parse is None else parse(fields)


def given_fields(**fields: object) -> dict[str, object]:
    """The optional fields that differ from their default: empty, zero, false or absent."""
    return {name: value for name, value in fields.items() if value or (value == 0 and name == "catalog_seq")}
