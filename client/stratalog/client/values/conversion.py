"""Makes plain values out of messages.

A message has a value class of its own, with the names and the order of its fields. The annotations of the
class say how a field becomes plain: they are read once, when the first message of the class arrives. A oneof
becomes a single field with the one message that is set, and a status an error.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_type_hints

from stratalog.client.errors import error_of_status

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
    from google.protobuf.internal.enum_type_wrapper import (
        _EnumTypeWrapper,  # pyright: ignore[reportPrivateUsage]  # generated enums have no other type
    )
    from google.protobuf.message import Message

ValueT = TypeVar("ValueT", bound=tuple[Any, ...])
NumberT = TypeVar("NumberT", bound=int)
_Reader = Callable[[Any], object]

_STATUS = "google.rpc.Status"
_READERS: dict[type[tuple[Any, ...]], tuple[_Reader, ...]] = {}
"""The readers of each class that was in use."""
_UNKNOWN = "UNKNOWN"
_ZERO = "UNSPECIFIED"


def value_of(value_class: type[ValueT], message: Message) -> ValueT:
    """The value of a message. `value_class` is the class of the message, of
    `stratalog.client.values` or `stratalog.client.messages`."""
    readers = _READERS.get(value_class)
    if readers is None:
        readers = _READERS[value_class] = _readers(value_class, cast("Descriptor", message.DESCRIPTOR))
    fields: list[Any] = [read(message) for read in readers]
    return tuple[Any, ...].__new__(value_class, fields)


def values_of(value_class: type[ValueT], messages: Iterable[Message]) -> list[ValueT]:
    """The values of messages of one class."""
    return [value_of(value_class, message) for message in messages]


def wire_number(wire_enum: _EnumTypeWrapper[NumberT], member: enum.StrEnum) -> NumberT:
    """The number of a member on the wire, in the enum of the same name; 0 for `UNKNOWN`."""
    word = _ZERO if member.name == _UNKNOWN else member.name
    return wire_enum.Value(_prefix(wire_enum.DESCRIPTOR) + word)


def _readers(value_class: type[tuple[Any, ...]], descriptor: Descriptor) -> tuple[_Reader, ...]:
    """A reader for each field of the class: it takes a message and returns the plain value."""
    return tuple(_reader(descriptor, name, hint) for name, hint in get_type_hints(value_class).items())


def _reader(descriptor: Descriptor, name: str, hint: Any) -> _Reader:
    parts = [part for part in get_args(hint) if part not in (NoneType, ...)] or [hint]
    if name in descriptor.oneofs_by_name:
        return _oneof_reader(name, parts)
    field = descriptor.fields_by_name[name]
    get = attrgetter(name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        # A map has no order on the wire.
        return lambda message: dict(sorted(get(message).items()))
    plain = _plain(field, parts[0])
    if field.is_repeated:
        return lambda message: tuple(map(plain, get(message)) if plain is not None else get(message))
    if NoneType in get_args(hint):
        convert = plain or _same
        return lambda message: convert(get(message)) if message.HasField(name) else None
    return get if plain is None else lambda message: plain(get(message))


def _oneof_reader(name: str, classes: list[type[tuple[Any, ...]]]) -> _Reader:
    """Reads the message of a oneof; None if none is set, or one that only newer servers know."""
    by_name = {value_class.__name__: value_class for value_class in classes}

    def read(message: Message) -> object:
        field = message.WhichOneof(name)
        if field is None:
            return None
        result = getattr(message, field)
        return value_of(by_name[result.DESCRIPTOR.name], result)

    return read


def _plain(field: FieldDescriptor, part: Any) -> _Reader | None:
    """Makes an element of the field plain; None if it is plain as it is."""
    if field.enum_type is not None:
        return _member_reader(field.enum_type, part)
    if field.message_type is None:
        return None
    return error_of_status if field.message_type.full_name == _STATUS else partial(value_of, part)


def _member_reader(descriptor: EnumDescriptor, member_class: type[enum.StrEnum]) -> _Reader:
    prefix = _prefix(descriptor)
    members = {
        value.number: member_class[value.name.removeprefix(prefix)]
        for value in descriptor.values
        if value.number
    }
    unknown = member_class[_UNKNOWN]
    return lambda number: members.get(number, unknown)


def _prefix(descriptor: EnumDescriptor) -> str:
    return descriptor.values_by_number[0].name.removesuffix(_ZERO)


def _same(value: object) -> object:
    return value
