#!/usr/bin/env python
"""Writes docs/api.md: each RPC, message, field and enum of the wire, with the comments of the .proto files.

scripts/api_page.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    EnumValueDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MethodDescriptorProto,
    OneofDescriptorProto,
    ServiceDescriptorProto,
)

from proto_files import Declared, compiled, declarations, header, is_map_entry, own_files

PAGE = Path(__file__).parents[1] / "docs" / "api.md"

_TITLE = """\
# The API, field by field

Generated from the comments in `proto/stratalog/v1` by `scripts/api_page.py`: edit the files, then
`make proto`. [The gRPC protocol](protocol.md) explains the concepts behind it.
"""


def page(files: Iterable[FileDescriptorProto]) -> str:
    """The page of these files, in Markdown."""
    return "\n".join([_TITLE, *(line for file in files for line in _file(file))])


def _file(file: FileDescriptorProto) -> Iterator[str]:
    yield f"## {Path(file.name).name}\n"
    yield header(file) + "\n"
    declared = list(declarations(file))
    entries = {f".{file.package}.{name}": entry for name, entry in _map_entries("", file.message_type)}
    for one in declared:
        members = [other for other in declared if other.name.rpartition(".")[0] == one.name]
        match one.proto:
            case ServiceDescriptorProto():
                yield from _section(one, ("RPC", "request", "response", "meaning"), map(_rpc, members))
            case DescriptorProto():
                rows = _fields(one.proto, members, entries)
                yield from _section(one, ("field", "number", "type", "meaning"), rows)
            case EnumDescriptorProto():
                yield from _section(one, ("value", "number", "meaning"), map(_value, members))
            case _:
                pass


def _section(one: Declared, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"### {one.name}\n"
    yield one.comment + "\n"
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    if lines:
        yield f"| {' | '.join(columns)} |"
        yield "|---" * len(columns) + "|"
        yield from (f"| {line} |" for line in lines)
        yield ""


def _rpc(rpc: Declared) -> Sequence[str]:
    method = rpc.proto
    assert isinstance(method, MethodDescriptorProto)
    return (
        f"`{method.name}`",
        "stream of " * method.client_streaming + _link(method.input_type),
        "stream of " * method.server_streaming + _link(method.output_type),
        rpc.comment,
    )


def _value(value: Declared) -> Sequence[str]:
    assert isinstance(value.proto, EnumValueDescriptorProto)
    return f"`{value.proto.name}`", str(value.proto.number), value.comment


def _fields(
    message: DescriptorProto,
    members: Sequence[Declared],
    entries: Mapping[str, DescriptorProto],
) -> Iterator[Sequence[str]]:
    """The rows of a message. A oneof has one before those of its members."""
    oneofs = {one.proto.name: one for one in members if isinstance(one.proto, OneofDescriptorProto)}
    for one in members:
        field = one.proto
        if not isinstance(field, FieldDescriptorProto):
            continue
        if field.HasField("oneof_index"):
            oneof = oneofs.pop(message.oneof_decl[field.oneof_index].name, None)
            if oneof is not None:
                yield f"`{oneof.proto.name}`", "", "one of the next", oneof.comment
        yield f"`{field.name}`", str(field.number), _type(field, entries), one.comment


def _type(field: FieldDescriptorProto, entries: Mapping[str, DescriptorProto]) -> str:
    entry = entries.get(field.type_name)
    if entry is not None:
        key, value = entry.field
        return f"map of {_type(key, entries)} to {_type(value, entries)}"
    name = (
        _link(field.type_name)
        if field.type_name
        else f"`{FieldDescriptorProto.Type.Name(field.type).removeprefix('TYPE_').lower()}`"
    )
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {name}"
    return f"optional {name}" if field.proto3_optional else name


def _link(type_name: str) -> str:
    """The type, with a link to its section if it is ours."""
    package, _, name = type_name.removeprefix(".").partition(".v1.")
    if package != "stratalog":
        return f"`{type_name.removeprefix('.')}`"
    return f"[`{name}`](#{name.replace('.', '').lower()})"


def _map_entries(prefix: str, messages: Iterable[DescriptorProto]) -> Iterator[tuple[str, DescriptorProto]]:
    for message in messages:
        if is_map_entry(message):
            yield prefix + message.name, message
        yield from _map_entries(f"{prefix}{message.name}.", message.nested_type)


if __name__ == "__main__":
    PAGE.write_text(page(own_files(compiled())))
