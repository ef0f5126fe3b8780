"""A column from Python objects, some of which may not fit its type."""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from stratalog.pipeline.lake.values.value_format import BadValue, DecodedValues

if TYPE_CHECKING:
    AnyArray = pa.Array[Any]

_ERROR_CHARACTERS = 200


def decoded_column(values: AnyArray, kind: pa.DataType, decode: Callable[[bytes], object]) -> DecodedValues:
    """Decode values one by one to a column of this type. A value for which `decode` raises, or whose object
    does not fit, is bad."""
    objects: list[Any] = []
    bad: list[BadValue] = []
    for index, value in enumerate(cast("list[bytes]", values.to_pylist())):
        try:
            objects.append(decode(value))
        except Exception as error:  # noqa: BLE001 - decoders of others raise anything at bad bytes
            objects.append(None)
            bad.append(_bad(index, error))
    try:
        return DecodedValues(pa.array(objects, kind), bad)
    except Exception:  # noqa: BLE001 - pyarrow names several errors for an object that does not fit
        known = {one.place for one in bad}
        for index, found in enumerate(objects):
            if index not in known and (misfit := _misfit(found, kind)) is not None:
                objects[index] = None
                bad.append(_bad(index, misfit))
    return DecodedValues(pa.array(objects, kind), sorted(bad))


def _misfit(found: object, kind: pa.DataType) -> Exception | None:
    try:
        pa.array([found], kind)
    except Exception as error:  # noqa: BLE001 - as above
        return error
    return None


def _bad(index: int, error: Exception) -> BadValue:
    text = " ".join(str(error).split()) or type(error).__name__
    return BadValue(index, text[:_ERROR_CHARACTERS])
