"""Files of an Iceberg table, on an object store of ours, as pyiceberg reads and writes them.

So pyiceberg finds the table with the store's settings and credentials.

Programs write the same location in several ways: `s3a://` and `s3n://` are Hadoop's names of `s3://`, and
`file:/dir` and `/dir` are `file:///dir`.
"""

from __future__ import annotations

import io
import re
from typing import cast

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from stratalog.base.errors import ObjectNotFoundError
from stratalog.objectstore.protocol import ObjectStore

_SPELLINGS = (
    (re.compile(r"s3[an]://"), "s3://"),
    (re.compile(r"file:/(?!/)"), "file:///"),
    (re.compile(r"/"), "file:///"),
)


def table_location(store: ObjectStore) -> str:
    """The location of a table at the root of a store: `file:///dir` or `s3://bucket/prefix`."""
    return store.url.partition("?")[0].rstrip("/")


def plain_location(location: str) -> str:
    """The one location of a file that others name in several ways."""
    for spelling, plain in _SPELLINGS:
        if (found := spelling.match(location)) is not None:
            return f"{plain}{location[found.end() :]}"
    return location


class StoreFileIO(FileIO):
    """Implements pyiceberg's `FileIO` by objects: a file is read, and written, whole. Thread-safe."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__()
        self._store = store
        self._root = f"{table_location(store)}/"

    def new_input(self, location: str) -> InputFile:
        """A file to read. Raises ObjectNotFoundError for one outside of the table."""
        return _StoreInput(self._store, self.key_of(location), location)

    def new_output(self, location: str) -> OutputFile:
        """A file to write. Raises ObjectNotFoundError for one outside of the table."""
        return _StoreOutput(self._store, self.key_of(location), location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file of the table."""
        name = location if isinstance(location, str) else location.location
        self._store.delete_many([self.key_of(name)])

    def key_of(self, location: str) -> str:
        """The key of a file. Raises ObjectNotFoundError for one outside of the table."""
        if not self.has(location):
            raise ObjectNotFoundError(
                "the table names a file outside of its place; it was moved, so make it anew elsewhere",
                key=location,
                table=self._root,
            )
        return plain_location(location).removeprefix(self._root)

    def has(self, location: str) -> bool:
        """Whether a file lies in the table."""
        return plain_location(location).startswith(self._root)

    def location_of(self, key: str) -> str:
        """The location of a file."""
        return f"{self._root}{key}"


class _StoreInput(InputFile):
    """A file to read. Not thread-safe: pyiceberg makes one for each use."""

    def __init__(self, store: ObjectStore, key: str, location: str) -> None:
        super().__init__(location)
        self._store = store
        self._key = key
        self._data: bytes | None = None

    def __len__(self) -> int:
        return len(self._whole())

    def exists(self) -> bool:
        try:
            self._whole()
        except ObjectNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return cast("InputStream", io.BytesIO(self._whole()))

    def _whole(self) -> bytes:
        if self._data is None:
            self._data = self._store.get(self._key).data
        return self._data


class _StoreOutput(OutputFile):
    """A file to write. Not thread-safe: pyiceberg makes one for each use."""

    def __init__(self, store: ObjectStore, key: str, location: str) -> None:
        super().__init__(location)
        self._store = store
        self._key = key
        self._size_bytes = 0

    def __len__(self) -> int:
        return self._size_bytes

    def exists(self) -> bool:
        return any(info.key == self._key for info in self._store.list(self._key))

    def to_input_file(self) -> InputFile:
        return _StoreInput(self._store, self._key, self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        return cast("OutputStream", _Stream(self))

    def put(self, data: bytes) -> None:
        """Store the whole file."""
        self._store.put(self._key, data)
        self._size_bytes = len(data)


class _Stream(io.BytesIO):
    """Stores its bytes when it is closed. Not thread-safe: one writer uses it."""

    def __init__(self, output: _StoreOutput) -> None:
        super().__init__()
        self._output = output

    def close(self) -> None:
        if not self.closed:
            self._output.put(self.getvalue())
        super().close()
