"""`stratalog import kafka` in the process of a test."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from stratalog.cli.main import stratalog
from tests.support.places import GOLDEN


def import_kafka(data_dir: Path, *arguments: str | Path) -> str:
    """Import log directories into `data_dir`; returns what the command prints."""
    command = ["import", "kafka", *map(str, arguments), "--data-dir", str(data_dir)]
    result = CliRunner().invoke(stratalog, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def import_report(data_dir: Path, *arguments: str | Path) -> dict[str, Any]:
    """The document that an import prints with --json."""
    report: dict[str, Any] = json.loads(import_kafka(data_dir, *arguments, "--json"))
    return report


def import_golden(folder: Path) -> None:
    """Import a copy of the golden data, `folder/kafka`, into `folder/data`."""
    shutil.copytree(GOLDEN / "data", folder / "kafka")
    import_kafka(folder / "data", folder / "kafka")
