"""Every `stratalog` command line that a document or a message shows is one that the command accepts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from stratalog.cli.main import stratalog
from tests.support.places import REPOSITORY
from tests.support.style.sources import PRODUCTION, files_below


def documents() -> list[Path]:
    return [*REPOSITORY.glob("*.md"), *files_below(("docs",), ".md")]


def whole_lines(text: str) -> Iterator[str]:
    """The command lines of indented blocks, without what surrounds them in a shell."""
    for block in re.findall(r"^ {4}(stratalog (?:.*\\\n)*.*|.*\| *stratalog .*)$", text, re.MULTILINE):
        line = re.sub(r"\s+#.*", "", block.replace("\\\n", " "))
        yield from (part.strip() for part in line.split("|") if part.strip().startswith("stratalog"))


def mentions(text: str) -> Iterator[str]:
    """The command lines between back quotes, which may leave out what a command requires."""
    for found in re.findall(r"`(stratalog [a-z][^`\"]*)`", text):
        yield " ".join(found.split())


def command_of(line: str) -> tuple[click.Command, list[str]]:
    """The command that the line names, and its arguments. Fails if there is none."""
    command: click.Command = stratalog
    words = shlex.split(line)[1:]
    while isinstance(command, click.Group) and words and words[0][0] not in "[-":
        name = words.pop(0)
        found = command.get_command(click.Context(command), name)
        assert found is not None, f"{line}: no {name}"
        command = found
    return command, words


def unchanged(_type: click.Path, value: str, *_: object) -> str:
    return value


WHOLE = [
    pytest.param(line, id=f"{path.name}: {line[:60]}")
    for path in documents()
    for line in whole_lines(path.read_text())
]
MENTIONED = [
    pytest.param(line, id=f"{path.name}: {line[:60]}")
    for path in [*documents(), *files_below(PRODUCTION, ".py", ".md")]
    for line in mentions(path.read_text())
]


@pytest.mark.parametrize("line", WHOLE)
def test_a_command_line_is_accepted(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The paths of a document are not on this machine.
    monkeypatch.setattr(click.Path, "convert", unchanged)
    command, words = command_of(line)
    command.make_context(command.name, words)


@pytest.mark.parametrize("line", MENTIONED)
def test_a_command_that_is_mentioned_exists_with_its_options(line: str) -> None:
    command, words = command_of(line)
    options = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    shown = {word.strip("[],.") for word in words if word.lstrip("[").startswith("--")}
    assert shown <= options


def test_the_lines_are_found() -> None:
    assert len(WHOLE) >= 10
    assert len(MENTIONED) >= 30
