"""Rows of fixed fields are encoded and decoded in columns as they are one by one."""

from __future__ import annotations

import struct

import pytest

from stratalog.remote.objects.fixed_layout import FixedLayout

LAYOUT = FixedLayout(("name", "3s"), ("count", "I"), ("offset", "q"))
ROWS = [(b"abc", 1, -1), (b"def", 2**32 - 1, 2**62), (b"ghi", 0, 0)]
COLUMNS = dict(zip(LAYOUT.positions, zip(*ROWS, strict=True), strict=True))


@pytest.mark.parametrize("spare_bytes", [0, 5])
def test_columns_are_the_rows(spare_bytes: int) -> None:
    data = b"".join(LAYOUT.pack(*row) + b"x" * spare_bytes for row in ROWS)
    row_bytes = LAYOUT.size_bytes + spare_bytes
    assert LAYOUT.unpack_rows(b"12" + data + b"3", 2, len(ROWS), row_bytes) == COLUMNS
    if not spare_bytes:
        assert LAYOUT.pack_rows(COLUMNS | {"other": ()}) == data


def test_no_rows_have_empty_columns() -> None:
    empty = LAYOUT.unpack_rows(b"", 0, 0, LAYOUT.size_bytes)
    assert empty == {"name": (), "count": (), "offset": ()}
    assert LAYOUT.pack_rows(empty) == b""


def test_a_value_that_does_not_fit_is_refused() -> None:
    with pytest.raises(struct.error):
        LAYOUT.pack_rows(COLUMNS | {"count": (-1, 0, 0)})
