"""`.ci/run` makes the checks and the tests, whichever of them fails."""

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
    ("check_code", "test_code", "build_code", "code"),
    [(0, 0, 0, 0), (2, 0, 0, 2), (0, 2, 0, 2), (3, 2, 0, 3), (1, 2, 0, 2), (0, 0, 1, 0), (2, 0, 1, 2)],
)
def test_both_are_made_and_the_worse_one_counts(
    tmp_path: Path, check_code: int, test_code: int, build_code: int, code: int
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci" / "run", tmp_path / ".ci")
    write_program(
        tmp_path / "bin" / "make",
        f'echo "made $1"; case "$1" in check) exit {check_code};; test) exit {test_code};; esac; exit 99\n',
    )
    write_program(tmp_path / "bin" / "go", "exit 1\n")
    write_program(tmp_path / "scripts" / "minio.sh", f'echo "minio $1"; exit {build_code}\n')
    path = os.pathsep.join((str(tmp_path / "bin"), os.environ["PATH"]))
    ended = subprocess.run(
        [tmp_path / ".ci" / "run"],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
    )
    lines = [line for line in ended.stdout.splitlines() if not line.startswith("MinIO")]
    assert lines == ["made check", "minio build", "made test"]
    assert ended.returncode == code
