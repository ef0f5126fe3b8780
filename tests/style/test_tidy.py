"""Rules of docs/style.md about files, functions, names, messages and comments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.style.sources import EVERYTHING, PRODUCTION, Rule, Source, complaints_about

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 60
ARGUMENTS_OF_A_RECORD = ("storage/stratalog/record/native/pure_record_accumulator.py",)
"""The caller has named the topic of the record, and the native form has the same fields."""
LAZY_EXPORTS = ("client/stratalog/client/__init__.py", "client/stratalog/client/values/__init__.py")


# --- messages -----------------------------------------------------------------------------------------------


def messages_are_clauses(source: Source) -> Iterator[str]:
    """An error's message begins in lower case and has no full stop: values follow it."""
    for node in source.nodes:
        match node:
            case ast.Raise(exc=ast.Call(func=ast.Name(id=name), args=[first, *_])) if name.endswith("Error"):
                text = leading_text(first)
                if re.match(r"[A-Z][a-z]", text):
                    yield f"{node.lineno}: the message of {name} begins in upper case"
                if isinstance(first, ast.Constant) and text.endswith("."):
                    yield f"{node.lineno}: the message of {name} ends with a full stop"
            case _:
                pass


def leading_text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return text
        case _:
            return ""


def errors_name_the_topic_of_a_partition(source: Source) -> Iterator[str]:
    """An error about one partition has its topic, or the id, in a field of its own, as `error_fields` has."""
    if source.name in ARGUMENTS_OF_A_RECORD:
        return
    for call in error_calls(source.nodes):
        values = {keyword.arg: keyword.value for keyword in call.keywords}
        if "partition" not in values:
            continue
        if values.keys().isdisjoint({"topic", "topic_id"}):
            yield f"{call.lineno}: the partition of an error comes with `topic` or `topic_id`"
        text = ast.unparse(values["partition"])
        if text.startswith(("str(", "f'", 'f"')):
            yield f"{call.lineno}: the partition of an error is a number"


def error_calls(nodes: Sequence[ast.AST]) -> Iterator[ast.Call]:
    """The calls that make an error or have its fields: those of its class, those of `raise`, and those of a
    function that raises unless something holds."""
    raised = {
        id(call)
        for node in nodes
        if isinstance(node, ast.Raise) and node.exc is not None
        for call in ast.walk(node.exc)
    }
    for node in nodes:
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2].lstrip("_")
            if id(node) in raised or name.endswith("Error") or name.startswith("require"):
                yield node


# --- shape --------------------------------------------------------------------------------------------------


def files_are_short(source: Source) -> Iterator[str]:
    lines = source.text.count("\n")
    if lines >= MAX_FILE_LINES:
        yield f"{lines} lines: one noun, one file"


def functions_are_short(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines >= MAX_FUNCTION_LINES:
                yield f"{node.lineno}: {node.name} has {lines} lines: one idea, one function"


def packages_export_nothing(source: Source) -> Iterator[str]:
    """One way to import each name: an __init__.py of ours holds a docstring (Spark reads one elsewhere). The
    exceptions are the client's, from which users import."""
    if source.name in LAZY_EXPORTS:
        return
    if re.search(r"/stratalog/.*__init__\.py$", source.name) and any(
        not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in source.tree.body
    ):
        yield "an __init__.py says what lives here, and nothing else"


# --- names --------------------------------------------------------------------------------------------------

EMPTY_NAMES = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}
UNIT_SPELLINGS = {
    "_millis": "_ms",
    "_milliseconds": "_ms",
    "_msec": "_ms",
    "_sec": "_s",
    "_secs": "_s",
    "_seconds": "_s",
}
DURATIONS = {"age", "delay", "duration", "elapsed", "grace", "interval", "period", "timeout"}


def file_names_say_something(source: Source) -> Iterator[str]:
    stem = Path(source.name).stem
    if stem in EMPTY_NAMES:
        yield f"{stem}.py could hold anything: name it after its noun"
    if not re.fullmatch(r"_{0,2}[a-z][a-z0-9_]*", stem):
        yield f"{stem}.py is not in snake_case"


def names_end_with_their_unit(source: Source) -> Iterator[str]:
    """Durations carry `_ms` or `_s`; a count ends with `_count`."""
    for line, name, annotation in declarations(source.nodes):
        is_number = annotation in {"int", "float", "int | None", "float | None"}
        if is_number and (name in DURATIONS or name.split("_")[-1] in DURATIONS):
            yield f"{line}: {name} is a duration without a unit"
        if name.startswith(("num_", "nr_", "no_of_")):
            yield f"{line}: {name}: a count ends with _count"
        for spelling, unit in UNIT_SPELLINGS.items():
            if name.endswith(spelling):
                yield f"{line}: {name}: the unit is spelled {unit}"


def declarations(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str, str]]:
    """Line, name and annotation of each parameter and each annotated variable or field."""
    for node in nodes:
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg, ast.unparse(node.annotation) if node.annotation else ""
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.lineno, node.target.id, ast.unparse(node.annotation)


# --- comments -----------------------------------------------------------------------------------------------

UNFINISHED = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"]))
SUPPRESSION = re.compile(
    r"#\s*(?:type|pyright):\s*ignore(?P<code>\[[\w, -]+\])?(?P<reason>.*)$", re.MULTILINE
)


def nothing_is_left_for_later(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if UNFINISHED.search(line):
            yield f"{number}: what is left to do is an issue"


def suppressions_say_why(source: Source) -> Iterator[str]:
    for match in SUPPRESSION.finditer(source.text):
        if not match["code"] or len(match["reason"].strip(" #-:")) < 8:
            yield f"{source.text.count(chr(10), 0, match.start()) + 1}: an ignore needs a code and a reason"


def modules_begin_with_their_theory(source: Source) -> Iterator[str]:
    if not ast.get_docstring(source.tree):
        yield "no module docstring"


RULES: list[tuple[Rule, tuple[str, ...], tuple[str, ...]]] = [
    (messages_are_clauses, PRODUCTION, (".py",)),
    (errors_name_the_topic_of_a_partition, PRODUCTION, (".py",)),
    (files_are_short, EVERYTHING, (".py", ".pyx", ".pxi", ".c", ".h", ".proto")),
    (functions_are_short, EVERYTHING, (".py",)),
    (packages_export_nothing, PRODUCTION, (".py",)),
    (file_names_say_something, EVERYTHING, (".py", ".pyx")),
    (names_end_with_their_unit, PRODUCTION, (".py",)),
    (
        nothing_is_left_for_later,
        (*EVERYTHING, "docs", "scripts"),
        (".py", ".pyx", ".pxi", ".c", ".h", ".proto", ".md", ".sh"),
    ),
    (suppressions_say_why, EVERYTHING, (".py", ".pyi")),
    (modules_begin_with_their_theory, EVERYTHING, (".py",)),
]


@pytest.mark.parametrize(("rule", "folders", "suffixes"), RULES, ids=[rule.__name__ for rule, _, _ in RULES])
def test_tree_keeps_the_rule(rule: Rule, folders: tuple[str, ...], suffixes: tuple[str, ...]) -> None:
    assert complaints_about(rule, folders, *suffixes) == []


LONG_FUNCTION = "def long():\n" + "    pass\n" * (MAX_FUNCTION_LINES - 1)

PLANTED: list[tuple[Rule, str, str, int]] = [
    (messages_are_clauses, "x.py", "raise NotOwnerError('Another owner took over')", 1),
    (messages_are_clauses, "x.py", "raise NotOwnerError(f'Owner {1} took over')", 1),
    (messages_are_clauses, "x.py", "raise NotOwnerError('another owner took over.')", 1),
    (messages_are_clauses, "x.py", "raise NotOwnerError('CRC differs')", 0),
    (errors_name_the_topic_of_a_partition, "x.py", "raise StoreError('it fails', partition=0)", 1),
    (errors_name_the_topic_of_a_partition, "x.py", "raise self._contradiction('no', partition=0)", 1),
    (errors_name_the_topic_of_a_partition, "x.py", "require_request(ok, 'no', partition=0)", 1),
    (errors_name_the_topic_of_a_partition, "x.py", "error = StoreError('it fails', partition=0)", 1),
    (errors_name_the_topic_of_a_partition, "x.py", "raise StoreError('no', topic='t', partition=f'{p}')", 1),
    (errors_name_the_topic_of_a_partition, "x.py", "raise StoreError('no', topic='t', partition=str(p))", 1),
    (errors_name_the_topic_of_a_partition, "x.py", "raise StoreError('no', topic='t', partition=0)", 0),
    (errors_name_the_topic_of_a_partition, "x.py", "raise StoreError('no', topic_id=i, partition=0)", 0),
    (errors_name_the_topic_of_a_partition, "x.py", "raise StoreError('no', **tp.error_fields)", 0),
    (files_are_short, "x.py", "\n" * MAX_FILE_LINES, 1),
    (files_are_short, "x.py", "\n" * (MAX_FILE_LINES - 1), 0),
    (functions_are_short, "x.py", LONG_FUNCTION, 1),
    (functions_are_short, "x.py", LONG_FUNCTION.removesuffix("    pass\n"), 0),
    (packages_export_nothing, "a/stratalog/b/__init__.py", "'''Docs.'''\nfrom b import c", 1),
    (packages_export_nothing, "a/stratalog/b/__init__.py", "'''Docs.'''", 0),
    (file_names_say_something, "a/utils.py", "", 1),
    (file_names_say_something, "a/LogSegment.py", "", 1),
    (file_names_say_something, "a/__main__.py", "", 0),
    (names_end_with_their_unit, "x.py", "def f(timeout: float) -> None: ...", 1),
    (names_end_with_their_unit, "x.py", "def f(poll_interval: int) -> None: ...", 1),
    (names_end_with_their_unit, "x.py", "lag_seconds: float = 1", 1),
    (names_end_with_their_unit, "x.py", "def f(num_records: int) -> None: ...", 1),
    (names_end_with_their_unit, "x.py", "def f(timeout_s: float, grace: Grace) -> None: ...", 0),
    (nothing_is_left_for_later, "x.py", "# " + "TO" + "DO: later", 1),
    (suppressions_say_why, "x.py", "f()  # type: " + "ignore", 1),
    (suppressions_say_why, "x.py", "f()  # type: " + "ignore[arg-type]", 1),
    (suppressions_say_why, "x.py", "f()  # type: " + "ignore[arg-type]  # the stub is wrong", 0),
    (modules_begin_with_their_theory, "x.py", "x = 1", 1),
]


@pytest.mark.parametrize(("rule", "name", "text", "expected"), PLANTED)
def test_rule_finds_what_was_planted(rule: Rule, name: str, text: str, expected: int) -> None:
    assert len(list(rule(Source(name, text)))) == expected
