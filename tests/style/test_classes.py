"""Rules about classes: who may call them, how they are built, and that lasting state can check itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.style.sources import ENGINE, PRODUCTION, Rule, Source, complaints_about, sources_below

SAYS_WHO_MAY_CALL = re.compile(
    r"thread|guard|one (user|caller|use|task)|event loop|immutable|\block\b", re.IGNORECASE
)


def stateful_classes_say_what_guards_them(source: Source) -> Iterator[str]:
    """The first paragraph of the docstring of a class that changes itself says who may call it."""
    for node in ast.walk(source.tree):
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
    for node in ast.walk(source.tree):
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
    classes = [node for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)]
    for node in classes:
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                arguments = item.args
                count = len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]) - 1
                if count > MAX_CONSTRUCTOR_PARAMETERS:
                    yield f"{item.lineno}: {node.name} takes {count} parameters"


def named_tuples(tree: ast.Module) -> set[str]:
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "NamedTuple" for base in node.bases)
    }


@cache
def named_tuples_of_production() -> set[str]:
    return {name for source in sources_below(PRODUCTION, ".py") for name in named_tuples(source.tree)}


def wide_tuples_are_built_by_name(source: Source) -> Iterator[str]:
    """More than five values of a tuple are given by name: two of them are easily exchanged."""
    known = named_tuples_of_production() | named_tuples(source.tree)
    for node in ast.walk(source.tree):
        match node:
            case ast.Call(func=ast.Name(id=name), args=args):
                if name in known and len(args) > MAX_POSITIONAL_FIELDS:
                    yield f"{node.lineno}: {name} is built from {len(args)} values by position"
            case _:
                pass


COUNTER = "class Counter:\n    '''{0}'''\n    def add(self):\n        self.total += 1\n"
INIT = "class A:\n    def __init__(self, {0}): ..."

PLANTED: list[tuple[Rule, str, str, int]] = [
    (stateful_classes_say_what_guards_them, "x.py", COUNTER.format("Counts."), 1),
    (stateful_classes_say_what_guards_them, "x.py", COUNTER.format("Counts. Thread-safe."), 0),
    (dataclasses_are_frozen_and_slotted, "x.py", "@dataclass(slots=True)\nclass A: ...", 1),
    (dataclasses_are_frozen_and_slotted, "x.py", "@dataclass(frozen=True)\nclass A: ...", 1),
    (dataclasses_are_frozen_and_slotted, "x.py", "@dataclass(frozen=True, slots=True)\nclass A: ...", 0),
    (constructors_are_narrow, "x.py", INIT.format("a, b, c, d, e, f, g, *, h=1"), 1),
    (constructors_are_narrow, "x.py", INIT.format("a, b, c, d, e, f, *, g=1"), 0),
    (wide_tuples_are_built_by_name, "x.py", "class A(NamedTuple): ...\nA(1, 2, 3, 4, 5, 6)", 1),
    (wide_tuples_are_built_by_name, "x.py", "class A(NamedTuple): ...\nA(1, 2, 3, 4, 5, f=6)", 0),
    (wide_tuples_are_built_by_name, "x.py", "A(1, 2, 3, 4, 5, 6)", 0),
]


@pytest.mark.parametrize(
    "rule",
    [
        stateful_classes_say_what_guards_them,
        dataclasses_are_frozen_and_slotted,
        constructors_are_narrow,
        wide_tuples_are_built_by_name,
    ],
)
def test_classes_keep_the_rule(rule: Rule) -> None:
    assert complaints_about(rule, PRODUCTION, ".py") == []


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
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and node.name == name
    ]

    assert "check" in {item.name for item in found.body if isinstance(item, ast.FunctionDef)}
