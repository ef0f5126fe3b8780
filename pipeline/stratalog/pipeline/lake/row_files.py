"""Parquet files of rows on an object store."""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.lake.lake_table import TableFile, WrittenFile

FILE_BYTES = 128 << 20
"""A file with so many bytes is followed by another one."""
_GROUP_BYTES = 32 << 20
_GROUP_ROWS = 1 << 20
_DISTINCT_COLUMNS = ("key", "offset", "timestamp", "hash")
"""Nearly each row has another value: a dictionary would be of no use."""


class RowFiles:
    """Writes rows to files of about `FILE_BYTES`. Not thread-safe: one task uses it. The same rows make the
    same files, so a task that runs twice writes them twice."""

    def __init__(
        self, store: ObjectStore, schema: pa.Schema, prefix: str, *, max_bytes: int = FILE_BYTES
    ) -> None:
        """Files are named `PREFIX-000.parquet` and so on."""
        self._store = store
        self._schema = schema
        self._prefix = prefix
        self._max_bytes = max_bytes
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = self._pending_rows = 0
        self._sink: pa.BufferOutputStream | None = None
        self._writer: pq.ParquetWriter | None = None
        self._files: list[WrittenFile] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows, sooner or later. Raises StoreError."""
        if not rows.num_rows:
            return
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        self._pending_rows += rows.num_rows
        if self._pending_bytes >= _GROUP_BYTES or self._pending_rows >= _GROUP_ROWS:
            self._write_group()
            if self._sink is not None and self._sink.tell() >= self._max_bytes:
                self._end_file()

    def close(self) -> list[WrittenFile]:
        """Write all rows; returns the files. Raises StoreError."""
        self._write_group()
        self._end_file()
        return self._files

    def _write_group(self) -> None:
        if not self._pending:
            return
        table = pa.Table.from_batches(self._pending, self._schema)
        self._pending, self._pending_bytes, self._pending_rows = [], 0, 0
        if self._writer is None:
            self._sink = pa.BufferOutputStream()
            names = [name for name in self._schema.names if name not in _DISTINCT_COLUMNS]
            self._writer = pq.ParquetWriter(
                self._sink,
                self._schema,
                compression="zstd",
                use_dictionary=cast("Any", _leaves(self._schema, names)),
            )
        self._writer.write_table(table, row_group_size=table.num_rows)

    def _end_file(self) -> None:
        if self._writer is None or self._sink is None:
            return
        self._writer.close()
        data = self._sink.getvalue()
        self._writer = self._sink = None
        path = f"{self._prefix}-{len(self._files):03}.parquet"
        self._store.put_parts(path, [memoryview(cast("Any", data))])
        metadata = pq.read_metadata(pa.BufferReader(data))
        footer = pa.BufferOutputStream()
        metadata.write_metadata_file(footer)
        self._files.append(
            WrittenFile(TableFile(path, data.size, metadata.num_rows), footer.getvalue().to_pybytes())
        )


class ObjectFile(io.RawIOBase):
    """An object as a file that is read at any place: a GET for each read. Not thread-safe."""

    def __init__(self, store: ObjectStore, key: str, size_bytes: int) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        """The next bytes, as of any file. Raises StoreError."""
        left = max(self._size_bytes - self._position, 0)
        wanted = left if size < 0 else min(size, left)
        if wanted == 0:
            return b""
        data = self._store.get_range(self._key, self._position, wanted)
        self._position += wanted
        return data


def read_columns(store: ObjectStore, file: TableFile, names: list[str] | None) -> Iterator[pa.Table]:
    """The row groups of a file, with these columns or all, in the types that `RowFiles` writes. Raises
    StoreError."""
    source = pa.PythonFile(cast("Any", ObjectFile(store, file.path, file.size_bytes)), mode="r")
    parquet = pq.ParquetFile(source, pre_buffer=True)
    for number in range(parquet.metadata.num_row_groups):
        rows = parquet.read_row_group(number, columns=names, use_threads=False)
        fields: list[Any] = list(rows.schema)
        yield rows.cast(pa.schema([field.with_type(_usual(field.type)) for field in fields]))


def _usual(kind: Any) -> Any:
    """The type in place of the views and the large types that other programs write files from."""
    if pa.types.is_struct(kind):
        fields: list[Any] = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([field.with_type(_usual(field.type)) for field in fields])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_usual(kind.value_type)))
    if pa.types.is_map(kind):
        map_of: Any = pa.map_
        return map_of(_usual(kind.key_type), kind.item_field.with_type(_usual(kind.item_type)))
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    return pa.string() if pa.types.is_string_view(kind) or pa.types.is_large_string(kind) else kind


def integer_bounds(footer: bytes, name: str) -> tuple[int, int]:
    """The least and the greatest number in a column of a file with rows, by its footer."""
    metadata = pq.read_metadata(pa.BufferReader(footer))
    (index,) = [one for one in range(metadata.num_columns) if metadata.schema.column(one).path == name]
    groups: list[Any] = [
        metadata.row_group(number).column(index).statistics for number in range(metadata.num_row_groups)
    ]
    return min(one.min for one in groups), max(one.max for one in groups)


def _leaves(schema: pa.Schema, names: list[str]) -> list[str]:
    """The paths of the Parquet columns of these fields."""
    with_rows = pa.BufferOutputStream()
    with pq.ParquetWriter(with_rows, schema):
        pass
    columns = pq.read_metadata(pa.BufferReader(with_rows.getvalue())).schema
    paths = [columns.column(number).path for number in range(len(columns))]
    return [path for path in paths if path.partition(".")[0] in names]
