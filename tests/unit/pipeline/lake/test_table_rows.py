"""Types of values that no table holds are refused with the path of the column."""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from stratalog.base.errors import UnsupportedOperationError
from stratalog.pipeline.lake.table_rows import table_schema

EMPTY = pa.struct([])
TWINS = pa.struct([("id", pa.int64()), ("ID", pa.int64())])


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (EMPTY, "value"),
        (pa.struct([("o", EMPTY)]), "value.o"),
        (pa.struct([("l", pa.list_(pa.struct([("o", EMPTY)])))]), "value.l.element.o"),
        (pa.struct([("m", pa.map_(pa.string(), EMPTY))]), "value.m.value"),
        (TWINS, "value.ID"),
        (pa.struct([("o", TWINS)]), "value.o.ID"),
        (pa.struct([("id", pa.int64()), ("id", pa.string())]), "value.id"),
    ],
)
def test_a_struct_that_tables_cannot_hold_is_refused(kind: pa.DataType, column: str) -> None:
    with pytest.raises(UnsupportedOperationError) as caught:
        table_schema(kind)
    assert caught.value.fields["column"] == column


def test_names_are_alike_within_one_struct_only() -> None:
    kind = pa.struct([("id", pa.int64()), ("o", pa.struct([("ID", pa.int64())]))])
    field = cast("Any", table_schema(kind).field("value"))
    assert field.type.num_fields == 2
