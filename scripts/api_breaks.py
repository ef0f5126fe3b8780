#!/usr/bin/env python
"""Compares the .proto files with the committed state of the wire, proto/contract.txtpb, and adds new parts.

scripts/api_breaks.py [--accept]

The rules are those of category WIRE_JSON of `buf breaking`, but no type may change at all, and no RPC may
go. They find changes that an existing client would read in another way, in binary or in JSON. Numbers and
names of deleted fields and values stay reserved. If there is such a change, the script ends with code 1 and
writes nothing. --accept writes all the same: only for as long as nothing is released.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    EnumValueDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    OneofDescriptorProto,
)

from proto_files import PROTO, Declaration, compiled, declarations, is_map_entry, own_files

CONTRACT = PROTO / "contract.txtpb"

_Owner = DescriptorProto | EnumDescriptorProto
_Members = dict[int, tuple[str, object]]
"""Fields or values by number: the name, and all else that may not change."""


def read_contract(path: Path = CONTRACT) -> FileDescriptorSet:
    """The wire as it was committed."""
    return text_format.Parse(path.read_text(), FileDescriptorSet())


def without_comments(files: FileDescriptorSet) -> FileDescriptorSet:
    """A copy without positions and comments, which are not on the wire."""
    copy = FileDescriptorSet()
    copy.CopyFrom(files)
    for file in copy.file:
        file.ClearField("source_code_info")
    return copy


def breaks(old: Iterable[FileDescriptorProto], new: Iterable[FileDescriptorProto]) -> list[str]:
    """The changes that break a client of `old`, a line each."""
    before, after = _by_name(old), _by_name(new)
    found: list[str] = []
    for name, was in before.items():
        now = after.get(name)
        if now is None:
            found.append(f"{name}: deleted")
        elif isinstance(was, MethodDescriptorProto) and isinstance(now, MethodDescriptorProto):
            if _signature(was) != _signature(now):
                found.append(f"{name}: the RPC has other messages or streams")
        elif type(was) is not type(now):
            found.append(f"{name}: another kind of declaration")
        elif isinstance(was, _Owner) and isinstance(now, _Owner):
            found += (f"{name}: {text}" for text in _member_breaks(was, now))
    return found


_MEMBERS = (FieldDescriptorProto, OneofDescriptorProto, EnumValueDescriptorProto)
"""Compared with the message or the enum that has them."""


def _by_name(files: Iterable[FileDescriptorProto]) -> dict[str, Declaration]:
    """Services, RPCs, messages and enums."""
    return {
        f"{file.package}.{one.name}": one.proto
        for file in files
        for one in declarations(file)
        if not isinstance(one.proto, _MEMBERS)
    }


def _signature(method: MethodDescriptorProto) -> tuple[str, str, bool, bool]:
    return method.input_type, method.output_type, method.client_streaming, method.server_streaming


def _member_breaks(old: _Owner, new: _Owner) -> Iterator[str]:
    before, after = _members(old), _members(new)
    for number, (name, kind) in before.items():
        if number not in after:
            if number not in _reserved_numbers(new) or name not in new.reserved_name:
                yield f"{name} = {number} is deleted: reserve the number and the name"
            continue
        new_name, new_kind = after[number]
        if new_name != name:
            yield f"{name} = {number} has the name {new_name}"
        elif new_kind != kind:
            yield f"{name} = {number} has another type or place"
    for number in _reserved_numbers(old) - _reserved_numbers(new):
        yield f"{number} is no longer reserved"
    for name in sorted(set(old.reserved_name) - set(new.reserved_name)):
        yield f"{name} is no longer reserved"


def _members(owner: _Owner) -> _Members:
    if isinstance(owner, EnumDescriptorProto):
        return {value.number: (value.name, None) for value in owner.value}
    return {field.number: (field.name, _kind(owner, field)) for field in owner.field}


def _kind(message: DescriptorProto, field: FieldDescriptorProto) -> object:
    """All of a field that is on the wire or in JSON. A map counts with the types of its keys and values."""
    oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
    entry = next((one for one in message.nested_type if field.type_name.endswith(f".{one.name}")), None)
    map_types = None
    if entry is not None and is_map_entry(entry):
        map_types = [(one.type, one.type_name) for one in entry.field]
    return field.type, field.type_name, field.label, field.json_name, oneof, field.proto3_optional, map_types


def _reserved_numbers(owner: _Owner) -> set[int]:
    # The end of a range of an enum is inclusive.
    extra = 1 if isinstance(owner, EnumDescriptorProto) else 0
    return {number for one in owner.reserved_range for number in range(one.start, one.end + extra)}


def main(arguments: list[str]) -> int:
    """Compare and write. Returns the exit code."""
    now = without_comments(compiled())
    if CONTRACT.exists() and arguments != ["--accept"]:
        found = breaks(own_files(read_contract()), own_files(now))
        if found:
            print("\n".join([*found, "these changes break existing clients"]), file=sys.stderr)
            return 1
    CONTRACT.write_text(text_format.MessageToString(now))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
