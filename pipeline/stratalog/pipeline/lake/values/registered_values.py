"""Values with the number of their schema in front, as those for Confluent's Schema Registry have it:

    0   number, 4 bytes, big-endian   payload

The payloads of all known schemas become one type of column. A value with another number is bad: by a wrong
schema its fields could be decoded to wrong columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from stratalog.base.errors import InvalidConfigError
from stratalog.pipeline.lake.values.decoded_column import decoded_column
from stratalog.pipeline.lake.values.value_format import DecodedValues

if TYPE_CHECKING:
    AnyArray = pa.Array[Any]

_PREFIX_BYTES = 5
_ANY = "any"
_KIND = "confluent"


class PayloadFormat(Protocol):
    """Decodes payloads of several schemas to one type of column. Immutable, pickled to the tasks."""

    @property
    def encoding(self) -> str:
        """Names the format and the schema of the column."""
        ...

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column."""
        ...

    def payload_decoder(self, schema: bytes, /) -> Callable[[bytes], object]:
        """Decodes what stands behind the number of this schema, and raises anything for bad bytes. Raises
        InvalidConfigError for a schema whose payloads cannot become the column, UnsupportedOperationError for
        one that tables lack."""
        ...


@dataclass(frozen=True, slots=True)
class RegisteredValues:
    """Implements `ValueFormat`. Immutable."""

    payloads: PayloadFormat
    schemas: tuple[tuple[int, bytes], ...]
    """The known numbers and their schemas, in order; none if each number is taken."""

    @staticmethod
    def of(payloads: PayloadFormat, schemas: Mapping[int, bytes]) -> RegisteredValues:
        """The values with these schemas; without any, those with each number, and the payloads need no
        schema. Raises as `PayloadFormat.payload_decoder`."""
        for number, schema in schemas.items():
            try:
                payloads.payload_decoder(schema)
            except InvalidConfigError as error:
                raise InvalidConfigError(
                    "values of a schema cannot become the columns of the table; correct --schema or"
                    " --schema-id",
                    name="--schema-id",
                    value=number,
                    reason=str(error),
                ) from error
        return RegisteredValues(payloads, tuple(sorted(schemas.items())))

    @property
    def encoding(self) -> str:
        """The numbers with their schemas, shortened, and the format of the payloads."""
        schemas = [f"{number}:{hashlib.sha256(schema).hexdigest()[:16]}" for number, schema in self.schemas]
        return f"{_KIND} {' '.join(schemas) or _ANY} of {self.payloads.encoding}"

    @property
    def arrow_type(self) -> pa.DataType:
        """That of the payloads."""
        return self.payloads.arrow_type

    def decode(self, values: AnyArray) -> DecodedValues:
        """The values as a column."""
        decoders = {number: self.payloads.payload_decoder(schema) for number, schema in self.schemas}
        any_decoder = None if decoders else self.payloads.payload_decoder(b"")

        def decode_one(value: bytes) -> object:
            if len(value) < _PREFIX_BYTES or value[0] != 0:
                raise ValueError("the value lacks the number of a schema")
            number = int.from_bytes(value[1:_PREFIX_BYTES])
            decoder = decoders.get(number, any_decoder)
            if decoder is None:
                raise ValueError(f"the value has the schema {number}, which is unknown")
            return decoder(value[_PREFIX_BYTES:])

        return decoded_column(values, self.arrow_type, decode_one)


def only_adds_schemas(before: str, after: str) -> bool:
    """Whether the format with the encoding `after` decodes each value as the one with `before`, unless that
    has found it bad because it did not know its schema."""
    old, _, old_payloads = before.partition(" of ")
    new, _, new_payloads = after.partition(" of ")
    old_schemas, new_schemas = set(old.split(" ")), set(new.split(" "))
    is_known = _KIND in old_schemas and _ANY not in old_schemas
    return is_known and old_schemas <= new_schemas and old_payloads == new_payloads
