"""`stratalog server config`, and what a start does with faults."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from stratalog.cli.main import stratalog
from stratalog.cli.server.service_manager import notify_service_manager
from stratalog.server.configuration.broker_config import BROKER_KEYS
from stratalog.server.configuration.settings_table import SETTINGS


def test_the_settings_in_force_are_shown_with_their_sources(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text('store = "s3://me:secret@b/p"\nfold-ms = 7\n[config]\nlog.retention.hours = 2\n')
    arguments = ["server", "config", "--config-file", str(file), "--data-dir", "/data"]
    runner = CliRunner(env={"STRATALOG_HISTORY_DAYS": "3"})
    shown = runner.invoke(stratalog, [*arguments, "--json"])
    assert shown.exit_code == 0, shown.output
    rows = {row["name"]: row for row in json.loads(shown.stdout)}
    assert list(rows) == [*SETTINGS, *BROKER_KEYS]
    assert (rows["data-dir"]["value"], rows["data-dir"]["place"]) == ("/data", "--data-dir")
    assert (rows["history-days"]["value"], rows["history-days"]["place"]) == (3, "STRATALOG_HISTORY_DAYS")
    assert (rows["fold-ms"]["value"], rows["fold-ms"]["place"]) == (7, str(file))
    assert (rows["upload-interval"]["value"], rows["upload-interval"]["source"]) == (5, "default")
    # The key takes its value from one that the file sets.
    assert (rows["log.retention.ms"]["value"], rows["log.retention.ms"]["place"]) == ("7200000", str(file))
    assert (rows["log.retention.ms"]["is_alterable"], rows["log.retention.hours"]["is_alterable"]) == (
        True,
        False,
    )
    table = runner.invoke(stratalog, arguments).stdout
    assert "secret" not in table + shown.stdout
    assert table.count("\n") == len(rows) + 1


def test_the_default_store_is_shown_as_it_counts() -> None:
    shown = CliRunner().invoke(stratalog, ["server", "config", "--data-dir", "/data", "--json"])
    [store] = [row for row in json.loads(shown.stdout) if row["name"] == "store"]
    assert (store["value"], store["source"]) == ("file:///data.store", "default")


@pytest.mark.parametrize("command", ["start", "config"])
def test_each_fault_is_a_line_on_standard_error(tmp_path: Path, command: str) -> None:
    file = tmp_path / "f.toml"
    file.write_text("shards = 'x'\nlistn = 1\n")
    arguments = ["server", command, "--config-file", str(file), "--data-dir", f"{tmp_path}/data"]
    only_file = CliRunner().invoke(stratalog, arguments)
    assert (only_file.exit_code, only_file.stdout) == (1, "")
    assert [line.split()[0] for line in only_file.stderr.splitlines()] == ["error:", "error:"]
    with_option = CliRunner().invoke(stratalog, [*arguments, "--history-days", "0"])
    assert (with_option.exit_code, with_option.stderr.count("\n")) == (2, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["f.toml"]


def test_the_service_manager_hears_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify_service_manager("READY=1")
    for address, place in (
        (f"{tmp_path}/s", f"{tmp_path}/s"),
        (f"@{tmp_path.name}-s", f"\0{tmp_path.name}-s"),
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(place)
            manager.settimeout(5)
            monkeypatch.setenv("NOTIFY_SOCKET", address)
            notify_service_manager("READY=1")
            assert manager.recv(100) == b"READY=1"
    notify_service_manager("READY=1")
