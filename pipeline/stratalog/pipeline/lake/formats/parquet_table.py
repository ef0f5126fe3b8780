"""A table of plain Parquet files: `_latest.json` names those of the newest version, and is replaced at once.

    format     1
    position   that of the table
    files      path, size_bytes and row_count of each
    former     the files that only the version before had

Readers take the files that it names; other files below `_data/` belong to other versions. Plain files have no
marks for dead rows: a file with such rows is written again without them, from the table. Files that a version
does without stay for the readers of the one before, until the next commit.
"""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

import json
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from stratalog.base.errors import ObjectNotFoundError, StoreCorruptError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.lake.lake_table import (
    ChangedFile,
    TableChange,
    TableChangedError,
    TableFile,
    TableState,
)
from stratalog.pipeline.lake.refresh_files import listed_directory
from stratalog.pipeline.lake.row_files import RowFiles, read_columns
from stratalog.pipeline.lake.table_position import TablePosition
from stratalog.pipeline.settled_put import settled_put

LATEST_KEY = "_latest.json"
_FORMAT = 1


class ParquetTable:
    """Implements `LakeTable` by Parquet files alone. Not thread-safe: the driver uses it."""

    def __init__(self, store: ObjectStore) -> None:
        self.removal = RewritingRemoval()
        self._store = store
        self._etag: str | None = None
        self._files: tuple[TableFile, ...] = ()
        self._former: tuple[str, ...] = ()

    def rows_directory(self, refresh_id: str) -> str:
        """A folder that programs pass over, unless they go by the list."""
        return listed_directory(refresh_id)

    def read(self) -> TableState:
        """The newest version. Raises StoreError."""
        try:
            stored = self._store.get(LATEST_KEY)
        except ObjectNotFoundError:
            self._etag, self._files, self._former = None, (), ()
            return TableState(None, (), exists=False)
        try:
            document: dict[str, Any] = json.loads(stored.data)
            files = tuple(TableFile(**one) for one in document["files"])
            position = TablePosition.from_json(json.dumps(document["position"]))
            self._former = tuple(document["former"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorruptError(
                "the list of a table's files cannot be read; make the table anew elsewhere", key=LATEST_KEY
            ) from error
        self._etag, self._files = stored.etag, files
        return TableState(position, files, exists=True)

    def commit(self, change: TableChange) -> None:
        """Replace the list of files. Raises TableChangedError, StoreError."""
        files = {} if change.is_full else {file.path: file for file in self._files}
        for changed in change.changed:
            del files[changed.before.path]
            if changed.rewritten is not None:
                files[changed.rewritten.file.path] = changed.rewritten.file
        files |= {written.file.path: written.file for written in change.added}
        former = [file.path for file in self._files if file.path not in files]
        document = {
            "format": _FORMAT,
            "position": json.loads(change.position.to_json()),
            "files": [
                {"path": file.path, "size_bytes": file.size_bytes, "row_count": file.row_count}
                for _, file in sorted(files.items())
            ],
            "former": sorted(former),
        }
        data = json.dumps(document, indent=1).encode()
        if self._former:
            self._store.delete_many(list(self._former))
        if not settled_put(self._store, LATEST_KEY, data, if_match=self._etag):
            raise TableChangedError(
                "another refresh has changed the table meanwhile; run again", table=self._store.url
            )


class RewritingRemoval:
    """Implements `RowRemoval`: the file is written again without the rows. Immutable."""

    @property
    def writes_rows(self) -> bool:
        """All living rows of the file are."""
        return True

    def dead_rows(self, store: ObjectStore, file: TableFile) -> BitMap:
        """No rows: a file has living ones only."""
        return BitMap()

    def remove(self, store: ObjectStore, file: TableFile, dead: BitMap, refresh_id: str) -> ChangedFile:
        """Write the other rows to a new file. Raises StoreError."""
        if len(dead) == file.row_count:
            return ChangedFile(file)
        output: RowFiles | None = None
        position = 0
        for rows in read_columns(store, file, None):
            if output is None:
                prefix = f"{listed_directory(refresh_id)}{uuid5(NAMESPACE_URL, file.path)}"
                output = RowFiles(store, rows.schema, prefix, max_bytes=1 << 62)
            positions = np.arange(position, position + rows.num_rows)
            stays = np.isin(positions, np.array(dead.to_array()), invert=True)
            position += rows.num_rows
            for batch in rows.filter(pa.array(stays)).to_batches():
                output.add(batch)
        assert output is not None, "a file with rows has row groups"
        (written,) = output.close()
        return ChangedFile(file, rewritten=written)
