"""Values with the number of their schema in front, made by hand as Confluent's serializers make them, become
the columns of one schema, whichever of the known ones wrote them."""

# pyright: reportUnknownMemberType=false
# (some of fastavro's functions have stubs with open type arguments)
from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, datetime
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from stratalog.base.errors import InvalidConfigError
from stratalog.pipeline.lake.values.avro_values import AvroValues
from stratalog.pipeline.lake.values.json_values import JsonValues
from stratalog.pipeline.lake.values.protobuf_values import ProtobufValues
from stratalog.pipeline.lake.values.registered_values import RegisteredValues, only_adds_schemas

Field = descriptor_pb2.FieldDescriptorProto


def prefixed(number: int, payload: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + payload


def decoded(values: RegisteredValues, *given: bytes) -> tuple[list[Any], dict[int, str]]:
    """The column, and the errors by the places of their values."""
    copy: RegisteredValues = pickle.loads(pickle.dumps(values))
    found = copy.decode(pa.array(given, pa.binary()))
    return found.column.to_pylist(), {one.place: one.error for one in found.bad}


def record(*fields: dict[str, Any], name: str = "P", **more: Any) -> bytes:
    return json.dumps({"type": "record", "name": name, "fields": fields, **more}).encode()


def avro(wanted: bytes, **written: bytes) -> RegisteredValues:
    """Values of the schemas `s1`, `s2` and so on, as columns of the wanted one."""
    schemas = {int(name[1:]): schema for name, schema in written.items()}
    return RegisteredValues.of(AvroValues.of(wanted.decode()), schemas)


FIRST = record({"name": "first", "type": "string"}, {"name": "age", "type": "int"})
SECOND = record(
    {"name": "last", "type": "string", "default": "-"},
    {"name": "age", "type": "long"},
    {"name": "first", "type": ["null", "string"], "default": None},
)


def test_avro_of_several_writers_becomes_the_columns_of_one_reader() -> None:
    values = avro(SECOND, s1=FIRST, s70000=SECOND)
    rows, errors = decoded(
        values,
        b"\0\0\0\0\1" + b"\x06Ada" + b"\x48",
        b"\0\0\1\x11\x70" + b"\x10Lovelace" + b"\x4a" + b"\x02\x06Ada",
        b"\0\0\0\0\2" + b"\x06Ada" + b"\x48",
        b"\1\0\0\0\1" + b"\x06Ada" + b"\x48",
        b"\0\0\0\1",
        b"\0\0\0\0\1" + b"\x06Ada" + b"\x48\0",
    )
    assert rows == [
        {"last": "-", "age": 36, "first": "Ada"},
        {"last": "Lovelace", "age": 37, "first": "Ada"},
        *[None] * 4,
    ]
    assert list(errors) == [2, 3, 4, 5]
    assert errors[2] == "the value has the schema 2, which is unknown"


def test_fastavro_writes_what_is_read() -> None:
    written = record(
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "odd", "type": ["int", "string", "null"]},
        {"name": "tags", "type": {"type": "array", "items": "int"}},
        {"name": "inner", "type": json.loads(record({"name": "old", "type": "float"}, name="I"))},
    )
    wanted = record(
        {"name": "inner", "type": json.loads(record(
            {"name": "new", "type": "double", "aliases": ["old"]}, name="I"))},
        {"name": "tags", "type": {"type": "array", "items": "long"}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        name="ns.Q",
        aliases=["P"],
    )  # fmt: skip
    stream = io.BytesIO()
    at = datetime(2024, 2, 29, 1, 2, 3, 4000, tzinfo=UTC)
    value = {"at": at, "odd": "text", "tags": [1, 2], "inner": {"old": 0.5}}
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(written)), value)
    rows, errors = decoded(avro(wanted, s5=written), prefixed(5, stream.getvalue()))
    assert (rows, errors) == ([{"inner": {"new": 0.5}, "tags": [1, 2], "at": at}], {})


TIME = {"type": "long", "logicalType": "timestamp-millis"}
BYTES = {"type": "bytes", "logicalType": "decimal", "precision": 8}


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ({"type": "string"}, {"type": "int"}),
        ({"type": "long"}, {"type": "int"}),
        ({"type": "long"}, {"type": TIME}),
        ({"type": TIME}, {"type": "long"}),
        ({"type": TIME}, {"type": {"type": "long", "logicalType": "local-timestamp-millis"}}),
        ({"type": {**BYTES, "scale": 2}}, {"type": {**BYTES, "scale": 3}}),
        ({"type": ["int", "string"]}, {"type": "int"}),
        ({"type": {"type": "array", "items": "long"}}, {"type": {"type": "array", "items": TIME}}),
        ({"type": {"type": "map", "values": "long"}}, {"type": {"type": "map", "values": "string"}}),
        ({"name": "other", "type": "int"}, {"type": "int"}),
        ({"name": "other", "type": "int"}, {"type": TIME, "default": 1000}),
        ({"name": "other", "type": "int"}, {"type": "bytes", "default": "\u00ff"}),
        ({"name": "old", "type": "long"}, {"type": TIME, "aliases": ["old"]}),
        (
            {"type": {"type": "fixed", "name": "F", "size": 2}},
            {"type": {"type": "fixed", "name": "F", "size": 3}},
        ),
    ],
)
def test_a_schema_that_cannot_be_read_as_the_columns_is_refused(
    written: dict[str, Any], wanted: dict[str, Any]
) -> None:
    """Before any value is read: fastavro would give some of them wrong values."""
    schemas = [record({"name": "field", **one}) for one in (written, wanted)]
    with pytest.raises(InvalidConfigError) as caught:
        avro(schemas[1], s7=schemas[0])
    assert caught.value.fields["value"] == 7
    assert "field" in str(caught.value.fields["reason"])


def test_records_of_another_name_are_refused() -> None:
    with pytest.raises(InvalidConfigError):
        avro(FIRST, s1=FIRST.replace(b'"P"', b'"Q"'))
    with pytest.raises(InvalidConfigError):
        avro(FIRST, s1=b"{}")


def shop(*, extra: int = 0, kind: int = Field.TYPE_INT64) -> bytes:
    """A file with the messages `First` and `Outer`, which has a map and the messages `A` and `B` inside."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.message_type.add(name="First").field.add(
        name="id", number=1, type=Field.TYPE_INT64, label=Field.LABEL_OPTIONAL
    )
    outer = file.message_type.add(name="Outer")
    entry = outer.nested_type.add(name="SizesEntry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    outer.field.add(
        name="sizes",
        number=1,
        type=Field.TYPE_MESSAGE,
        label=Field.LABEL_REPEATED,
        type_name=".shop.Outer.SizesEntry",
    )
    for name in ("A", "B"):
        message = outer.nested_type.add(name=name)
        message.field.add(name="id", number=1, type=kind, label=Field.LABEL_OPTIONAL)
        for number in range(extra):
            message.field.add(
                name=f"more_{number}", number=2 + number, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL
            )
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def test_protobuf_has_the_index_of_its_message_in_front() -> None:
    nested = RegisteredValues.of(
        ProtobufValues.of(shop(extra=1), "shop.Outer.B"), {3: shop(), 4: shop(extra=1)}
    )
    # The indexes 1 and 1, by zigzag: two of them.
    index, message = b"\x04\x02\x02", b"\x08\x96\x01"
    rows, errors = decoded(
        nested,
        prefixed(3, index + message),
        prefixed(4, index + message + b"\x12\x02hi"),
        prefixed(4, b"\x04\x02\x00" + message),
        prefixed(4, b"\0" + message),
        prefixed(4, b"\x01" + message),
        prefixed(4, b"\x04\x02"),
        prefixed(4, b"\xff" * 9),
        prefixed(9, index + message),
    )
    assert rows == [{"id": 150, "more_0": ""}, {"id": 150, "more_0": "hi"}, *[None] * 6]
    assert list(errors) == [2, 3, 4, 5, 6, 7]
    assert "[1, 0]" in errors[2]
    assert "schema 9" in errors[7]
    first = RegisteredValues.of(ProtobufValues.of(shop(), "shop.First"), {3: shop()})
    rows, errors = decoded(first, prefixed(3, b"\0" + message), prefixed(3, b"\x02\0" + message))
    assert (rows, errors) == ([{"id": 150}] * 2, {})


@pytest.mark.parametrize("written", [shop(kind=Field.TYPE_STRING), b"\xff", b""])
def test_a_descriptor_set_whose_message_has_other_types_is_refused(written: bytes) -> None:
    """A parser would pass over the field, and it would be null."""
    with pytest.raises(InvalidConfigError) as caught:
        RegisteredValues.of(ProtobufValues.of(shop(), "shop.Outer.B"), {3: written})
    assert caught.value.fields["value"] == 3


def test_json_has_the_number_alone() -> None:
    kind = pa.struct([pa.field("id", pa.int64())])
    some = RegisteredValues.of(JsonValues.of(kind), {1: b"", 3: b""})
    every = RegisteredValues.of(JsonValues.of(kind), {})
    given = [prefixed(number, b'{"id": 7}') for number in (1, 2, 3)]
    assert decoded(some, *given) == (
        [{"id": 7}, None, {"id": 7}],
        {1: "the value has the schema 2, which is unknown"},
    )
    rows, errors = decoded(every, *given, b'{"id": 7}')
    assert rows == [*[{"id": 7}] * 3, None]
    assert list(errors) == [3]


def test_schemas_may_be_added() -> None:
    one, both = avro(SECOND, s1=FIRST), avro(SECOND, s1=FIRST, s2=SECOND)
    changed, other = avro(SECOND, s1=SECOND, s2=SECOND), avro(FIRST, s1=FIRST, s2=FIRST)
    every = RegisteredValues.of(JsonValues.of(pa.struct([pa.field("id", pa.int64())])), {})
    assert only_adds_schemas(one.encoding, both.encoding)
    for before, after in ((both, one), (one, changed), (one, other), (one, every), (every, one)):
        assert not only_adds_schemas(before.encoding, after.encoding)
    plain = AvroValues.of(SECOND.decode())
    assert not only_adds_schemas(plain.encoding, one.encoding)
    assert not only_adds_schemas(one.encoding, plain.encoding)
    assert not only_adds_schemas("raw", one.encoding)


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_bad_or_a_record(seed: int) -> None:
    random = Random(seed)
    given = [prefixed(1, random.randbytes(random.randrange(12))) for _ in range(50)]
    for values in (
        avro(SECOND, s1=FIRST),
        RegisteredValues.of(ProtobufValues.of(shop(), "shop.Outer.B"), {1: shop()}),
    ):
        rows, errors = decoded(values, *given)
        assert [row is None for row in rows] == [place in errors for place in range(50)]
