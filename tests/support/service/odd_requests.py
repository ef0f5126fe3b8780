"""Requests without sense for any call, made from the descriptor of its message.

Each request is a sensible one with one odd field: an oversized text, a negative or the largest number, an
enum without a name, bytes that are garbage. A new field or a new call needs no line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

OVERSIZED = "x" * (1 << 20)
TEXTS: Mapping[str, str] = {"oversized": OVERSIZED, "empty": "", "nul": "a\0b", "path": "../..//"}
MANY_COUNT = 20_000
"""Values in a long list: more than any call takes."""
RANGES: Mapping[int, tuple[int, int]] = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
SENSIBLE: Mapping[str, Any] = {"topic": "t", "topics": "t", "name": "t", "names": "t", "partition": 0}
"""The values of the sensible request, by the names of fields; other numbers are 0, and other texts empty."""


def odd_requests(descriptor: Descriptor) -> Iterator[tuple[str, Message]]:
    """Requests of this message, each with a text that says what is odd in it."""
    request_class: Callable[[], Message] = GetMessageClass(descriptor)
    yield "empty", request_class()
    for path in _paths(descriptor):
        for label, value in _odd_values(path[-1]):
            request = request_class()
            _fill(request)
            holder: Any = request
            for field in path[:-1]:
                is_new = not field.is_repeated and not holder.HasField(field.name)
                holder = _enter(holder, field)
                if is_new:
                    _fill(holder)
            _set(holder, path[-1], value)
            yield f"{'.'.join(field.name for field in path)}: {label}", request


def _paths(descriptor: Descriptor) -> Iterator[tuple[FieldDescriptor, ...]]:
    """The ways to all fields that hold no message."""
    for field in descriptor.fields:
        if field.message_type is None or _is_map(field):
            yield (field,)
        else:
            for path in _paths(field.message_type):
                yield (field, *path)


def _odd_values(field: FieldDescriptor) -> Iterator[tuple[str, object]]:
    kind = field.cpp_type
    if _is_map(field):
        for label, text in TEXTS.items():
            yield f"key {label}", {text: "1"}
            yield f"value {label}", {"retention.ms": text}
    elif kind == FieldDescriptor.CPPTYPE_STRING and field.type == FieldDescriptor.TYPE_STRING:
        yield from TEXTS.items()
        if field.is_repeated:
            yield "many", ["t"] * MANY_COUNT
    elif kind == FieldDescriptor.CPPTYPE_STRING:
        yield "garbage", OVERSIZED.encode()
        yield "no bytes", b""
    elif kind == FieldDescriptor.CPPTYPE_ENUM:
        yield from (("no name", 999), ("negative", -1), ("zero", 0))
    elif kind in RANGES:
        lowest, highest = RANGES[kind]
        yield from (("lowest", lowest), ("highest", highest), ("2^31 - 1", 2**31 - 1))
        if lowest < 0:
            yield "negative", -1
        if field.is_repeated:
            yield "many, the last one twice", [*range(MANY_COUNT), MANY_COUNT - 1]
    elif kind == FieldDescriptor.CPPTYPE_BOOL:
        yield "true", True
    else:
        yield from (("infinite", float("inf")), ("negative", -1.0), ("no number", float("nan")))


def _fill(message: Any) -> None:
    """Give each field with a `SENSIBLE` value that value, each list of messages one, and each oneof its last
    member."""
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        is_chosen = oneof is None or oneof.fields[-1] is field
        if field.message_type is None:
            if is_chosen and field.name in SENSIBLE:
                _set(message, field, SENSIBLE[field.name])
        elif not _is_map(field) and (field.is_repeated or (oneof is not None and is_chosen)):
            _fill(_enter(message, field))


def _enter(message: Any, field: FieldDescriptor) -> Any:
    """The message in this field; the first one of several."""
    inner = getattr(message, field.name)
    if not field.is_repeated:
        inner.SetInParent()
        return inner
    return inner[0] if len(inner) else inner.add()


def _set(message: Any, field: FieldDescriptor, value: Any) -> None:
    if _is_map(field):
        getattr(message, field.name).update(value)
    elif field.is_repeated:
        message.ClearField(field.name)
        getattr(message, field.name).extend(value if isinstance(value, list) else [value])
    else:
        setattr(message, field.name, value)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
