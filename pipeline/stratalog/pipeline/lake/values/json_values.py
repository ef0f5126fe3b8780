"""Values that are JSON objects, with a schema.

A missing member is null, an unknown one is left out. A member of another type makes the value bad: nothing is
guessed. Times are texts in ISO 8601, by UTC without an offset; bytes are texts in Base64.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from stratalog.base.errors import UnsupportedOperationError
from stratalog.pipeline.lake.values.decoded_column import decoded_column
from stratalog.pipeline.lake.values.value_format import DecodedValues

if TYPE_CHECKING:
    AnyArray = pa.Array[Any]

_Convert = Callable[[Any], Any]
_INTEGER_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


@dataclass(frozen=True, slots=True)
class JsonValues:
    """Implements `ValueFormat` and `PayloadFormat`. Immutable."""

    arrow_type: pa.StructType

    @staticmethod
    def of(arrow_type: pa.StructType) -> JsonValues:
        """The values with these members. Raises UnsupportedOperationError for a type that JSON cannot
        fill."""
        _converter(arrow_type)
        return JsonValues(arrow_type)

    @property
    def encoding(self) -> str:
        """The format and its columns."""
        return f"json {self.arrow_type}"

    def decode(self, values: AnyArray) -> DecodedValues:
        """The values as a column."""
        return decoded_column(values, self.arrow_type, self.payload_decoder(b""))

    def payload_decoder(self, _schema: bytes) -> Callable[[bytes], object]:
        """Decodes as `PayloadFormat.payload_decoder`, whatever the schema: members have names."""
        convert = _converter(self.arrow_type)

        def decode_one(value: bytes) -> Any:
            parsed = json.loads(value, parse_float=Decimal, parse_constant=_refuse_constant)
            return _required(convert(parsed))

        return decode_one


def _required(value: Any) -> Any:
    if value is None:
        raise ValueError("null is no object")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _converter(kind: Any) -> _Convert:
    """Turns what JSON has into what Arrow takes. Raises UnsupportedOperationError for a type that JSON cannot
    fill."""
    convert = _nested_converter(kind) or _plain_converter(kind)
    if convert is None:
        raise UnsupportedOperationError(
            "JSON has no values of such a type; choose another one", type=str(kind)
        )
    return lambda found: None if found is None else convert(found)


def _nested_converter(kind: Any) -> _Convert | None:
    if pa.types.is_struct(kind):
        members = [
            (kind.field(index).name, kind.field(index).nullable, _converter(kind.field(index).type))
            for index in range(kind.num_fields)
        ]
        return lambda found: _members(_typed(found, dict), members)
    if pa.types.is_list(kind):
        item = _converter(kind.value_type)
        return lambda found: [item(one) for one in _typed(found, list)]
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        item = _converter(kind.item_type)
        return lambda found: [(key, item(value)) for key, value in _typed(found, dict).items()]
    return None


def _plain_converter(kind: Any) -> _Convert | None:
    if kind in _INTEGER_BITS:
        return lambda found: _integer(found, _INTEGER_BITS[kind])
    if pa.types.is_floating(kind):
        return lambda found: _float(_number(found), kind)
    if pa.types.is_decimal(kind):
        return lambda found: Decimal(found) if isinstance(found, str) else Decimal(_number(found))
    converters: dict[pa.DataType, _Convert] = {
        pa.bool_(): lambda found: _typed(found, bool),
        pa.string(): lambda found: _typed(found, str),
        pa.binary(): lambda found: base64.b64decode(_typed(found, str), validate=True),
        pa.date32(): lambda found: date.fromisoformat(_typed(found, str)),
        pa.timestamp("us", tz="UTC"): lambda found: _moment(_typed(found, str)),
        pa.timestamp("us"): lambda found: _local_moment(_typed(found, str)),
    }
    return converters.get(kind)


def _members(found: dict[str, Any], members: list[tuple[str, bool, _Convert]]) -> dict[str, Any]:
    converted: dict[str, Any] = {}
    for name, is_nullable, convert in members:
        try:
            value = convert(found.get(name))
        except (ValueError, ArithmeticError) as error:
            raise ValueError(f"{name}: {error}") from error
        if value is None and not is_nullable:
            raise ValueError(f"{name}: missing")
        converted[name] = value
    return converted


def _typed(found: Any, kind: type) -> Any:
    if not isinstance(found, kind):
        raise ValueError(f"a {type(found).__name__} is no {kind.__name__}")
    return found


def _number(found: Any) -> Any:
    if isinstance(found, bool) or not isinstance(found, (int, float, Decimal)):
        raise ValueError(f"a {type(found).__name__} is no number")
    return found


def _float(found: Any, kind: Any) -> float:
    converted = float(found)
    try:
        # Arrow would make an infinity of a number that a column of 32 bits lacks.
        struct.pack("<f" if kind == pa.float32() else "<d", converted)
    except OverflowError:
        converted = math.inf
    if math.isinf(converted):
        raise ValueError(f"{found} is too large")
    return converted


def _integer(found: Any, bits: int) -> int:
    if isinstance(found, bool) or not isinstance(found, int):
        raise ValueError(f"a {type(found).__name__} is no integer")
    if not -(1 << bits - 1) <= found < 1 << bits - 1:
        raise ValueError(f"{found} does not fit {bits} bits")
    return found


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    # Years below 1 and above 9999, which no reader has, raise an error here.
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _local_moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is not None:
        raise ValueError("a local time has no offset")
    return found
