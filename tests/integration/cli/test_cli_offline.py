"""Output of the commands for a partition that is offline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from stratalog.base.errors import DataDirectoryError
from stratalog.cli.main import stratalog
from tests.support.service.server_process import ServerProcess


def run(*arguments: str, stdin: str = "") -> str:
    result = CliRunner().invoke(stratalog, arguments, input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_an_offline_partition_is_shown_with_its_path_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "data" / "t-0"
    with ServerProcess(f"{tmp_path}/data") as server:
        monkeypatch.setenv("STRATALOG_SERVER", server.address)
        run("topic", "create", "t")
        run("produce", "t", stdin="v1\n")
        run("tier", "upload", "t")
        run("produce", "t", stdin="v2\n")
        assert server.stop() == 0
        path = directory / f"{0:020d}.log"
        data = bytearray(path.read_bytes())
        # The leader epoch.
        data[15] ^= 1
        path.write_bytes(data)
        server.start()
        monkeypatch.setenv("STRATALOG_SERVER", server.address)
        line = f"t-0 is offline, path {directory}: a batch and the log's file of leader epochs"
        for command in (("topic", "describe", "t"), ("log", "describe", "t"), ("tier", "status")):
            assert line in run(*command)
        [described] = json.loads(run("log", "describe", "t", "--json"))
        assert described["offline"]["path"] == str(directory)
        [row] = [
            words for text in run("log", "describe", "t").splitlines() if (words := text.split())[0] == "0"
        ]
        # Start, local start, tiered end, compacted, high watermark, end.
        assert row[:7] == ["0", "0", "-", "1", "0", "-", "-"]
        status = run("tier", "status")
        rows = [text.split() for text in status.splitlines()]
        assert ["offline", "partitions", "1"] in rows
        # Since the start there was nothing to upload.
        assert ["last", "successful", "upload", "-"] in rows
        assert json.loads(run("tier", "status", "--json"))["last_successful_upload_ms"] is None
        refused = CliRunner().invoke(stratalog, ("produce", "t"), input="v3\n")
        assert refused.exit_code == 1
        assert "has been offline" in str(refused.exception)
        for command in (("consume", "t"), ("consume", "t", "--follow"), ("log", "offsets", "t")):
            refused = CliRunner().invoke(stratalog, command)
            assert isinstance(refused.exception, DataDirectoryError), command
            assert str(directory) in f"{refused.stderr}{refused.exception}"
            assert "file of leader epochs" in f"{refused.stderr}{refused.exception}"
        assert "ERROR stratalog.server.partitions.partition_opener: t-0 stays offline" in server.said
