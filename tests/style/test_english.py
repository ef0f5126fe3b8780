"""Plain English where a pattern can tell, and no pinned prose in tests. The numbers may only shrink.

A number that is too high by now is lowered by the change that notices it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.support.style.sources import EVERYTHING, PRODUCTION, Rule, Source, complaints_about

HARD_WORDS = re.compile(
    r"\b(?:(?:is|are|was|were|be) told|who(?:m)?ever|(?:some|any|every|no)body)\b", re.IGNORECASE
)
HARD_OPENINGS = re.compile(
    r"(?:What|Who|Whose|Whom|Of|See|Nobody|Somebody|As"
    r"|Thread-safe|Not thread-safe|Guarded|Belongs|Immutable|Used by|One use|Raises)\b"
)


RUN = re.compile(r"\b(?:(?:a|another|every|first|last|next|the) run|runs of)\b", re.IGNORECASE)


def words_are_plain(source: Source) -> Iterator[str]:
    """The noun instead of "whoever", "somebody", "is told", in names of functions and classes, too."""
    for number, line in enumerate(source.text.splitlines(), 1):
        text = line.replace("_", " ") if re.match(r" *(async def|def|class) ", line) else line
        for found in HARD_WORDS.finditer(text):
            yield f"{number}: {found[0]}"


def run_has_one_meaning(source: Source) -> Iterator[str]:
    """A run is a row of adjacent slices that compaction makes one. Others are portions, groups or turns."""
    if source.name.startswith("tiering/stratalog/compaction/"):
        return
    for number, line in enumerate(source.text.splitlines(), 1):
        for found in RUN.finditer(line):
            yield f"{number}: {found[0]}"


def docstrings_begin_with_a_subject_or_a_verb(source: Source) -> Iterator[str]:
    """The first line of a docstring says what the thing does or is."""
    for node in source.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = (ast.get_docstring(node) or "").split("\n")[0]
            if HARD_OPENINGS.match(first):
                yield f"{getattr(node, 'lineno', 1)}: {first}"
            for lineno, docstring in _docstrings_of_fields(node.body):
                if HARD_OPENINGS.match(docstring):
                    yield f"{lineno}: {docstring.splitlines()[0]}"


def _docstrings_of_fields(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """The docstrings behind assignments, with their lines."""
    for field, docstring in pairwise(body):
        match field, docstring:
            case ast.Assign() | ast.AnnAssign(), ast.Expr(
                value=ast.Constant(value=str() as text), lineno=lineno
            ):
                yield lineno, text
            case _:
                pass


def prose_is_not_pinned(source: Source) -> Iterator[str]:
    """A test pins an error's class, code and fields: `match=` pins its prose."""
    if "match=" not in source.text:
        return
    for node in source.nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="raises" | "warns"), keywords=keywords):
                if "match" in {keyword.arg for keyword in keywords}:
                    yield f"{node.lineno}: match="
            case _:
                pass


SOURCES = (".py", ".pyx", ".pxi", ".c", ".h", ".proto", ".md")
DOCUMENTS = (".md", ".sh", ".py")
TESTS = (".py", ".md", ".txt", ".java")
# They show the words.
SHOWN = ("docs/style.md", "tests/style/test_english.py")
# Tests that pin prose: an error of Spark or of an assertion has no fields. The number may only shrink.
MAX_PINNED = 6


def other_complaints(complaints: list[str]) -> list[str]:
    return [one for one in complaints if not one.startswith(SHOWN)]


@pytest.mark.parametrize(
    ("folders", "suffixes"),
    [(PRODUCTION, SOURCES), (("docs", "scripts"), DOCUMENTS), (("tests", "benchmarks"), TESTS)],
)
def test_words_are_plain(folders: tuple[str, ...], suffixes: tuple[str, ...]) -> None:
    assert other_complaints(complaints_about(words_are_plain, folders, *suffixes)) == []


@pytest.mark.parametrize(("folders", "suffixes"), [(PRODUCTION, SOURCES), (("docs",), DOCUMENTS)])
def test_run_has_one_meaning(folders: tuple[str, ...], suffixes: tuple[str, ...]) -> None:
    assert complaints_about(run_has_one_meaning, folders, *suffixes) == []


def test_docstrings_begin_with_a_subject_or_a_verb() -> None:
    rule = docstrings_begin_with_a_subject_or_a_verb
    assert other_complaints(complaints_about(rule, EVERYTHING, ".py")) == []


def test_pins_of_prose_become_fewer() -> None:
    complaints = complaints_about(prose_is_not_pinned, ("tests",), ".py")

    assert len(complaints) <= MAX_PINNED, "\n".join(complaints)


PLANTED: list[tuple[Rule, str, int]] = [
    (words_are_plain, "# Nobody is told, but somebody knows.", 3),
    (words_are_plain, "# The caller of the bodyguard.", 0),
    (words_are_plain, "def test_an_append_is_told_to_nobody() -> None: ...", 2),
    (run_has_one_meaning, "# The first run of a task, which runs again.", 1),
    (run_has_one_meaning, "# Runs of segments.", 1),
    (docstrings_begin_with_a_subject_or_a_verb, "def f():\n    '''What a log holds.'''", 1),
    (docstrings_begin_with_a_subject_or_a_verb, "class Log:\n    '''Of a log, its end.'''", 1),
    (docstrings_begin_with_a_subject_or_a_verb, "class Log:\n    '''Thread-safe.'''", 1),
    (docstrings_begin_with_a_subject_or_a_verb, "def f():\n    '''Raises ValueError.'''", 1),
    (docstrings_begin_with_a_subject_or_a_verb, "class Log:\n    end: int\n    '''Of a log, its end.'''", 1),
    (docstrings_begin_with_a_subject_or_a_verb, "END = 1\n'''The end of a log.'''", 0),
    (docstrings_begin_with_a_subject_or_a_verb, "'''Offsets of a log. What follows is fine.'''", 0),
    (prose_is_not_pinned, "with pytest.raises(ValueError, match='no'): ...", 1),
    (prose_is_not_pinned, "with pytest.raises(ValueError): ...", 0),
]


@pytest.mark.parametrize(("rule", "text", "expected"), PLANTED)
def test_planted_violation_is_counted(rule: Rule, text: str, expected: int) -> None:
    assert len(list(rule(Source("x.py", text)))) == expected
