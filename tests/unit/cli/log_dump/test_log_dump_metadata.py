"""The dump of Kafka's metadata log: control batches that end no transaction, and snapshots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stratalog.cli.commands.log_commands import log
from stratalog.record.builder import encode_batch
from stratalog.record.control_key import ControlKey
from stratalog.record.record import Record
from tests.support.logs.log_machine import LogMachine

NAMES = [
    "leader_change",
    "snapshot_header",
    "snapshot_footer",
    "kraft_version",
    "kraft_voters",
    "control_type_7",
]
SEGMENT = f"{0:020}.log"
SNAPSHOT = f"{70:020}-{3:010}.checkpoint"
BOOTSTRAP = "bootstrap.checkpoint"


def control_batch(base_offset: int, *types: int) -> bytes:
    records = [Record(0, 1000, ControlKey(0, number).pack(), b"\0\0") for number in types]
    return encode_batch(records, base_offset=base_offset, leader_epoch=1, is_control=True)


EVERY_TYPE = b"".join(control_batch(number, number + 2) for number in range(len(NAMES)))
SEVERAL = control_batch(len(NAMES), 3, 5, 6)


def dumped(path: Path, *options: str) -> Result:
    return CliRunner().invoke(log, ["dump", *options, str(path)])


@pytest.mark.parametrize(
    "name",
    [SEGMENT, SNAPSHOT, SNAPSHOT + ".part", SNAPSHOT + ".deleted", BOOTSTRAP],
    ids=lambda name: name[-20:],
)
def test_what_control_records_are_about_is_said_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(EVERY_TYPE + SEVERAL)
    result = dumped(tmp_path / name, "--json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
    assert [item["control_type"] for item in found] == [*NAMES, "snapshot_header,kraft_version,kraft_voters"]
    assert {item["coordinator_epoch"] for item in found} == {None}
    lines = dumped(tmp_path / name).stdout.splitlines()[2:]
    assert [line.split()[-1] for line in lines] == [f"control,{item['control_type']}" for item in found]


def test_a_snapshot_is_dumped_with_its_directory_and_with_records(tmp_path: Path) -> None:
    (tmp_path / SEGMENT).write_bytes(EVERY_TYPE)
    (tmp_path / SNAPSHOT).write_bytes(SEVERAL)
    result = dumped(tmp_path, "--json", "--records", "--index-sanity-check")
    assert result.exit_code == 0, result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [item["file"] for item in found] == [SEGMENT] * 2 * len(NAMES) + [SNAPSHOT] * 4


def test_a_malformed_key_is_corrupt(tmp_path: Path) -> None:
    bad = encode_batch([Record(0, 1000, b"\0\0\0", b"")], base_offset=8, leader_epoch=1, is_control=True)
    (tmp_path / SEGMENT).write_bytes(EVERY_TYPE + bad)
    result = dumped(tmp_path / SEGMENT)
    assert result.exit_code == 1
    assert result.stdout.count("CORRUPT") == 1
    assert f"CORRUPT at position {len(EVERY_TYPE)}: a control record's key" in result.stdout


def test_a_log_takes_them_for_control_batches_that_end_no_transaction() -> None:
    machine = LogMachine()
    opened = machine.start()
    opened.append_as_follower(EVERY_TYPE + SEVERAL)
    opened.check()
    machine.stop()
    directory = opened.directory
    for name in machine.disk.list_directory(directory):
        if name.endswith(".snapshot"):
            machine.disk.unlink(f"{directory}/{name}")
    opened = machine.start()
    opened.check()
    assert opened.log_end_offset == opened.last_stable_offset == len(NAMES) + 3
    assert opened.producers() == ()
