"""The .proto files keep the rules of `buf lint`, STANDARD and COMMENTS, where the tool is not at hand.

proto/buf.yaml says which rules hold for the tool, and why sessions share the messages of their single calls.
Names of quantities have the suffixes of docs/style.md, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MethodDescriptorProto,
    OneofDescriptorProto,
    ServiceDescriptorProto,
)

from proto_files import Declared, compiled, declarations, own_files

Rule = Callable[[FileDescriptorProto, list[Declared]], Iterator[str]]

CALL_OF_SESSION = {"FetchStream": "Fetch"}
LOWER_SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
PASCAL = re.compile(r"([A-Z][a-z0-9]*)+")
UPPER_SNAKE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
INTEGERS = {FieldDescriptorProto.TYPE_INT32, FieldDescriptorProto.TYPE_INT64}
SUFFIXES = ("_ms", "_bytes", "_count", "_offset")
# Numbers that are no quantities, and Kafka's own names of offsets.
BARE_NUMBERS = {
    "new_metadata_version",
    "oldest_partition",
    "old_metadata_version",
    "supported_metadata_version",
    "partition",
    "partitions",
    "epoch",
    "last_epoch",
    "last_fetched_epoch",
    "leader_epoch",
    "producer_epoch",
    "producer_id",
    "base_sequence",
    "last_sequence",
    "page_size",
    "shard",
}
BARE_OFFSETS = {"offset", "high_watermark", "recovery_point", "compacted_upto"}


def packages_and_files_agree(file: FileDescriptorProto, _: list[Declared]) -> Iterator[str]:
    path = Path(file.name)
    if path.parent.as_posix() != file.package.replace(".", "/"):
        yield f"{file.name}: package {file.package} belongs into another folder"
    if not re.fullmatch(r"[a-z][a-z0-9.]*\.v[1-9][0-9]*", file.package):
        yield f"{file.name}: {file.package} is in lower case and ends with its version"
    if not LOWER_SNAKE.fullmatch(path.stem):
        yield f"{file.name}: the name is in lower_snake_case"
    if file.syntax != "proto3":
        yield f"{file.name}: the syntax is proto3"
    if file.public_dependency or file.weak_dependency:
        yield f"{file.name}: an import is neither public nor weak"


def names_have_their_case(_: FileDescriptorProto, declared: list[Declared]) -> Iterator[str]:
    for one in declared:
        match one.proto:
            case FieldDescriptorProto() | OneofDescriptorProto():
                pattern = LOWER_SNAKE
            case (
                DescriptorProto() | EnumDescriptorProto() | ServiceDescriptorProto() | MethodDescriptorProto()
            ):
                pattern = PASCAL
            case _:
                pattern = UPPER_SNAKE
        if not pattern.fullmatch(one.proto.name):
            yield f"{one.name}: the name has another case"


def enums_have_a_prefix_and_a_zero(_: FileDescriptorProto, declared: list[Declared]) -> Iterator[str]:
    for one in declared:
        if not isinstance(one.proto, EnumDescriptorProto):
            continue
        prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", one.proto.name).upper() + "_"
        for value in one.proto.value:
            if not value.name.startswith(prefix):
                yield f"{one.name}.{value.name}: the name begins with {prefix}"
        first = one.proto.value[0]
        if (first.name, first.number) != (prefix + "UNSPECIFIED", 0):
            yield f"{one.name}: the first value is {prefix}UNSPECIFIED = 0"
        if one.proto.options.allow_alias:
            yield f"{one.name}: two values have one number"


def services_and_calls_have_standard_names(
    file: FileDescriptorProto, declared: list[Declared]
) -> Iterator[str]:
    users: Counter[str] = Counter()
    for one in declared:
        if isinstance(one.proto, ServiceDescriptorProto) and not one.proto.name.endswith("Service"):
            yield f"{one.name}: the name of a service ends with Service"
        if isinstance(one.proto, MethodDescriptorProto):
            name = CALL_OF_SESSION.get(one.proto.name, one.proto.name)
            expected = [f".{file.package}.{name}{kind}" for kind in ("Request", "Response")]
            if [one.proto.input_type, one.proto.output_type] != expected:
                yield f"{one.name}: the messages are {name}Request and {name}Response"
            if one.proto.name == name:
                users.update(expected)
    for message, count in users.items():
        if count > 1:
            yield f"{message}: two RPCs have this message"


def everything_has_a_comment(_: FileDescriptorProto, declared: list[Declared]) -> Iterator[str]:
    for one in declared:
        if not one.comment:
            yield f"{one.name}: no comment"


def comments_say_more_than_the_name(_: FileDescriptorProto, declared: list[Declared]) -> Iterator[str]:
    """A comment has a word that is not in the name; articles do not count."""
    for one in declared:
        words = set(re.findall(r"[a-z0-9]+", one.comment.lower())) - {"a", "an", "the", "of", "s"}
        parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", one.proto.name).lower().split("_")
        if one.comment and words <= {*parts, *(part + "s" for part in parts)}:
            yield f"{one.name}: the comment repeats the name"


def quantities_end_with_their_unit(_: FileDescriptorProto, declared: list[Declared]) -> Iterator[str]:
    for one in declared:
        if not isinstance(one.proto, FieldDescriptorProto) or one.proto.type not in INTEGERS:
            continue
        name = one.proto.name
        if not name.endswith(SUFFIXES) and name not in BARE_NUMBERS | BARE_OFFSETS:
            yield f"{one.name}: a number ends with one of {', '.join(SUFFIXES)}"
        if name.endswith("_ms") and not re.search(r"[Mm]illiseconds", one.comment):
            yield f"{one.name}: the comment says of what the milliseconds are"


RULES: list[Rule] = [
    packages_and_files_agree,
    names_have_their_case,
    enums_have_a_prefix_and_a_zero,
    services_and_calls_have_standard_names,
    everything_has_a_comment,
    comments_say_more_than_the_name,
    quantities_end_with_their_unit,
]


@pytest.mark.parametrize("rule", RULES, ids=[rule.__name__ for rule in RULES])
def test_the_wire_keeps_the_rule(rule: Rule) -> None:
    complaints = [text for file in own_files(compiled()) for text in rule(file, list(declarations(file)))]

    assert not complaints, "\n".join(complaints)


GOOD = """
syntax = "proto3";
package stratalog.v1;
// Does things.
service GoodService {
  // Calls it.
  rpc Call(CallRequest) returns (CallResponse);
}
// Asks for one thing.
message CallRequest {
  // Milliseconds, at least 0.
  int32 wait_ms = 1;
  // Required.
  oneof at {
    // By number.
    int64 end_offset = 2;
  }
}
// An answer.
message CallResponse {}
// Says how long it takes.
enum CallKind {
  // Never sent.
  CALL_KIND_UNSPECIFIED = 0;
}
"""


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ("package stratalog.v1;", "package stratalog;", packages_and_files_agree),
        ("wait_ms", "waitMs", names_have_their_case),
        ("oneof at", "oneof At", names_have_their_case),
        ("enum CallKind", "enum callKind", names_have_their_case),
        ("rpc Call(", "rpc call_it(", names_have_their_case),
        ("CALL_KIND_UNSPECIFIED", "UNSPECIFIED", enums_have_a_prefix_and_a_zero),
        ("CALL_KIND_UNSPECIFIED", "CALL_KIND_NONE", enums_have_a_prefix_and_a_zero),
        ("GoodService", "Good", services_and_calls_have_standard_names),
        ("returns (CallResponse)", "returns (CallRequest)", services_and_calls_have_standard_names),
        ("// Never sent.", "", everything_has_a_comment),
        ("// By number.", "", everything_has_a_comment),
        ("// Required.", "", everything_has_a_comment),
        ("// Calls it.", "", everything_has_a_comment),
        ("// Says how long it takes.", "// The call kind.", comments_say_more_than_the_name),
        ("wait_ms", "wait", quantities_end_with_their_unit),
        ("// Milliseconds, at least 0.", "// At least 0.", quantities_end_with_their_unit),
    ],
)
def test_a_planted_mistake_is_found(tmp_path: Path, before: str, after: str, rule: Rule) -> None:
    file = tmp_path / "stratalog" / "v1" / "x.proto"
    file.parent.mkdir(parents=True)
    file.write_text(GOOD)
    [good] = own_files(compiled(tmp_path))
    assert not [text for one in RULES for text in one(good, list(declarations(good)))]

    assert before in GOOD
    file.write_text(GOOD.replace(before, after))
    [bad] = own_files(compiled(tmp_path))
    assert list(rule(bad, list(declarations(bad))))
