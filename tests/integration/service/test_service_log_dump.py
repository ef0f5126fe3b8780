"""`stratalog log dump` of a directory that our own server wrote: running, stopped and killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from stratalog.cli.main import stratalog
from tests.support.service.server_process import ServerProcess

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
LINES_PER_CODEC = 100


def lines_of(*arguments: str, stdin: bytes = b"") -> list[dict[str, Any]]:
    """The JSON lines that a command which succeeds prints."""
    result = CliRunner().invoke(stratalog, [*arguments, "--json"], input=stdin)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def dumped(directory: Path) -> list[dict[str, Any]]:
    return lines_of("log", "dump", "--records", "--index-sanity-check", str(directory))


def of_type(items: list[dict[str, Any]], *types: str) -> list[dict[str, Any]]:
    return [item for item in items if item["type"] in types]


def fill(address: str) -> list[dict[str, Any]]:
    """Records in every codec over several segments; returns them as they are consumed."""
    lines_of("topic", "create", "orders", "--config", "segment.bytes=4000", "--server", address)
    for codec in CODECS:
        records = [
            {"key": f"{codec}-{number % 7}", "value": None if number % 11 == 0 else f"{number} " * 9}
            for number in range(LINES_PER_CODEC)
        ]
        text = "".join(json.dumps(record) + "\n" for record in records)
        command = ("produce", "orders", "--format", "json", "--compression", codec, "--server", address)
        lines_of(*command, stdin=text.encode())
    return lines_of("consume", "orders", "--server", address)


def require_records(items: list[dict[str, Any]], consumed: list[dict[str, Any]]) -> None:
    found = [
        {name: value for name, value in item.items() if name not in {"file", "type"}} | {"partition": 0}
        for item in of_type(items, "record")
    ]
    assert found == consumed
    assert of_type(items, "offset_index_entry", "time_index_entry")


def test_the_files_hold_what_was_consumed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess(str(data)) as server:
        consumed = fill(server.address)
        assert len(consumed) == len(CODECS) * LINES_PER_CODEC
        running = dumped(data / "orders-0")
        require_records(running, consumed)
        server.kill()
        require_records(dumped(data / "orders-0"), consumed)
        server.start()
        assert server.stop() == 0
        require_records(dumped(data / "orders-0"), consumed)
    batches = of_type(running, "batch")
    assert {batch["codec"] for batch in batches} == set(CODECS)
    assert all(batch["crc_matches"] for batch in batches)
    assert len({batch["file"] for batch in batches}) > 2
    offsets = {item["file"]: item["offset"] for item in of_type(dumped(data), "checkpoint_offset")}
    assert offsets["recovery-point-offset-checkpoint"] == len(consumed)
