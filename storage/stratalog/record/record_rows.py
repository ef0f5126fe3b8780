"""Rows of columns that a producer sends as records, in the layout of Apache Arrow."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.filesystem import Buffer


class BytesColumn(NamedTuple):
    """A column of byte strings."""

    offsets: Buffer
    """32-bit numbers, one more than there are rows: where each string begins in `data`."""
    data: Buffer
    validity: Buffer | None
    """A byte for each row, 0 for null. None: no string is null."""


class HeadersColumn(NamedTuple):
    """A column of lists of headers."""

    list_offsets: Buffer
    """32-bit numbers, one more than there are rows: the first header of each row."""
    name: BytesColumn
    value: BytesColumn


class RecordRows(NamedTuple):
    """Rows that become records. The bytes must not change while they are sent."""

    row_count: int
    key: BytesColumn | None
    value: BytesColumn | None
    timestamp_ms: Buffer | None
    """64-bit numbers; -1 stands for the time of sending. None: all are -1."""
    partition: Buffer | None
    """32-bit numbers; -1 stands for the partition of the key. None: all are -1."""
    headers: HeadersColumn | None


class SentRows(NamedTuple):
    """The records that rows became in one batch."""

    receipt: object
    """The receipt of the batch."""
    first_index: int
    end_index: int
    """Behind the last one."""
