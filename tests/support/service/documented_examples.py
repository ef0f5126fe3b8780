"""The examples of the documents and of `--help`: lines for a shell, and programs in Python.

A line stands in an indented block or in a block of `sh`, or behind `Example:` or `Examples:` of a help. A
mention is a command line between back quotes, which may leave out what a command requires.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from stratalog.cli.main import stratalog
from tests.support.places import REPOSITORY
from tests.support.style.sources import files_below

_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"^ {4}(?=[A-Za-z0-9_./]+(?:=\S+)? )((?:.*\\\n)*.*)$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_SHELL = re.compile(
    r"(?:[A-Z0-9_]+=\S+ )*(?:stratalog|echo|make|pip|git|aws|weed|export|grpcurl|scripts/\S+) "
)
_HELP_LINES = re.compile(r"^Examples?:((?: .+)?(?:\n {2}.+)*)", re.MULTILINE)


class Example(NamedTuple):
    """A line for a shell, and the document or command whose example it is."""

    source: str
    line: str


class Program(NamedTuple):
    """A program in Python, and the output that the document shows."""

    text: str
    printed: str


def documents() -> list[Path]:
    return [*sorted(REPOSITORY.glob("*.md")), *files_below(("docs",), ".md")]


def lines_of(document: str) -> list[str]:
    """The lines for a shell, in their order, each joined where it ends with a backslash."""
    text = (REPOSITORY / document).read_text()
    found = [(block.start(), line) for block in _BLOCK.finditer(text) for line in _split(block[1])]
    without_fences = _FENCED.sub(lambda fence: re.sub(r"\S", " ", fence[0]), text)
    found += [(line.start(), _joined(line[1])) for line in _INDENTED.finditer(without_fences)]
    return [line for _, line in sorted(found) if _SHELL.match(line)]


def mentions_in(text: str) -> list[str]:
    return [" ".join(found.split()) for found in re.findall(r"`(stratalog [a-z][^`\"]*)`", text)]


def programs_of(document: str) -> list[Program]:
    text = (REPOSITORY / document).read_text()
    found = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", text, re.DOTALL)
    assert len(found) == text.count("```python")
    return [Program(*pair) for pair in found]


def leaf_commands(
    group: click.Group = stratalog, path: str = "stratalog"
) -> Iterator[tuple[str, click.Command]]:
    """Each command that has no commands below it, with the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        if isinstance(command, click.Group):
            yield from leaf_commands(command, f"{path} {name}")
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{path} {name}", command


def help_lines(command: click.Command) -> list[str]:
    """The examples in the help of the command."""
    blocks = _HELP_LINES.findall(inspect.cleandoc(command.help or ""))
    return [line.strip() for block in blocks for line in block.strip("\n").splitlines() if line.strip()]


def named_command(line: str) -> tuple[click.Command, list[str]]:
    """The command that a line names, and its arguments. Fails if there is none."""
    command: click.Command = stratalog
    words = words_of(line)[1:]
    while isinstance(command, click.Group) and words and words[0][0] not in "[-":
        name = words.pop(0)
        found = command.get_command(click.Context(command), name)
        assert found is not None, f"{line}: no {name}"
        command = found
    return command, words


def words_of(line: str) -> list[str]:
    """The words of a line as a shell takes them, without a comment."""
    return shlex.split(line, comments=True)


def _split(block: str) -> list[str]:
    return _joined(block).splitlines()


def _joined(text: str) -> str:
    return re.sub(r"\s*\\\n\s*", " ", text)
