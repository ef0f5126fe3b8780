"""References from one metadata object to another, and the list of files that wait to be deleted."""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

import crc32c

from stratalog.base.errors import StoreCorruptError
from stratalog.remote.json_document import JsonFields, JsonObject, to_integer, to_row, to_text
from stratalog.remote.store_layout import StoreLayout

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_SEQ = "[0-9]{20}"
_SEQ_PART = -6
"""Index among the parts of a name, which ends with the five parts of a UUID."""


class FileKind(enum.Enum):
    """Kinds of files of a shard or of the catalog, besides the head. The values are those of the format."""

    DATA = "data"
    PAGE = "page"
    CHECKPOINT = "checkpoint"
    HISTORY = "history"

    def key(self, layout: StoreLayout, name: str) -> str:
        match self:
            case FileKind.DATA:
                return layout.data_key(name)
            case FileKind.PAGE:
                return layout.page_key(name)
            case FileKind.CHECKPOINT:
                return layout.checkpoint_key(name)
            case FileKind.HISTORY:
                return layout.history_key(name)

    def is_name(self, name: str) -> bool:
        """Whether a file of this kind can have this name."""
        return _NAMES[self].match(name) is not None


_NAMES = {
    FileKind.DATA: re.compile(rf"\A({_SEQ})-{_UUID}\Z"),
    FileKind.PAGE: re.compile(rf"\A({_SEQ})-{_UUID}\Z"),
    FileKind.CHECKPOINT: re.compile(rf"\A({_SEQ})-{_UUID}\Z"),
    FileKind.HISTORY: re.compile(rf"\A{_SEQ}-({_SEQ})-{_UUID}\Z"),
}


class TrackedFile(NamedTuple):
    """A file by kind and name."""

    kind: FileKind
    name: str
    size_bytes: int

    def to_json(self) -> list[object]:
        return [self.kind.value, self.name, self.size_bytes]


class DroppedObject(NamedTuple):
    """A file that nothing live refers to. It stays until its grace period ends and a collector deletes it."""

    name: str
    """Without the prefix; `key` returns the whole key."""
    size_bytes: int
    seq: int
    """The commit that dropped it."""
    time_ms: int
    """Wall time of that commit."""
    kind: FileKind = FileKind.DATA
    brought_seq: int = 0
    """The commit that brought a data object. It must be folded before the object is deleted, because opening
    the shard reads the directory of each object that an inline commit brings. 0 for other kinds."""

    def key(self, layout: StoreLayout) -> str:
        return self.kind.key(layout, self.name)


class Replacement(NamedTuple):
    """The files that one fold replaced: the root of its base, and pages that its own checkpoint does not
    share. They wait as dropped files do, but only `replaced` in the root of the fold's checkpoint names them.
    So a state of millions of slices needs no row for each page that its folds have replaced.

    The root must outlive its list. Once all but a few files are deleted, those few become dropped files of
    their own, and the replacement is forgotten.
    """

    root: DocumentRef
    """The root that names the files."""
    base: str
    """The name of the checkpoint that was replaced, whose root is one of the files; empty without one."""
    seq: int
    """The commit of the fold."""
    time_ms: int
    """Wall time of that commit."""
    file_count: int
    size_bytes: int
    """Size of all files."""

    @property
    def name(self) -> str:
        """The name of the root, by which the replacement is forgotten."""
        return self.root.name

    def dropped(self, file: TrackedFile) -> DroppedObject:
        """One of the files, as a dropped file."""
        return DroppedObject(
            name=file.name, size_bytes=file.size_bytes, seq=self.seq, time_ms=self.time_ms, kind=file.kind
        )

    def to_json(self) -> JsonObject:
        return {**self._asdict(), "root": self.root.to_json()}

    @staticmethod
    def from_json(item: object, what: str) -> Replacement:
        """Parse a replacement. Raises StoreCorruptError."""
        fields = JsonFields.of(item, what)
        base = fields.text("base")
        if base:
            newest_seq_of(FileKind.CHECKPOINT, base)
        return Replacement(
            root=DocumentRef.from_json(fields.fields("root"), FileKind.CHECKPOINT),
            base=base,
            seq=fields.integer("seq", minimum=1),
            time_ms=fields.integer("time_ms"),
            file_count=fields.integer("file_count", minimum=1),
            size_bytes=fields.integer("size_bytes"),
        )


class DocumentRef(NamedTuple):
    """The name of a checkpoint or history object, with its size and checksum."""

    name: str
    size_bytes: int
    crc: int
    """CRC-32C of the stored bytes."""

    @property
    def seq(self) -> int:
        return int(self.name.split("-")[_SEQ_PART])

    def to_json(self) -> JsonObject:
        return dict(self._asdict())

    @staticmethod
    def of(name: str, data: bytes) -> DocumentRef:
        return DocumentRef(name, len(data), crc32c.crc32c(data))

    @staticmethod
    def from_json(fields: JsonFields, kind: FileKind) -> DocumentRef:
        """Parse a reference. Raises StoreCorruptError."""
        name = fields.text("name")
        newest_seq_of(kind, name)
        return DocumentRef(name, fields.integer("size_bytes"), fields.integer("crc", maximum=(1 << 32) - 1))

    def verify(self, data: bytes, what: str) -> None:
        """Raise StoreCorruptError if `data` does not have this size and checksum."""
        if len(data) != self.size_bytes or crc32c.crc32c(data) != self.crc:
            raise StoreCorruptError(
                "an object is not the one that was written; keep it, and restore the right one from a backup",
                what=what,
                size_bytes=len(data),
                expected_size_bytes=self.size_bytes,
            )


def newest_seq_of(kind: FileKind, name: str) -> int:
    """The newest commit number in a name. Raises StoreCorruptError if the name is malformed."""
    match = _NAMES[kind].match(name)
    if match is None:
        raise StoreCorruptError(
            "a file's name is malformed; keep it and investigate", kind=kind.value, name=name
        )
    return int(match[1])


def parse_tracked_file(item: object, what: str) -> TrackedFile:
    """`[KIND, NAME, BYTES]`. Raises StoreCorruptError."""
    kind_text, name, size_bytes = to_row(item, what, 3)
    try:
        kind = FileKind(kind_text)
    except ValueError:
        raise StoreCorruptError("a file is of an unknown kind; keep it and investigate", what=what) from None
    newest_seq_of(kind, to_text(name, what))
    return TrackedFile(kind, to_text(name, what), to_integer(size_bytes, what))
