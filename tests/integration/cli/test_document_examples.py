"""A new user follows the README, then docs/python.md, and repeats both: every command and program runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.support.places import REPOSITORY
from tests.support.service.server_process import ServerProcess

ADDRESS = "127.0.0.1:9190"


def text_of(document: str) -> str:
    return (REPOSITORY / document).read_text()


def commands(document: str) -> list[str]:
    """The indented lines of a document that use a server which runs."""
    lines = re.findall(r"^    ((?:echo|stratalog) .*)$", text_of(document), re.MULTILINE)
    return [line for line in lines if "server start" not in line]


def programs(document: str) -> list[tuple[str, str]]:
    """Each program of a document, and what it prints."""
    text = text_of(document)
    found = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", text, re.DOTALL)
    assert len(found) == text.count("```python")
    return found


def test_the_readme_and_the_python_document_run_in_order_and_again(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "stratalog"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m stratalog.cli "$@"\n')
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PATH": os.pathsep.join((str(program.parent), os.environ["PATH"])),
    }

    def run(*arguments: str) -> str:
        ended = subprocess.run(
            arguments, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert ended.returncode == 0, (arguments, ended.stderr)
        return ended.stdout

    with ServerProcess(f"{tmp_path}/data") as server:
        environment["STRATALOG_SERVER"] = server.address
        for round_number in (1, 2):
            assert len(commands("README.md")) == 4
            *_, consumed = [run("sh", "-c", line) for line in commands("README.md")]
            assert consumed.count('"value": "paid"') == round_number
            for document in ("README.md", "docs/python.md"):
                assert programs(document)
                for text, printed in programs(document):
                    assert ADDRESS in text
                    output = run(sys.executable, "-W", "error", "-c", text.replace(ADDRESS, server.address))
                    assert output == printed
