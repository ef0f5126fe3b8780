"""The .proto files of the wire as descriptors, with their comments."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    EnumValueDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    OneofDescriptorProto,
    ServiceDescriptorProto,
)

PROTO = Path(__file__).parents[1] / "proto"
PACKAGE_PATH = "stratalog/"
"""The files below it are ours; others are imported."""

Declaration = (
    DescriptorProto
    | EnumDescriptorProto
    | EnumValueDescriptorProto
    | FieldDescriptorProto
    | MethodDescriptorProto
    | OneofDescriptorProto
    | ServiceDescriptorProto
)

# Numbers of the fields of descriptor.proto, which make up the path of a declaration.
_FILE_MESSAGE, _FILE_ENUM, _FILE_SERVICE, _FILE_SYNTAX = 4, 5, 6, 12
_MESSAGE_FIELD, _MESSAGE_NESTED, _MESSAGE_ENUM, _MESSAGE_ONEOF = 2, 3, 4, 8
_ENUM_VALUE = _SERVICE_METHOD = 2


class Declared(NamedTuple):
    """A declaration of a file, and the comment before it."""

    name: str
    """With the names around it, without the package: `AppendRequest.topic`."""
    comment: str
    proto: Declaration


def compiled(root: Path = PROTO) -> FileDescriptorSet:
    """The files below `root` and those that they import, compiled with their comments."""
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "descriptors"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={root}"]
        # Packages may hold .proto files, too: those of google.rpc are in googleapis-common-protos.
        command += [f"--proto_path={sysconfig.get_path('purelib')}", "--include_imports"]
        command += ["--include_source_info", f"--descriptor_set_out={target}", *names]
        subprocess.run(command, check=True)
        return FileDescriptorSet.FromString(target.read_bytes())


def own_files(files: FileDescriptorSet) -> list[FileDescriptorProto]:
    """The files of this repository."""
    return [file for file in files.file if file.name.startswith(PACKAGE_PATH)]


def header(file: FileDescriptorProto) -> str:
    """The comment at the top of the file."""
    for location in file.source_code_info.location:
        if list(location.path) == [_FILE_SYNTAX]:
            return _text(location.leading_comments)
    return ""


def declarations(file: FileDescriptorProto) -> Iterator[Declared]:
    """All declarations of the file: services, messages and enums, each before its members."""
    comments = {
        tuple(location.path): _text(location.leading_comments) for location in file.source_code_info.location
    }
    for path, name, proto in _declarations(file):
        yield Declared(name, comments.get(path, ""), proto)


def is_map_entry(message: DescriptorProto) -> bool:
    """Whether protoc made the message out of a map field."""
    return message.options.map_entry


_Placed = tuple[tuple[int, ...], str, Declaration]


def _declarations(file: FileDescriptorProto) -> Iterator[_Placed]:
    for index, service in enumerate(file.service):
        yield (_FILE_SERVICE, index), service.name, service
        for number, method in enumerate(service.method):
            yield (_FILE_SERVICE, index, _SERVICE_METHOD, number), f"{service.name}.{method.name}", method
    for index, message in enumerate(file.message_type):
        yield from _in_message((_FILE_MESSAGE, index), message.name, message)
    for index, enum in enumerate(file.enum_type):
        yield from _in_enum((_FILE_ENUM, index), enum.name, enum)


def _in_message(path: tuple[int, ...], name: str, message: DescriptorProto) -> Iterator[_Placed]:
    if is_map_entry(message):
        return
    yield path, name, message
    # A field that is `optional` has a oneof of its own that the file does not have.
    synthetic = {field.oneof_index for field in message.field if field.proto3_optional}
    for index, oneof in enumerate(message.oneof_decl):
        if index not in synthetic:
            yield (*path, _MESSAGE_ONEOF, index), f"{name}.{oneof.name}", oneof
    for index, field in enumerate(message.field):
        yield (*path, _MESSAGE_FIELD, index), f"{name}.{field.name}", field
    for index, nested in enumerate(message.nested_type):
        yield from _in_message((*path, _MESSAGE_NESTED, index), f"{name}.{nested.name}", nested)
    for index, enum in enumerate(message.enum_type):
        yield from _in_enum((*path, _MESSAGE_ENUM, index), f"{name}.{enum.name}", enum)


def _in_enum(path: tuple[int, ...], name: str, enum: EnumDescriptorProto) -> Iterator[_Placed]:
    yield path, name, enum
    for index, value in enumerate(enum.value):
        yield (*path, _ENUM_VALUE, index), f"{name}.{value.name}", value


def _text(comment: str) -> str:
    return " ".join(comment.split())
