"""Every `stratalog` command line that a document or a message mentions names a command and options of it.

Those that a document shows as examples run in `tests/integration/cli/test_document_examples.py`.
"""

from __future__ import annotations

import pytest

from tests.support.service.documented_examples import documents, mentions_in, named_command
from tests.support.style.sources import PRODUCTION, files_below

MENTIONED = [
    pytest.param(line, id=f"{path.name}: {line[:60]}")
    for path in [*documents(), *files_below(PRODUCTION, ".py", ".md")]
    for line in mentions_in(path.read_text())
]


@pytest.mark.parametrize("line", MENTIONED)
def test_a_command_that_is_mentioned_exists_with_its_options(line: str) -> None:
    command, words = named_command(line)
    options = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    shown = {word.strip("[],.") for word in words if word.lstrip("[").startswith("--")}
    assert shown <= options


def test_the_lines_are_found() -> None:
    assert len(MENTIONED) >= 30
