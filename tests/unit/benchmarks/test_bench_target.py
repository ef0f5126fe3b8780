"""`make bench` runs the benchmarks, and no server that one of them starts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_benchmarks_are_run_and_floors_are_not() -> None:
    [command] = re.findall(r"for benchmark in \$\$\((grep .*)\); do", (ROOT / "Makefile").read_text())
    output = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    found = {Path(line).stem for line in output.split()}
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()}
    assert scripts - found == {"plain_append_server", "plain_stream_server"}
    assert found < scripts
