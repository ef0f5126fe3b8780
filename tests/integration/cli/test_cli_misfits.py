"""Numbers that are too large, and names that are not UTF-8, in every argument and option that takes one.

Text that is not UTF-8 is tried in one of them for each command, which the seed chooses; bad positions all
with one command, and with the others some. `make simulate` tries all of both: see `Sampling`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from stratalog.base.errors import LogStoreError
from stratalog.cli.main import stratalog
from tests.support.logs.sampling import Sampling
from tests.support.service.server_process import ServerProcess

SAMPLING = Sampling()
NUMERIC = click.types.IntParamType | click.types.FloatParamType
NOT_UTF8 = "x\udcff"
TOPIC = "t"
GOOD = {
    "partition": "0",
    "before": "0",
    "data_dir": "data",
    "log_dir": "logs",
    "store": "gs://nowhere",
    "store_url": "gs://nowhere",
    "config": "retention.ms=-1",
}
"""Options that a command needs to get as far as it can; with that store no server starts to serve."""


@pytest.fixture(scope="module")
def address(server: ServerProcess) -> str:
    """The address of a server that has the topic."""
    CliRunner().invoke(stratalog, ["topic", "create", TOPIC, "--server", server.address])
    return server.address


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


NUMBERS = [
    pytest.param(path, parameter, id=" ".join((*path, parameter.opts[0])))
    for path, command in commands(stratalog)
    for parameter in command.params
    if isinstance(parameter.type, NUMERIC)
]


@pytest.mark.parametrize(("path", "parameter"), NUMBERS)
def test_a_number_has_both_bounds(path: tuple[str, ...], parameter: click.Parameter) -> None:
    bounds = parameter.type
    assert isinstance(bounds, click.IntRange | click.FloatRange)
    assert bounds.min is not None
    assert bounds.max is not None
    assert -1 <= bounds.min < bounds.max < 1 << 63
    form = float if isinstance(bounds, click.FloatRange) else int
    for number in map(form, (bounds.min - 1, bounds.max + 1, 10**20, -(10**20))):
        result = CliRunner().invoke(stratalog, (*path, parameter.opts[0], str(number)))
        assert result.exit_code == 2, result.output
        assert f": {number} is not in the range" in result.stderr


BAD_POSITIONS = [
    *("", "yesterday", "Earliest", "@", "@abc", "@-5", "@1.5", "-", "-0", "-abc", "--5", "+5", "1.5", "1e3"),
    *("2013-13-01", "1969-12-31T23:59:59Z", "0001-01-01", "5 6", "inf", "p0=5"),
    *(f"{sign}{number}" for sign in ("", "-", "@") for number in (1 << 63, 10**20, int("9" * 4300))),
    # One digit more than Python reads.
    "9" * 4301,
]
TAKE_POSITIONS = [
    ("consume", "t", "-o"),
    ("consume", "t", "--until"),
    ("log", "offsets", "t", "--at"),
    ("records", "delete", "t", "--before"),
]


POSITIONS = [
    pytest.param(arguments, text, id=f"{arguments[0]}-{text[:20]}")
    for arguments in TAKE_POSITIONS
    for text in (BAD_POSITIONS if arguments is TAKE_POSITIONS[0] else SAMPLING.at_most(BAD_POSITIONS, 4))
]


@pytest.mark.parametrize(("arguments", "text"), POSITIONS)
def test_a_bad_position_is_named_with_the_notations(arguments: tuple[str, ...], text: str) -> None:
    result = CliRunner().invoke(stratalog, (*arguments, text))
    assert result.exit_code == 2
    message = result.stderr.splitlines()[-1]
    assert message.startswith("Error: Invalid value for '")
    assert repr(text)[:40].removesuffix("'") in message
    for notation in ("earliest", "latest", "an offset", "-N", "ISO 8601", "@MILLIS"):
        assert notation in message


def takes_text(parameter: click.Parameter) -> bool:
    return isinstance(parameter.type, click.types.StringParamType | click.Path | click.File)


def is_needed(parameter: click.Parameter) -> bool:
    return parameter.required or parameter.name in ("store", "store_url")


def arguments_with(command: click.Command, misfit: click.Parameter, text: str) -> Iterator[str]:
    for parameter in command.params:
        assert parameter.name is not None
        if parameter is misfit:
            value = text
        elif is_needed(parameter):
            value = GOOD.get(parameter.name, TOPIC)
        else:
            continue
        if isinstance(parameter, click.Option):
            yield parameter.opts[0]
        yield value


def texts_of(path: tuple[str, ...], command: click.Command) -> list[click.Parameter]:
    return [
        parameter
        for parameter in command.params
        # What that one prints is checked below, as bytes.
        if takes_text(parameter) and (path, parameter.name) != (("export", "kafka"), "log_dir")
    ]


TEXTS = [
    pytest.param(path, command, parameter, id=" ".join((*path, parameter.human_readable_name)))
    for path, command in commands(stratalog)
    for parameter in SAMPLING.at_most(texts_of(path, command), 1)
]


@pytest.mark.parametrize(("path", "command", "parameter"), TEXTS)
def test_text_that_is_not_utf8(
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: tuple[str, ...],
    command: click.Command,
    parameter: click.Parameter,
) -> None:
    monkeypatch.setenv("STRATALOG_SERVER", address)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("logs").mkdir()
    value = f"retention.ms={NOT_UTF8}" if parameter.name == "config" else NOT_UTF8
    result = CliRunner().invoke(stratalog, (*path, *arguments_with(command, parameter, value)))
    if isinstance(result.exception, LogStoreError):
        assert "\n" not in str(result.exception)
    else:
        assert result.exit_code in (0, 1, 2), result.output
        assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)


def test_all_of_the_commands_were_found() -> None:
    assert len(NUMBERS) > 10
    assert len(TEXTS) > 30


def run(
    server: ServerProcess, *arguments: str | bytes, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "stratalog.cli", *arguments],
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, "STRATALOG_SERVER": server.address, "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"},
    )


def test_it_is_one_line(server: ServerProcess) -> None:
    ended = run(server, "topic", "create", b"x\xff")
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert ended.stderr == b"error: the text is not Unicode; correct it text=`'x\\udcff'`\n"


def test_bytes_of_key_separators_and_paths_go_out_as_they_came(server: ServerProcess, tmp_path: Path) -> None:
    run(server, "topic", "create", "bytes")
    run(server, "produce", "bytes", "--key-separator", b"\xff", stdin=b"k\xffv\n")
    assert run(server, "consume", "bytes", "--key-separator", b"=\xfe").stdout == b"k=\xfev\n"
    target = os.fsencode(tmp_path) + b"/out\xff"
    exported = run(server, "export", "kafka", "bytes", target)
    assert exported.returncode == 0, exported.stderr
    assert exported.stdout.endswith(b" to " + target + b"\n")
    dumped = run(server, "log", "dump", target)
    assert dumped.returncode == 0, dumped.stderr
