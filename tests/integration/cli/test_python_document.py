"""The examples of docs/python.md, and of the README, do what stands behind them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.places import REPOSITORY
from tests.support.service.server_process import ServerProcess

ADDRESS = "127.0.0.1:9190"


def examples(document: str) -> list[tuple[str, str]]:
    """Each program of a document, and what it prints."""
    text = (REPOSITORY / document).read_text()
    found = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", text, re.DOTALL)
    assert len(found) == text.count("```python")
    return found


def test_each_example_prints_what_the_document_says(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for document in ("README.md", "docs/python.md"):
        with ServerProcess(f"{tmp_path}/{Path(document).stem}") as server:
            programs = examples(document)
            assert programs
            for program, printed in programs:
                assert ADDRESS in program
                ended = subprocess.run(
                    [sys.executable, "-W", "error", "-c", program.replace(ADDRESS, server.address)],
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=120,
                    check=False,
                )
                assert (ended.stderr, ended.stdout) == ("", printed)
