"""Rules about classes: who may call them, how they are built, and that lasting state can check itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import pytest

from tests.support.style.sources import (
    ENGINE,
    EVERYTHING,
    PRODUCTION,
    Rule,
    Source,
    complaints_about,
    sources_below,
)

SAYS_WHO_MAY_CALL = re.compile(
    r"thread|guard|one (user|caller|use|task)|event loop|immutable|\block\b", re.IGNORECASE
)


def stateful_classes_say_what_guards_them(source: Source) -> Iterator[str]:
    """The first paragraph of the docstring of a class that changes itself says who may call it."""
    for node in source.nodes:
        if isinstance(node, ast.ClassDef) and changes_itself(node):
            opening = (ast.get_docstring(node) or "").split("\n\n")[0]
            if not SAYS_WHO_MAY_CALL.search(opening):
                yield f"{node.lineno}: {node.name} is stateful: say what guards it"


def changes_itself(node: ast.ClassDef) -> bool:
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    return any(
        isinstance(inner, ast.Attribute)
        and isinstance(inner.ctx, ast.Store)
        and isinstance(inner.value, ast.Name)
        and inner.value.id == "self"
        for method in methods
        if method.name not in {"__init__", "__post_init__"}
        for inner in ast.walk(method)
    )


def dataclasses_are_frozen_and_slotted(source: Source) -> Iterator[str]:
    """A dataclass that is not frozen is stateful, and says what guards it."""
    for node in source.nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        for decorator in node.decorator_list:
            written = ast.unparse(decorator)
            if written.split("(")[0] not in {"dataclass", "dataclasses.dataclass"}:
                continue
            if "slots=True" not in written:
                yield f"{node.lineno}: {node.name} has no slots=True"
            if "frozen=True" not in written and not SAYS_WHO_MAY_CALL.search(ast.get_docstring(node) or ""):
                yield f"{node.lineno}: {node.name} is not frozen and does not say what guards it"


# --- how they are built ------------------------------------------------------------------------------------

MAX_CONSTRUCTOR_PARAMETERS = 7
MAX_POSITIONAL_FIELDS = 5


def constructors_are_narrow(source: Source) -> Iterator[str]:
    """A constructor of more than seven parameters takes a settings object, or its class has too many jobs."""
    classes = [node for node in source.nodes if isinstance(node, ast.ClassDef)]
    for node in classes:
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                arguments = item.args
                count = len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]) - 1
                if count > MAX_CONSTRUCTOR_PARAMETERS:
                    yield f"{item.lineno}: {node.name} takes {count} parameters"


@dataclass(frozen=True, slots=True)
class Value:
    """A NamedTuple or dataclass: its constructor is generated."""

    name: str
    line: int
    annotations: tuple[str, ...]
    """The types of its fields, as written."""


def values_of(source: Source) -> Iterator[Value]:
    """The NamedTuples and dataclasses of a module."""
    for node in source.nodes:
        if isinstance(node, ast.ClassDef):
            decorators = {ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list}
            bases = {ast.unparse(base) for base in node.bases}
            if "NamedTuple" in bases or decorators & {"dataclass", "dataclasses.dataclass"}:
                fields = [
                    ast.unparse(item.annotation) for item in node.body if isinstance(item, ast.AnnAssign)
                ]
                yield Value(node.name, node.lineno, tuple(one for one in fields if "ClassVar" not in one))


PLAIN_BASES = re.compile(r"(Enum|Flag|Error|Exception|TypedDict)$")


def component_classes(sources: Sequence[Source]) -> set[str]:
    """Classes that do work: no values, enums, errors or immutable classes. A value that holds a component is
    a component."""
    values = [value for source in sources for value in values_of(source)]
    value_names = {value.name for value in values}
    components = {
        node.name
        for source in sources
        for node in source.nodes
        if isinstance(node, ast.ClassDef)
        and node.name not in value_names
        and not any(PLAIN_BASES.search(ast.unparse(base)) for base in node.bases)
        and "Immutable" not in (ast.get_docstring(node) or "").split("\n\n")[0]
    }
    while holders := {value.name for value in values if holds(value, components)} - components:
        components |= holders
    return components


def holds(value: Value, components: set[str]) -> bool:
    return any(not components.isdisjoint(re.findall(r"\w+", one)) for one in value.annotations)


@cache
def components_of_production() -> set[str]:
    return component_classes(sources_below(PRODUCTION, ".py"))


def values_of_components_are_narrow(source: Source) -> Iterator[str]:
    """A generated constructor that takes components takes at most seven parameters, as a written one does."""
    components = components_of_production() | component_classes([source])
    for value in values_of(source):
        if len(value.annotations) > MAX_CONSTRUCTOR_PARAMETERS and holds(value, components):
            yield f"{value.line}: {value.name} holds components and has {len(value.annotations)} fields"


@cache
def values_of_production() -> set[str]:
    return {value.name for source in sources_below(PRODUCTION, ".py") for value in values_of(source)}


def wide_values_are_built_by_name(source: Source) -> Iterator[str]:
    """More than five fields of a value are given by name: two of them are easily exchanged."""
    known = values_of_production() | {value.name for value in values_of(source)}
    for node in source.nodes:
        match node:
            case ast.Call(func=ast.Name(id=name), args=args):
                if name in known and len(args) > MAX_POSITIONAL_FIELDS:
                    yield f"{node.lineno}: {name} is built from {len(args)} values by position"
            case _:
                pass


COUNTER = "class Counter:\n    '''{0}'''\n    def add(self):\n        self.total += 1\n"


def holder(name: str, first_type: str, count: int) -> str:
    """A NamedTuple of so many fields, of which the first may be a component."""
    fields = [f"    field_0: {first_type}", *(f"    field_{number}: int" for number in range(1, count))]
    return "\n".join(["class Log: ...", f"class {name}(NamedTuple):", *fields, ""])


INIT = "class A:\n    def __init__(self, {0}): ..."

PLANTED: list[tuple[Rule, str, str, int]] = [
    (stateful_classes_say_what_guards_them, "x.py", COUNTER.format("Counts."), 1),
    (stateful_classes_say_what_guards_them, "x.py", COUNTER.format("Counts. Thread-safe."), 0),
    (dataclasses_are_frozen_and_slotted, "x.py", "@dataclass(slots=True)\nclass A: ...", 1),
    (dataclasses_are_frozen_and_slotted, "x.py", "@dataclass(frozen=True)\nclass A: ...", 1),
    (dataclasses_are_frozen_and_slotted, "x.py", "@dataclass(frozen=True, slots=True)\nclass A: ...", 0),
    (constructors_are_narrow, "x.py", INIT.format("a, b, c, d, e, f, g, *, h=1"), 1),
    (constructors_are_narrow, "x.py", INIT.format("a, b, c, d, e, f, *, g=1"), 0),
    (values_of_components_are_narrow, "x.py", holder("A", "Log", 8), 1),
    (values_of_components_are_narrow, "x.py", holder("A", "Log", 7), 0),
    (values_of_components_are_narrow, "x.py", holder("A", "int", 8), 0),
    (values_of_components_are_narrow, "x.py", holder("A", "Log", 7) + holder("B", "A", 8), 1),
    (wide_values_are_built_by_name, "x.py", "class A(NamedTuple): ...\nA(1, 2, 3, 4, 5, 6)", 1),
    (wide_values_are_built_by_name, "x.py", "@dataclass(slots=True)\nclass A: ...\nA(1, 2, 3, 4, 5, 6)", 1),
    (wide_values_are_built_by_name, "x.py", "class A(NamedTuple): ...\nA(1, 2, 3, 4, 5, f=6)", 0),
    (wide_values_are_built_by_name, "x.py", "A(1, 2, 3, 4, 5, 6)", 0),
]


@pytest.mark.parametrize(
    "rule",
    [
        stateful_classes_say_what_guards_them,
        dataclasses_are_frozen_and_slotted,
        constructors_are_narrow,
        values_of_components_are_narrow,
    ],
)
def test_classes_keep_the_rule(rule: Rule) -> None:
    assert complaints_about(rule, PRODUCTION, ".py") == []


def test_wide_values_are_built_by_name() -> None:
    assert complaints_about(wide_values_are_built_by_name, EVERYTHING, ".py") == []


@pytest.mark.parametrize(("rule", "name", "text", "expected"), PLANTED)
def test_planted_class_is_found(rule: Rule, name: str, text: str, expected: int) -> None:
    assert len(list(rule(Source(name, text)))) == expected


# What lives as long as a log or a store does, and can contradict itself.
CHECKED_CLASSES = [
    "Catalog",
    "LocalLog",
    "LogManager",
    "LogOffsets",
    "LogSegments",
    "LogSegment",
    "MetadataLog",
    "OffsetIndex",
    "ShardState",
    "TimeIndex",
    "UnifiedLog",
]


@pytest.mark.parametrize("name", CHECKED_CLASSES)
def test_lasting_state_can_check_itself(name: str) -> None:
    (found,) = [
        node
        for source in sources_below(ENGINE, ".py")
        for node in source.nodes
        if isinstance(node, ast.ClassDef) and node.name == name
    ]

    assert "check" in {item.name for item in found.body if isinstance(item, ast.FunctionDef)}
