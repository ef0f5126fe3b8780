"""A table as a materialization sees it: files of rows, rows of them that are dead, and a position.

    refresh   writes files that no version of the table names
    commit    names them, and the position, in one step: of two refreshes from the same version one wins

A format says how a version is read and committed, and how rows of a file die: by a mark beside the file
(Delta Lake, Iceberg), or by another file without them (Parquet).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pyroaring import BitMap

from stratalog.base.errors import LogStoreError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.lake.table_position import TablePosition


class TableChangedError(LogStoreError):
    """Another refresh, or another program, has changed the table meanwhile: this one changed nothing.
    Fields: table."""

    code = "TABLE_CHANGED"


class DeadRows(NamedTuple):
    """The place of the mark with the dead rows of a file."""

    path: str
    position: int
    """The place of the mark's first byte in its file."""
    size_bytes: int
    row_count: int


class TableFile(NamedTuple):
    """A Parquet file of a table. Its path is relative to the table."""

    path: str
    size_bytes: int
    row_count: int
    """Rows in the file, dead ones too."""
    dead: DeadRows | None = None

    @property
    def live_count(self) -> int:
        """Rows that a reader sees."""
        return self.row_count - (0 if self.dead is None else self.dead.row_count)


class WrittenFile(NamedTuple):
    """A new file. Pickled to the driver."""

    file: TableFile
    footer: bytes
    """The Parquet footer, for the statistics of a format."""


class ChangedFile(NamedTuple):
    """A file in which rows died. Pickled to the driver."""

    before: TableFile
    marked: TableFile | None = None
    """The same file with its new mark; None without a mark."""
    rewritten: WrittenFile | None = None
    """The file in its place; None if it is marked, or has no rows left."""

    @property
    def removed_count(self) -> int:
        """Rows that a reader saw before."""
        after = self.marked or (self.rewritten.file if self.rewritten is not None else None)
        return self.before.live_count - (0 if after is None else after.live_count)


class TableState(NamedTuple):
    """A version of a table."""

    position: TablePosition | None
    """None if the table was not made by a materialization, or is not there."""
    files: tuple[TableFile, ...]
    exists: bool


class TableChange(NamedTuple):
    """The step to the next version."""

    position: TablePosition
    added: Sequence[WrittenFile]
    changed: Sequence[ChangedFile]
    is_full: bool
    """Whether the added files are all files of the next version."""


class RowRemoval(Protocol):
    """How rows of a file die, on the machine of a task. Immutable, pickled to it."""

    @property
    def writes_rows(self) -> bool:
        """Whether the living rows are written again, which costs much more than a mark."""
        ...

    def dead_rows(self, store: ObjectStore, file: TableFile) -> BitMap:
        """The rows of a file that are dead already. Raises StoreError."""
        ...

    def remove(self, store: ObjectStore, file: TableFile, dead: BitMap, refresh_id: str) -> ChangedFile:
        """Let all of these rows be dead: those before and new ones. The same call writes the same bytes.
        Raises StoreError."""
        ...


class LakeTable(Protocol):
    """A table of some format. Not thread-safe: the driver uses it."""

    @property
    def removal(self) -> RowRemoval:
        """How rows die."""
        ...

    def rows_directory(self, refresh_id: str) -> str:
        """The prefix of the rows that a refresh writes."""
        ...

    def read(self) -> TableState:
        """The newest version. Raises StoreError, UnsupportedOperationError for a table with features that
        this software does not know."""
        ...

    def commit(self, change: TableChange) -> None:
        """Make the next version from the one that `read` returned. Raises TableChangedError if there is
        another one by now, StoreError, InvalidConfigError for a property of the table that is malformed; then
        nothing has changed. Delete what former versions have and no version that stays; what fails there is
        left to the next commit."""
        ...
