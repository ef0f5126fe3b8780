#!/usr/bin/env python
"""Writes the values of the client's control plane: classes for the answers of the .proto files.

scripts/client_values.py

A class stands for each message that an answer holds, and for each enum of these, with the comments of the
files. An answer of several fields is a value itself; one of a single field is an envelope, and only the field
counts. `stratalog/client/values/conversion.py` makes the values out of messages.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    EnumValueDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    OneofDescriptorProto,
    ServiceDescriptorProto,
)

from proto_files import Declared, compiled, declarations, is_map_entry, own_files

ROOT = Path(__file__).parents[1]
FOLDER = Path("client/stratalog/client/values")
PACKAGE = "stratalog.client.values"

_SOURCES = ("admin", "operation", "partition", "tier")
"""The .proto files of the control plane."""
_STATUS = ".google.rpc.Status"
_PAGE_TOKEN = "next_page_token"
_ANSWERS = {
    "DescribeLogDirsResponse": "LogDirs",
    "FinalizeMetadataResponse": "FinalizedMetadata",
    "PlanCompactionResponse": "CompactionPlan",
}
"""The values of answers whose names begin with a verb."""
_ON_THE_WIRE = re.compile(
    r"^A page of "
    r"|\s*All pages are of one plan: .*"
    r"|\s*Each page has them as they are then\."
    r"|\s*With the first page only\."
    r"|(?<=, and )a page of "
    r"|\s*Details as in a failed call\."
)
"""Says how an answer is cut, or what a status holds: values are whole, and hold errors."""
_WIDTH = 110

_Field = FieldDescriptorProto
_TYPES = {
    _Field.TYPE_BOOL: "bool",
    _Field.TYPE_BYTES: "bytes",
    _Field.TYPE_DOUBLE: "float",
    _Field.TYPE_INT32: "int",
    _Field.TYPE_INT64: "int",
    _Field.TYPE_STRING: "str",
}


class _Declarations(NamedTuple):
    """All that the files of the control plane declare, by the full name of protoc."""

    by_name: Mapping[str, Declared]
    modules: Mapping[str, str]
    """The module of the values for each message and enum."""

    def members(self, full_name: str) -> list[tuple[str, Declared]]:
        """The fields and oneofs of a message, or the values of an enum."""
        return [(name, one) for name, one in self.by_name.items() if name.rpartition(".")[0] == full_name]


def generated() -> dict[Path, str]:
    """The text of each generated file."""
    files = [file for file in own_files(compiled()) if Path(file.name).stem in _SOURCES]
    declared = _declared(files)
    used = _used(files, declared)
    texts = {FOLDER / f"{source}_values.py": _module(source, used, declared) for source in _SOURCES}
    texts[FOLDER / "__init__.py"] = _package(used, declared)
    return {path: _formatted(text) for path, text in texts.items()}


def _declared(files: Sequence[FileDescriptorProto]) -> _Declarations:
    by_name: dict[str, Declared] = {}
    modules: dict[str, str] = {}
    for file in files:
        for one in declarations(file):
            full_name = f".{file.package}.{one.name}"
            by_name[full_name] = one
            modules[full_name] = f"{Path(file.name).stem}_values"
    return _Declarations(by_name, modules)


def _used(files: Sequence[FileDescriptorProto], declared: _Declarations) -> list[str]:
    """The messages and enums that become values, in the order of the files."""
    answers = [method.output_type for service in _services(files) for method in service.method]
    used: set[str] = set()
    left = [name for answer in answers for name in _first_values(answer, declared)]
    while left:
        name = left.pop()
        if name not in used:
            used.add(name)
            left += _parts(name, declared)
    return [name for name in declared.by_name if name in used]


def _services(files: Sequence[FileDescriptorProto]) -> Iterator[ServiceDescriptorProto]:
    for file in files:
        yield from file.service


def _first_values(answer: str, declared: _Declarations) -> list[str]:
    message = declared.by_name[answer].proto
    assert isinstance(message, DescriptorProto)
    is_envelope = len([field for field in message.field if field.name != _PAGE_TOKEN]) <= 1
    return _parts(answer, declared) if is_envelope else [answer]


def _parts(full_name: str, declared: _Declarations) -> list[str]:
    """The messages and enums of the fields of a message."""
    message = declared.by_name[full_name].proto
    fields = message.field if isinstance(message, DescriptorProto) else ()
    return [field.type_name for field in fields if field.type_name in declared.by_name]


def _package(used: Sequence[str], declared: _Declarations) -> str:
    """The `__init__.py`, which loads the modules when they are first used."""
    names = {_class_name(name, declared): declared.modules[name] for name in used}
    names |= {alias: declared.modules[name] for name in used for alias in _aliases(name, declared)}
    imports = [f"    from {PACKAGE}.{module} import {name} as {name}" for name, module in names.items()]
    return "\n".join(
        [
            '"""Values of the control plane: results and enums of `Client.admin`, `topics` and `operations`.',
            "",
            "They can be imported from here. Their modules are loaded when they are first used. Generated",
            "from the .proto files by `scripts/client_values.py`: edit these, then `make proto`.",
            '"""',
            "",
            "from __future__ import annotations",
            "",
            "from typing import TYPE_CHECKING",
            "",
            "if TYPE_CHECKING:",
            *sorted(imports, key=str.lower),
            "",
            "_MODULES = {",
            *(f'    "{name}": "{module}",' for name, module in sorted(names.items())),
            "}",
            "",
            "def __getattr__(name: str) -> object:",
            "    if name not in _MODULES:",
            '        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")',
            "    import importlib",
            "",
            '    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)',
        ]
    )


def _module(source: str, used: Sequence[str], declared: _Declarations) -> str:
    own = [name for name in used if declared.modules[name] == f"{source}_values"]
    bodies = [_enum(name, declared) for name in own if _is_enum(name, declared)]
    for name in _parts_first(own, declared):
        if not _is_enum(name, declared):
            bodies += [*_aliases(name, declared).values(), _value(name, declared)]
    body = "\n".join(bodies)
    imports = ["import enum"] if "enum.StrEnum" in body else []
    imports += ["from collections.abc import Mapping"] if "Mapping[" in body else []
    imports += ["from typing import NamedTuple", ""]
    imports += ["from stratalog.base.errors import LogStoreError"] if "LogStoreError" in body else []
    others = {part for name in own for part in _parts(name, declared)} - set(own)
    imports += sorted(
        f"from {PACKAGE}.{declared.modules[other]} import {_class_name(other, declared)}" for other in others
    )
    head = (
        f'"""Values of the messages of ``stratalog/v1/{source}.proto``.\n\n'
        "Generated by `scripts/client_values.py`: edit the .proto file, then `make proto`. Annotations are\n"
        "types and no texts, which a NamedTuple would compile one by one when it is imported.\n"
        '"""\n'
    )
    return "\n".join([head, *imports, body])


def _parts_first(names: Sequence[str], declared: _Declarations) -> list[str]:
    """The names in an order in which the parts of a message come before it."""
    ordered: list[str] = []

    def place(name: str) -> None:
        if name in names and name not in ordered:
            for part in _parts(name, declared):
                place(part)
            ordered.append(name)

    for name in names:
        place(name)
    return ordered


def _enum(full_name: str, declared: _Declarations) -> str:
    name = _class_name(full_name, declared)
    members = [(one.proto, one.comment) for _, one in declared.members(full_name)]
    lines = [f"class {name}(enum.StrEnum):", _docstring(declared.by_name[full_name].comment), ""]
    zero = members[0][0].name
    assert zero.endswith("UNSPECIFIED"), f"{name} has no value for 0"
    for value, comment in members[1:]:
        assert isinstance(value, EnumValueDescriptorProto)
        word = value.name.removeprefix(zero.removesuffix("UNSPECIFIED"))
        lines += [f'    {word} = "{word.lower().replace("_", "-")}"', _docstring(comment)]
    lines += ['    UNKNOWN = "unknown"', _docstring("A value that only newer servers know.")]
    return "\n".join(lines)


def _value(full_name: str, declared: _Declarations) -> str:
    message = declared.by_name[full_name]
    comment = _ON_THE_WIRE.sub("", message.comment)
    lines = [f"class {_class_name(full_name, declared)}(NamedTuple):"]
    lines += [_docstring(comment[0].upper() + comment[1:]), ""]
    proto = message.proto
    assert isinstance(proto, DescriptorProto)
    entries = {f"{full_name}.{one.name}": one for one in proto.nested_type if is_map_entry(one)}
    members = dict(declared.members(full_name))
    for field in proto.field:
        if field.name == _PAGE_TOKEN:
            continue
        oneof = _oneof_of(field, proto)
        name = oneof.name if oneof is not None else field.name
        one = members.pop(f"{full_name}.{name}", None)
        # A oneof comes once, before its first field.
        if one is None:
            continue
        hint = f"{_alias(full_name, name, declared)} | None" if oneof is not None else ""
        lines.append(f"    {name}: {hint or _hint(field, one.comment, entries, declared)}")
        lines.append(_docstring(_sentence(name, _ON_THE_WIRE.sub("", one.comment))))
    return "\n".join(lines)


def _oneof_of(field: FieldDescriptorProto, message: DescriptorProto) -> OneofDescriptorProto | None:
    """The oneof of the file that has the field."""
    if field.proto3_optional or not field.HasField("oneof_index"):
        return None
    return message.oneof_decl[field.oneof_index]


def _aliases(full_name: str, declared: _Declarations) -> dict[str, str]:
    """For each oneof of a message: the name of the type of its values, and the definition."""
    message = declared.by_name[full_name].proto
    found: dict[str, list[str]] = {}
    for field in message.field if isinstance(message, DescriptorProto) else ():
        assert isinstance(message, DescriptorProto)
        oneof = _oneof_of(field, message)
        if oneof is not None:
            alias = _alias(full_name, oneof.name, declared)
            found.setdefault(alias, []).append(_class_name(field.type_name, declared))
    return {alias: f"{alias} = {' | '.join(classes)}" for alias, classes in found.items()}


def _alias(full_name: str, oneof: str, declared: _Declarations) -> str:
    return _class_name(full_name, declared) + oneof.title().replace("_", "")


def _hint(
    field: FieldDescriptorProto,
    comment: str,
    entries: Mapping[str, DescriptorProto],
    declared: _Declarations,
) -> str:
    """The type of a field. A message may be missing if its comment says so; else all of it is 0 or empty."""
    if field.type_name in entries:
        key, value = (_TYPES[part.type] for part in entries[field.type_name].field)
        return f"Mapping[{key}, {value}]"
    if field.type_name == _STATUS:
        name = "LogStoreError"
    elif field.type_name:
        name = _class_name(field.type_name, declared)
    else:
        name = _TYPES[field.type]
    if field.label == _Field.LABEL_REPEATED:
        return f"tuple[{name}, ...]"
    is_message = field.type == _Field.TYPE_MESSAGE
    if field.proto3_optional or (is_message and re.match(r"(Set|Not set)\b", comment)):
        return f"{name} | None"
    return name


def _class_name(full_name: str, declared: _Declarations) -> str:
    name = declared.by_name[full_name].name.replace(".", "")
    return _ANSWERS.get(name, name.removesuffix("Response"))


def _is_enum(full_name: str, declared: _Declarations) -> bool:
    return isinstance(declared.by_name[full_name].proto, EnumDescriptorProto)


def _sentence(name: str, comment: str) -> str:
    """The comment with a subject."""
    return f"The {name.replace('_', ' ')} as{comment[2:]}" if comment.startswith("As ") else comment


def _docstring(text: str) -> str:
    line = f'    """{text}"""'
    if len(line) <= _WIDTH:
        return line
    wrapped = textwrap.wrap(f'"""{text}', _WIDTH - 4, break_on_hyphens=False)
    return textwrap.indent("\n".join([*wrapped, '"""']), "    ")


def _formatted(text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", "values.py", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


if __name__ == "__main__":
    for path, text in generated().items():
        (ROOT / path).write_text(text)
