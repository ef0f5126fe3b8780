"""Protobuf messages as columns, and descriptor sets that are refused."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.json_format import ParseDict

from stratalog.base.errors import InvalidConfigError, UnsupportedOperationError
from stratalog.pipeline.lake.values.protobuf_values import ProtobufValues

Field = descriptor_pb2.FieldDescriptorProto


def descriptor_set() -> bytes:
    """The messages `shop.Order`, and `shop.Tree`, which contains itself."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    state = file.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="SizesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    for number, (name, kind, label, type_name) in enumerate(
        (
            ("id", Field.TYPE_INT64, Field.LABEL_OPTIONAL, ""),
            ("count", Field.TYPE_UINT64, Field.LABEL_OPTIONAL, ""),
            ("data", Field.TYPE_BYTES, Field.LABEL_OPTIONAL, ""),
            ("tags", Field.TYPE_STRING, Field.LABEL_REPEATED, ""),
            ("sizes", Field.TYPE_MESSAGE, Field.LABEL_REPEATED, ".shop.Order.SizesEntry"),
            ("state", Field.TYPE_ENUM, Field.LABEL_OPTIONAL, ".shop.State"),
            ("at", Field.TYPE_MESSAGE, Field.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
        ),
        1,
    ):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    tree = file.message_type.add(name="Tree")
    tree.field.add(
        name="left", number=1, type=Field.TYPE_MESSAGE, label=Field.LABEL_OPTIONAL, type_name=".shop.Tree"
    )
    times = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(times)
    return descriptor_pb2.FileDescriptorSet(file=[times, file]).SerializeToString()


def test_each_type_and_bad_values() -> None:
    values: ProtobufValues = pickle.loads(pickle.dumps(ProtobufValues.of(descriptor_set(), "shop.Order")))
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set()).file:
        pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))()
    document = {
        "id": "-5",
        "count": str(2**64 - 1),
        "data": "AP8=",
        "tags": ["a", "b"],
        "sizes": {"x": 1, "a": 2},
        "state": "PAID",
        "at": "2024-02-29T00:00:00.000001Z",
    }
    ParseDict(document, message)
    found = values.decode(pa.array([message.SerializeToString(), b"", b"\xff"], pa.binary()))
    rows: list[Any] = found.column.to_pylist()
    full, empty, bad = rows
    assert full == {
        "id": -5,
        "count": Decimal(2**64 - 1),
        "data": b"\0\xff",
        "tags": ["a", "b"],
        "sizes": [("a", 2), ("x", 1)],
        "state": "PAID",
        "at": datetime(2024, 2, 29, microsecond=1, tzinfo=UTC),
    }
    assert (empty["id"], empty["state"], empty["at"], empty["tags"]) == (0, "NEW", None, [])
    assert bad is None
    assert [one.place for one in found.bad] == [2]


def test_a_message_that_contains_itself_is_refused() -> None:
    with pytest.raises(UnsupportedOperationError):
        ProtobufValues.of(descriptor_set(), "shop.Tree")


@pytest.mark.parametrize(("data", "name"), [(descriptor_set(), "shop.Other"), (b"\xff", "shop.Order")])
def test_a_message_that_is_not_there_is_refused(data: bytes, name: str) -> None:
    with pytest.raises(InvalidConfigError):
        ProtobufValues.of(data, name)


def test_a_message_without_fields_is_true_where_it_is_set() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="e.proto", package="e", syntax="proto3")
    file.message_type.add(name="Empty")
    event = file.message_type.add(name="Event")
    for number, (name, label) in enumerate(
        (("paid", Field.LABEL_OPTIONAL), ("sent", Field.LABEL_OPTIONAL), ("marks", Field.LABEL_REPEATED)), 1
    ):
        event.field.add(name=name, number=number, type=Field.TYPE_MESSAGE, label=label, type_name=".e.Empty")
    data = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    values = ProtobufValues.of(data, "e.Event")
    # Field 1 once, and field 3 twice, each with no bytes.
    decoded = values.decode(pa.array([b"\x0a\x00\x1a\x00\x1a\x00"]))
    assert decoded.column.to_pylist() == [{"paid": True, "sent": None, "marks": [True, True]}]
    assert ProtobufValues.of(data, "e.Empty").arrow_type == pa.bool_()
