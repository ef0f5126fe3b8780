"""Files of an export: the records of a range of offsets of one partition, as Parquet.

    key            binary     null: no key
    value          binary     null: a record without a value
    topic          string
    partition      int32
    offset         int64      ascending, with holes
    timestamp      timestamp  milliseconds, UTC, as in the log: any number of 64 bits
    timestampType  int32      0 create time, 1 log append time
    headers        list<struct<key: string, value: binary>>, null: none

Any reader of Parquet reads them. Pages have checksums. A row group has about 8 MiB of records, so reading
takes little memory.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (pyarrow.parquet has no complete stubs)
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.base.errors import StoreCorruptError
from stratalog.pipeline.source.arrow_rows import ARROW_TYPES, EXACT_TIMESTAMP

SCANNED_COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    EXACT_TIMESTAMP,
    "timestampType",
    "headers",
)
"""The columns that a scan gives to an export."""
FILE_SCHEMA = pa.schema(
    [
        pa.field("timestamp" if name == EXACT_TIMESTAMP else name, ARROW_TYPES[name])
        for name in SCANNED_COLUMNS
    ]
)
ROW_GROUP_BYTES = 8 << 20


class WrittenFile(NamedTuple):
    """A whole file in memory."""

    data: pa.Buffer
    record_count: int


def write_file(batches: Iterable[pa.RecordBatch]) -> WrittenFile:
    """The rows as a file. Columns are those of `FILE_SCHEMA`, in its order. Holds the file, and the rows of a
    row group, in memory; compressed."""
    sink = pa.BufferOutputStream()
    count = 0
    with pq.ParquetWriter(sink, FILE_SCHEMA, compression="zstd", write_page_checksum=True) as writer:
        for group in _groups(batches):
            count += group.num_rows
            writer.write_table(group, row_group_size=group.num_rows)
    return WrittenFile(sink.getvalue(), count)


def read_file(data: bytes, key: str) -> Iterator[pa.RecordBatch]:
    """The rows of a file, in order. `key` names it in errors. Raises StoreCorruptError if it is damaged, or
    is no such file."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        if not file.schema_arrow.equals(FILE_SCHEMA):
            raise StoreCorruptError(
                "the file has other columns than an export writes; restore it from a copy, or export again",
                key=key,
                columns=str(file.schema_arrow.names),
            )
        for number in range(file.num_row_groups):
            table = file.read_row_group(number, use_threads=False).combine_chunks()
            yield from table.to_batches()
    except (pa.ArrowException, OSError) as error:
        raise StoreCorruptError(
            "the file cannot be read; restore it from a copy, or export again",
            key=key,
            reason=str(error)[:300],
        ) from error


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    group: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        group.append(cast("Any", pa.RecordBatch).from_arrays(batch.columns, schema=FILE_SCHEMA))
        size_bytes += batch.nbytes
        if size_bytes >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(group)
            group, size_bytes = [], 0
    if group:
        yield pa.Table.from_batches(group)
