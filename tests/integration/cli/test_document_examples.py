"""Every command and program that a document or a help shows runs, against a real server.

A server takes longer to start than all else that a line does: some of those lines start one, and the settings
of the others are judged. `make simulate` starts all: see `Sampling`.
"""

from __future__ import annotations

from collections.abc import Generator

import click
import pytest

from tests.support.logs.sampling import Sampling
from tests.support.places import REPOSITORY
from tests.support.service.documented_examples import (
    Example,
    documents,
    help_lines,
    leaf_commands,
    lines_of,
    mentions_in,
    named_command,
    programs_of,
)
from tests.support.service.example_world import ExampleWorld, without_placeholders

NOT_RUN = {
    "make": "most targets install, build or test, and take minutes; `make demo` has test_demo.py",
    "STRATALOG_REWRITE_SCENARIOS=1": "it is a run of tests, and writes into the tree",
    "S3_ENDPOINT_URL=": "it is a run of tests, against the reader's server",
    "git": "it clones from the network",
    "pip": "it installs from the network",
    "aws": "it needs the AWS client and a bucket with versions",
    "AWS_ACCESS_KEY_ID=": "it starts another server; the fixture `seaweedfs_server` does so",
    "stratalog dev s3 minio": "MinIO may not be there; test_dev_s3.py runs it where it is",
    "export": "it sets variables of the reader's shell",
    "grpcurl": "test_calls_by_hand.py runs them",
    "stratalog spark": "it starts Spark, some on a cluster; test_spark_*.py run each command",
    "OTEL_EXPORTER_OTLP_ENDPOINT=": "it needs a collector of traces; test_service_traces.py has none",
    "stratalog demo": "it takes a minute; test_demo.py runs it on fewer flights",
}
"""The beginnings of lines that cannot run here, and the reasons."""

SECURITY = "docs/security.md"
FROM_ZERO = " ".join(
    (REPOSITORY / SECURITY)
    .read_text()
    .partition("## From zero")[2]
    .partition("\n## ")[0]
    .replace("\\\n", "")
    .split()
)

IN_ORDER = ("README.md", "docs/python.md")
"""The documents that a new user follows from the top to the bottom."""


def is_run(line: str) -> bool:
    return not line.startswith(
        tuple(f"{beginning}{'' if beginning[-1] == '=' else ' '}" for beginning in NOT_RUN)
    )


def document_lines() -> list[Example]:
    """The lines of documents, without those that test_secured_commands.py runs in their order."""
    names = [path.relative_to(REPOSITORY).as_posix() for path in documents()]
    lines = [Example(name, line) for name in names for line in lines_of(name)]
    return [one for one in lines if one.source != SECURITY or " ".join(one.line.split()) not in FROM_ZERO]


def whole_mentions() -> list[Example]:
    """The mentions in documents that say all that the command requires, each once."""
    found: dict[str, str] = {}
    for path in documents():
        if path.name != "CHANGELOG.md":
            found |= dict.fromkeys(map(without_placeholders, mentions_in(path.read_text())), path.name)
    return [Example(name, line) for line, name in found.items() if is_whole(line)]


def is_whole(line: str) -> bool:
    command, words = named_command(line)
    if isinstance(command, click.Group):
        return False
    try:
        command.make_context(command.name, words)
    except click.UsageError:
        return False
    return True


def title(example: Example) -> str:
    return f"{example.source}: {example.line}"


COMMANDS = dict(leaf_commands())
HELPS = [Example(path, line) for path, command in COMMANDS.items() for line in help_lines(command)]
LINES = [*document_lines(), *HELPS, *whole_mentions()]
# A line that several documents show runs once.
FIRST = {example.line.partition("#")[0].rstrip(): example for example in reversed(LINES)}
LINES_THAT_RUN = [example for example in reversed(FIRST.values()) if is_run(example.line)]
STARTS = [example for example in LINES_THAT_RUN if "server start" in example.line]
STARTED = Sampling().at_most(STARTS, 5)
JUDGED = [example for example in STARTS if example not in STARTED]
RUN = [example for example in LINES_THAT_RUN if example not in JUDGED]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Generator[ExampleWorld]:
    with ExampleWorld(tmp_path_factory.mktemp("examples")) as running:
        yield running


@pytest.mark.parametrize("example", RUN, ids=title)
def test_an_example_runs(world: ExampleWorld, example: Example) -> None:
    ended = world.run(example.line)
    assert ended.exit_code == 0, ended.stderr


@pytest.mark.parametrize("example", JUDGED, ids=title)
def test_the_settings_of_a_start_are_valid(world: ExampleWorld, example: Example) -> None:
    ended = world.run(example.line.replace("server start", "server config"))
    assert ended.exit_code == 0, ended.stderr


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_has_examples_of_its_own(path: str) -> None:
    lines = help_lines(COMMANDS[path])
    assert 1 <= len(lines) <= 3
    assert all(f"{path} " in f"{line} " for line in lines)
    # They are printed behind two spaces, and not wrapped.
    assert [line for line in lines if len(line) > 76] == []


def test_the_examples_are_found() -> None:
    unused = [beginning for beginning in NOT_RUN if all(not one.line.startswith(beginning) for one in LINES)]
    assert unused == []
    assert len(RUN) > 100


def test_the_readme_and_the_python_document_run_in_order_and_again(world: ExampleWorld) -> None:
    lines = [line for line in lines_of("README.md") if is_run(line) and "server start" not in line]
    assert len(lines) == 4
    world.run_as_it_stands("stratalog topic delete orders --yes")
    for round_number, run in enumerate((world.run_as_process, world.run_as_it_stands), 1):
        ended = [run(line) for line in lines]
        assert [one.exit_code for one in ended] == [0, 0, 0, 0]
        assert ended[-1].stdout.count('"value": "paid"') == round_number
        for program in (program for document in IN_ORDER for program in programs_of(document)):
            assert world.run_program(program.text) == program.printed


def test_a_program_runs_in_a_process_without_a_warning(world: ExampleWorld) -> None:
    [program] = programs_of("README.md")
    ended = world.run_program_as_process(program.text)
    assert (ended.exit_code, ended.stdout, ended.stderr) == (0, program.printed, "")
