"""Values that are Protobuf messages, with a descriptor set (`protoc --include_imports -o FILE`).

Enums are their names; a number without a name is its digits. Fields with presence are null where they are
not set, others have their defaults. A message without fields, as `google.protobuf.Empty`, is true where it is
set: tables have no structs without fields.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from stratalog.base.errors import InvalidConfigError, UnsupportedOperationError
from stratalog.pipeline.lake.values.decoded_column import decoded_column
from stratalog.pipeline.lake.values.message_index import index_of, split_index
from stratalog.pipeline.lake.values.value_format import DecodedValues

if TYPE_CHECKING:
    AnyArray = pa.Array[Any]

_Convert = Callable[[Any], Any]
Found = TypeVar("Found")
_TIMESTAMP = "google.protobuf.Timestamp"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLAIN: dict[int, pa.DataType] = {
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
}


@dataclass(frozen=True, slots=True)
class ProtobufValues:
    """Implements `ValueFormat` and `PayloadFormat`. Immutable."""

    descriptors: bytes
    message: str

    @staticmethod
    def of(descriptors: bytes, message: str) -> ProtobufValues:
        """The values of a message of a descriptor set. Raises InvalidConfigError if it is not there,
        UnsupportedOperationError if it contains itself."""
        _column(_required_message(descriptors, message), ())
        return ProtobufValues(descriptors, message)

    @property
    def encoding(self) -> str:
        """The format, the message and its descriptors, shortened."""
        return f"protobuf {self.message} {hashlib.sha256(self.descriptors).hexdigest()[:32]}"

    @property
    def arrow_type(self) -> pa.DataType:
        """A struct of the fields."""
        return _column(_descriptor(self), ())[0]

    def decode(self, values: AnyArray) -> DecodedValues:
        """The values as a column."""
        return decoded_column(values, self.arrow_type, self._decoder())

    def payload_decoder(self, schema: bytes) -> Callable[[bytes], object]:
        """Decodes as `PayloadFormat.payload_decoder`; the schema is the descriptor set of the writer. Fields
        are known by their numbers, so this message decodes those of the writer."""
        written = _required_message(schema, self.message)
        _require_same_fields(written, _descriptor(self), set())
        index, decode = index_of(written), self._decoder()

        def decode_one(payload: bytes) -> object:
            found, message = split_index(payload)
            if found != index:
                raise ValueError(f"the value is the message {list(found)} of its file, not {list(index)}")
            return decode(message)

        return decode_one

    def _decoder(self) -> Callable[[bytes], object]:
        descriptor = _descriptor(self)
        convert = _column(descriptor, ())[1]
        parse = message_factory.GetMessageClass(descriptor).FromString
        return lambda value: convert(parse(value))


def _required_message(descriptors: bytes, message: str) -> Descriptor:
    """The message of a descriptor set. Raises InvalidConfigError if it is not there."""
    try:
        return _descriptor(ProtobufValues(descriptors, message))
    except (DecodeError, KeyError, TypeError) as error:
        raise InvalidConfigError(
            "the descriptor set has no such message, or is none; make it by"
            " `protoc --include_imports -o FILE`",
            name="message",
            value=message,
        ) from error


def _require_same_fields(written: Descriptor, wanted: Descriptor, done: set[str]) -> None:
    """Raise InvalidConfigError unless fields with the same number have the same type. A parser would pass
    over the others."""
    if wanted.full_name in done:
        return
    done.add(wanted.full_name)
    for number, field in wanted.fields_by_number.items():
        other = written.fields_by_number.get(number)
        if other is None:
            continue
        if (other.type, other.is_repeated) != (field.type, field.is_repeated):
            raise InvalidConfigError(
                "a field of a message has another type in the descriptor set of its writer",
                name="message",
                value=wanted.full_name,
                field=field.name,
                number=number,
            )
        if field.message_type is not None and other.message_type is not None:
            _require_same_fields(other.message_type, field.message_type, done)


def _descriptor(values: ProtobufValues) -> Descriptor:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(values.descriptors).file:
        pool.Add(file)
    return pool.FindMessageTypeByName(values.message)


def _column(descriptor: Descriptor, outer: tuple[str, ...]) -> tuple[pa.DataType, _Convert]:
    """The type of a message and its conversion."""
    if descriptor.full_name == _TIMESTAMP:
        return pa.timestamp(
            "us", tz="UTC"
        ), lambda found: _EPOCH + timedelta(seconds=found.seconds, microseconds=found.nanos // 1000)
    if descriptor.full_name in outer:
        raise UnsupportedOperationError(
            "a message of the descriptor set contains itself; tables cannot",
            message_name=descriptor.full_name,
        )
    if not descriptor.fields:
        return pa.bool_(), lambda _: True
    inner = (*outer, descriptor.full_name)
    fields = [(field, *_field_column(field, inner)) for field in descriptor.fields]
    kind = pa.struct([(field.name, kind) for field, kind, _ in fields])
    return kind, lambda found: {
        field.name: convert(getattr(found, field.name))
        if not field.has_presence or found.HasField(field.name)
        else None
        for field, _, convert in fields
    }


def _field_column(field: FieldDescriptor, outer: tuple[str, ...]) -> tuple[pa.DataType, _Convert]:
    if not field.is_repeated:
        return _single_column(field, outer)
    entry: Any = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        key, convert_key = _single_column(entry.fields_by_name["key"], outer)
        item, convert_item = _single_column(entry.fields_by_name["value"], outer)
        return pa.map_(key, item), lambda found: [
            (convert_key(one), convert_item(found[one])) for one in sorted(found)
        ]
    kind, convert = _single_column(field, outer)
    return pa.list_(kind), lambda found: [convert(one) for one in found]


def _known(found: Found | None) -> Found:
    assert found is not None, "the type of the field says so"
    return found


def _single_column(field: FieldDescriptor, outer: tuple[str, ...]) -> tuple[pa.DataType, _Convert]:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return _column(_known(field.message_type), outer)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = {value.number: value.name for value in _known(field.enum_type).values}
        return pa.string(), lambda found: names.get(found, str(found))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return (pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()), lambda found: found
    return _PLAIN[field.cpp_type], lambda found: found
