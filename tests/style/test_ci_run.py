"""`.ci/run` makes the checks and the tests, whichever fails, and ends with the output of the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("check_code", "test_code", "code"), [(0, 0, 0), (2, 0, 2), (0, 2, 2), (3, 2, 3), (1, 2, 2)]
)
@pytest.mark.parametrize("is_check_last", [False, True])
def test_both_are_made_and_the_worse_one_counts(
    tmp_path: Path, check_code: int, test_code: int, code: int, is_check_last: bool
) -> None:
    """A named pipe lets one of them end only when the other has printed its line."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci" / "run", tmp_path / ".ci")
    first, last = ("test", "check") if is_check_last else ("check", "test")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    write_program(
        tmp_path / "bin" / "make",
        f'case "$1" in {first}) echo "made $1"; : >{pipe};; {last}) : <{pipe}; echo "made $1";;'
        ' *) echo "made $1";; esac\n'
        f'case "$1" in check) exit {check_code};; test) exit {test_code};; install) exit 0;; esac; exit 99\n',
    )
    ended = run_ci(tmp_path)
    assert ended.stdout.splitlines() == ["made install", "made check", "made test"]
    assert ended.returncode == code


def test_nothing_is_made_where_the_installation_fails(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci" / "run", tmp_path / ".ci")
    write_program(tmp_path / "bin" / "make", 'echo "made $1"; exit 2\n')
    ended = run_ci(tmp_path)
    assert (ended.stdout, ended.returncode) == ("made install\n", 2)


def run_ci(repository: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [repository / ".ci" / "run"],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": os.pathsep.join((str(repository / "bin"), os.environ["PATH"]))},
    )
