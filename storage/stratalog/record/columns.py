"""Records as columns, in buffers that Apache Arrow can use without a copy."""

from __future__ import annotations

from array import array
from typing import NamedTuple

MAX_COLUMN_BYTES = 2**31 - 1
"""Arrow's binary and list columns have 32-bit offsets."""


COLUMN_NAMES = (
    "offset",
    "timestamp_ms",
    "key_offsets",
    "key_data",
    "key_validity",
    "value_offsets",
    "value_data",
    "value_validity",
    "header_list_offsets",
    "header_name_offsets",
    "header_name_data",
    "header_value_offsets",
    "header_value_data",
    "header_value_validity",
)
"""The buffers of `ColumnBuffers`."""


class ColumnLimits(NamedTuple):
    """The size at which a reader takes the rows out of the buffers."""

    data_bytes: int
    row_count: int
    """For nearly empty records, which take as much memory."""


class ColumnBuffers:
    """Rows from `decode_columns`, or for `encode_columns`. Not thread-safe: guarded by its user.

    A variable-size column is an offsets array (one number more than rows, the first one 0) and its data;
    validity has one byte a row, 1 if there is a value. Headers are a list column (`header_list_offsets`
    counts headers) over the header rows, whose names are UTF-8. A row's value is missing exactly if the
    record is a tombstone, whether values are wanted or not.

    Take the rows out about every mebibyte: the allocator reuses buffers of that size, while larger ones go
    back to the operating system and come back page by page.
    """

    __slots__ = (*COLUMN_NAMES, "wants_headers", "wants_keys", "wants_values")

    def __init__(self, *, keys: bool = True, values: bool = True, headers: bool = True) -> None:
        """Begin without rows. Keys and values that are not wanted have their validity and no bytes; headers
        that are not wanted are missing."""
        self.wants_keys = keys
        self.wants_values = values
        self.wants_headers = headers
        self.clear()

    def clear(self) -> None:
        """Forget all rows. Makes new buffers, so a reader can keep the old ones."""
        self.offset: array[int] = array("q")
        self.timestamp_ms: array[int] = array("q")
        self.key_offsets: array[int] = array("i", (0,))
        self.key_data = bytearray()
        self.key_validity = bytearray()
        self.value_offsets: array[int] = array("i", (0,))
        self.value_data = bytearray()
        self.value_validity = bytearray()
        self.header_list_offsets: array[int] = array("i", (0,))
        self.header_name_offsets: array[int] = array("i", (0,))
        self.header_name_data = bytearray()
        self.header_value_offsets: array[int] = array("i", (0,))
        self.header_value_data = bytearray()
        self.header_value_validity = bytearray()
        assert self.offset.itemsize == 8
        assert self.key_offsets.itemsize == 4

    @property
    def row_count(self) -> int:
        return len(self.offset)

    @property
    def header_count(self) -> int:
        return len(self.header_value_validity)

    @property
    def data_bytes(self) -> int:
        """Bytes of keys, values and headers: the part that grows with the size of the records."""
        return (
            len(self.key_data)
            + len(self.value_data)
            + len(self.header_name_data)
            + len(self.header_value_data)
        )

    def is_full(self, limits: ColumnLimits) -> bool:
        """Whether the rows have reached one of the limits."""
        return self.data_bytes >= limits.data_bytes or self.row_count >= limits.row_count

    def check(self) -> None:
        """Prove that all columns have the same rows, and that offsets end with their data."""
        rows, headers = self.row_count, self.header_count
        assert len(self.timestamp_ms) == len(self.key_validity) == len(self.value_validity) == rows
        assert len(self.key_offsets) == len(self.value_offsets) == len(self.header_list_offsets) == rows + 1
        assert len(self.header_name_offsets) == len(self.header_value_offsets) == headers + 1
        assert self.header_list_offsets[-1] == headers
        assert self.key_offsets[-1] == len(self.key_data)
        assert self.value_offsets[-1] == len(self.value_data)
        assert self.header_name_offsets[-1] == len(self.header_name_data)
        assert self.header_value_offsets[-1] == len(self.header_value_data)
