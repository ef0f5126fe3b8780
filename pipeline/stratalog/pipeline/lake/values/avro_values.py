"""Values in Avro's binary encoding, each without a header, as columns of one schema.

A record without fields is true where it is there: tables have no structs without fields.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (some of fastavro's functions have stubs with open type arguments)
from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa

from stratalog.base.errors import InvalidConfigError, UnsupportedOperationError
from stratalog.pipeline.lake.values.avro_resolution import AvroResolution
from stratalog.pipeline.lake.values.decoded_column import decoded_column
from stratalog.pipeline.lake.values.value_format import DecodedValues

if TYPE_CHECKING:
    AnyArray = pa.Array[Any]

_PLAIN: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_LOGICAL: Mapping[str, pa.DataType] = {
    "date": pa.date32(),
    "uuid": pa.string(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}

_Convert = Callable[[Any], Any]


def _same(found: Any) -> Any:
    return found


@dataclass(frozen=True, slots=True)
class AvroValues:
    """Implements `ValueFormat` and `PayloadFormat`. Immutable."""

    schema_json: str

    @staticmethod
    def of(text: str) -> AvroValues:
        """The values of a schema, an `.avsc` file's text. Raises InvalidConfigError if it is none of a
        record, UnsupportedOperationError for a type that tables lack."""
        with _schema_errors():
            schema: Any = fastavro.parse_schema(json.loads(text))
        if not isinstance(schema, dict) or schema["type"] != "record":
            raise InvalidConfigError("the Avro schema is not that of a record", name="schema")
        values = AvroValues(json.dumps(json.loads(text), sort_keys=True))
        values.arrow_type  # noqa: B018 - raises
        values.payload_decoder(text.encode())
        return values

    @property
    def encoding(self) -> str:
        """The format and its schema, shortened."""
        digest = hashlib.sha256(self.schema_json.encode()).hexdigest()[:32]
        return f"avro {digest}"

    @property
    def arrow_type(self) -> pa.DataType:
        """A struct of the fields."""
        return _Columns().of(json.loads(self.schema_json))[0]

    def decode(self, values: AnyArray) -> DecodedValues:
        """The values as a column."""
        return decoded_column(values, self.arrow_type, self.payload_decoder(self.schema_json.encode()))

    def payload_decoder(self, schema: bytes) -> Callable[[bytes], object]:
        """Decodes as `PayloadFormat.payload_decoder`; the schema is that of the writer, an `.avsc` file's
        text. This one is the reader's."""
        convert = _Columns().of(json.loads(self.schema_json))[1]
        with _schema_errors():
            resolution = AvroResolution(json.loads(schema), json.loads(self.schema_json))
        resolution.require_readable()
        written = resolution.written
        wanted = None if written == resolution.wanted else resolution.wanted

        def decode_one(value: bytes) -> Any:
            stream = io.BytesIO(value)
            found = fastavro.schemaless_reader(stream, written, wanted)
            if stream.read(1):
                raise ValueError("bytes follow the record")
            return convert(found)

        return decode_one


@contextmanager
def _schema_errors() -> Generator[None]:
    """Turn all errors into InvalidConfigError: fastavro raises many kinds."""
    try:
        yield
    except Exception as error:
        raise InvalidConfigError(
            "this is no Avro schema; correct it", name="schema", value=str(error)[:200]
        ) from error


class _Columns:
    """Finds the Arrow types of a schema, and the conversions of its values. Not thread-safe: one walk uses
    it."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: list[str] = []

    def of(self, schema: Any, namespace: str = "") -> tuple[pa.DataType, _Convert]:
        """The type and the conversion."""
        if isinstance(schema, list):
            return self._of_union(schema, namespace)
        if isinstance(schema, str):
            if schema == "null":
                raise _unsupported(schema)
            if schema in _PLAIN:
                return _PLAIN[schema], _same
            return self._of_name(schema if "." in schema else f"{namespace}.{schema}".lstrip("."), schema)
        logical = schema.get("logicalType")
        if logical == "decimal":
            return pa.decimal128(schema["precision"], schema.get("scale", 0)), _same
        if logical in _LOGICAL:
            return _LOGICAL[logical], (str if logical == "uuid" else _same)
        if logical is not None and logical.startswith("time-"):
            raise _unsupported(logical)
        kind = schema["type"]
        if kind == "array":
            item, convert = self.of(schema["items"], namespace)
            return pa.list_(item), lambda found: [_given(convert, one) for one in found]
        if kind == "map":
            item, convert = self.of(schema["values"], namespace)
            return pa.map_(pa.string(), item), lambda found: [
                (key, _given(convert, one)) for key, one in found.items()
            ]
        if kind in ("record", "enum", "fixed"):
            return self._of_definition(schema, namespace)
        return self.of(kind, namespace)

    def _of_definition(self, schema: Any, namespace: str) -> tuple[pa.DataType, _Convert]:
        name: str = schema["name"]
        inner = name.rpartition(".")[0] if "." in name else schema.get("namespace", namespace)
        full = name if "." in name else f"{inner}.{name}".lstrip(".")
        self._named[full] = (schema, inner)
        if schema["type"] != "record":
            return _PLAIN[schema["type"]], _same
        if not schema["fields"]:
            return pa.bool_(), lambda _: True
        self._open.append(full)
        found = {field["name"]: self.of(field["type"], inner) for field in schema["fields"]}
        self._open.pop()
        kind = pa.struct([(field, one[0]) for field, one in found.items()])
        return kind, lambda record: {field: _given(one[1], record[field]) for field, one in found.items()}

    def _of_name(self, full: str, short: str) -> tuple[pa.DataType, _Convert]:
        name = full if full in self._named else short
        if name in self._open or name not in self._named:
            raise UnsupportedOperationError(
                "a record of the schema contains itself; tables cannot", record=name
            )
        schema, namespace = self._named[name]
        return self._of_definition(schema, namespace)

    def _of_union(self, schema: list[Any], namespace: str) -> tuple[pa.DataType, _Convert]:
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise _unsupported("union")
        return self.of(others[0], namespace)


def _given(convert: _Convert, found: Any) -> Any:
    return None if found is None else convert(found)


def _unsupported(name: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        "tables have no such type of Avro, nor unions of more than null and one type; use another schema",
        type=name,
    )
