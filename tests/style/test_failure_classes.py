"""docs/failure_classes.md: every class of the list has a row, and every test that it names exists."""

from __future__ import annotations

import ast
import re

from tests.support.places import DOCS, REPOSITORY
from tests.support.style.sources import nodes_of

CLASSES = [*range(1, 18), *range(24, 40)]
DOCUMENT = DOCS / "failure_classes.md"
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows() -> dict[int, str]:
    """The rows of all tables by their number."""
    found = re.findall(r"^\| (\d+) (\|.*\|)$", DOCUMENT.read_text(), re.MULTILINE)
    assert len({number for number, _ in found}) == len(found), "a class has one row"
    return {int(number): row for number, row in found}


def functions_of(name: str) -> set[str]:
    """The test functions of a file, by its syntax alone."""
    path = REPOSITORY / name
    if not path.is_file():
        return set()
    return {
        node.name
        for node in nodes_of(path.read_text())
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_each_class_has_a_rule_and_a_test() -> None:
    assert sorted(rows()) == CLASSES
    for number, row in rows().items():
        _, failure, rule, tests, _ = row.split("|")
        assert min(len(failure.strip()), len(rule.strip())) > 20, number
        assert NAMED_TEST.search(tests) or "**Open**" in tests, number


def test_each_test_that_is_named_exists() -> None:
    named = NAMED_TEST.findall(DOCUMENT.read_text())
    assert len(named) >= len(CLASSES)
    assert [f"{name}::{test}" for name, test in named if test not in functions_of(name)] == []


def test_all_tests_are_named_in_one_form() -> None:
    """A name in another form would not be looked up."""
    text = DOCUMENT.read_text()
    assert text.count("::") == len(NAMED_TEST.findall(text))
