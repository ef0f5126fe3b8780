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


@pytest.mark.parametrize(
    ("codes", "is_failed", "end"),
    [
        ((0,), False, []),
        ((1,), True, ["== failed with exit code 1: bin/mypy", "found 1", "failed: mypy"]),
        ((134, 0), False, ["== bin/mypy crashed with exit code 134 in its first run"]),
        (
            (134, 2),
            True,
            [
                "== bin/mypy crashed with exit code 134 in its first run",
                "== bin/mypy crashed with exit code 2 in its second run",
                "== failed with exit code 2: bin/mypy",
                "found 2",
                "failed: mypy",
            ],
        ),
    ],
)
def test_all_checks_are_made_and_a_failure_is_said_again_at_the_end(
    tmp_path: Path, codes: tuple[int, ...], is_failed: bool, end: list[str]
) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(REPOSITORY / "scripts" / "check.sh", tmp_path / "scripts")
    for name in ("bin/ruff", "bin/mypy", "bin/basedpyright", "bin/lint-imports", "scripts/check_stubs.sh"):
        write_program(tmp_path / name, "true\n")
    left = tmp_path / "codes"
    left.write_text("".join(f"{code}\n" for code in codes))
    write_program(
        tmp_path / "bin" / "mypy",
        f'code=$(head -n 1 {left}); sed -i 1d {left}; echo "found $code"; exit $code\n',
    )
    command = [str(tmp_path / "scripts" / "check.sh"), "bin"]
    ended = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert ended.returncode == int(is_failed)
    assert ended.stderr.splitlines() == end
    made = [line.split()[1] for line in ended.stdout.splitlines() if line.startswith("== ")]
    assert [*dict.fromkeys(made)] == [
        *("bin/ruff", "bin/mypy", "bin/basedpyright", "bin/lint-imports", "scripts/check_stubs.sh")
    ]


def run_ci(repository: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [repository / ".ci" / "run"],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": os.pathsep.join((str(repository / "bin"), os.environ["PATH"]))},
    )
