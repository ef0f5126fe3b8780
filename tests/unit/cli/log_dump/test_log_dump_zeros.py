"""Zeros behind the last batch of a segment: what a broker has preallocated, or what a crash has taken."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stratalog.base.types import TopicPartition
from stratalog.cli.commands.log_commands import log
from stratalog.log.checkpoint import format_checkpoint
from stratalog.manager.directories.meta_properties import (
    DIRECTORY_ID,
    META_FILE,
    META_VERSION,
    STORE_ID,
    VERSION,
    format_meta_properties,
)
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record

SEGMENT = f"{100:020}.log"
BATCHES = b"".join(
    encode_batch([Record(0, 5, b"k", b"v" * 100)] * 5, base_offset=offset, leader_epoch=1)
    for offset in (100, 105)
)
END_OFFSET = 110
RESERVED_BYTES = 1_000_000


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A partition of a broker that preallocates, and was killed when its recovery point was written."""
    directory = tmp_path / "orders-0"
    directory.mkdir()
    (directory / SEGMENT).write_bytes(BATCHES + bytes(RESERVED_BYTES))
    # As long as the broker runs, the index is longer than its entries, too.
    entry = struct.pack(">ii", 9, len(BATCHES) // 2)
    (directory / f"{100:020}.index").write_bytes(entry + bytes(8000))
    write_offsets(tmp_path, "recovery-point", END_OFFSET)
    write_offsets(tmp_path, "replication", END_OFFSET)
    return directory


def write_offsets(data_dir: Path, name: str, offset: int) -> None:
    text = format_checkpoint({TopicPartition("orders", 0): offset})
    (data_dir / f"{name}-offset-checkpoint").write_text(text)


def dumped(path: Path) -> tuple[int, list[dict[str, Any]]]:
    """Exit code, and what was found besides batches."""
    result = CliRunner().invoke(log, ["dump", str(path), "--json"])
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return result.exit_code, [item for item in found if item["type"] not in {"batch", "offset_index_entry"}]


def test_what_a_killed_broker_has_preallocated_is_no_damage(partition: Path) -> None:
    tail = {"position": len(BATCHES), "size_bytes": RESERVED_BYTES, "type": "preallocated", "file": SEGMENT}
    assert dumped(partition / SEGMENT) == (0, [tail])
    index_tail = {"position": 8, "size_bytes": 8000, "type": "preallocated", "file": f"{100:020}.index"}
    assert dumped(partition) == (0, [tail, index_tail])
    shown = CliRunner().invoke(log, ["dump", str(partition / SEGMENT)]).stdout
    assert shown.endswith(f"{RESERVED_BYTES} bytes of zeros from position {len(BATCHES)} on: preallocated\n")
    # Nor is it where nothing was written yet.
    (partition / SEGMENT).write_bytes(bytes(RESERVED_BYTES))
    for name in ("recovery-point", "replication"):
        write_offsets(partition.parent, name, 100)
    (partition / f"{100:020}.index").write_bytes(bytes(8000))
    assert dumped(partition / SEGMENT) == (0, [{**tail, "position": 0}])


def test_a_segment_that_it_was_compacting_is_no_damage(partition: Path) -> None:
    """Such a segment ends before the log does."""
    cleaned = partition / f"{0:020}.log.cleaned"
    cleaned.write_bytes(BATCHES[: len(BATCHES) // 2] + bytes(RESERVED_BYTES))
    assert dumped(cleaned)[0] == 0
    assert dumped(cleaned.rename(partition / f"{0:020}.log.swap"))[0] == 1


def test_a_segment_of_which_nothing_else_is_known_may_be_preallocated(tmp_path: Path) -> None:
    (tmp_path / SEGMENT).write_bytes(BATCHES + bytes(12))
    assert dumped(tmp_path / SEGMENT)[0] == 0
    # So few may be the beginning of a batch that was torn.
    (tmp_path / SEGMENT).write_bytes(BATCHES + bytes(11))
    assert dumped(tmp_path / SEGMENT)[0] == 1


def it_is_sealed(partition: Path) -> None:
    (partition / f"{END_OFFSET:020}.log").touch()


def the_broker_has_closed_it(partition: Path) -> None:
    (partition.parent / ".kafka_cleanshutdown").touch()


def it_is_of_a_server(partition: Path) -> None:
    properties = {VERSION: META_VERSION, DIRECTORY_ID: "d", STORE_ID: "s"}
    (partition.parent / META_FILE).write_text(format_meta_properties(properties))


def more_was_fsynced(partition: Path) -> None:
    write_offsets(partition.parent, "recovery-point", END_OFFSET + 1)


def an_index_knows_a_batch_there(partition: Path) -> None:
    entries = struct.pack(">iiii", 9, len(BATCHES) // 2, 14, len(BATCHES))
    (partition / f"{100:020}.index").write_bytes(entries + bytes(8000))


@pytest.mark.parametrize(
    "evidence",
    [
        it_is_sealed,
        the_broker_has_closed_it,
        it_is_of_a_server,
        more_was_fsynced,
        an_index_knows_a_batch_there,
    ],
)
def test_where_there_should_be_none_a_crash_has_taken_something(
    partition: Path, evidence: Callable[[Path], None]
) -> None:
    evidence(partition)
    code, [place] = dumped(partition / SEGMENT)
    assert (code, place["type"]) == (1, "corrupt")
    assert (place["position"], place["unreached_bytes"]) == (len(BATCHES), RESERVED_BYTES)
    assert place["reason"].startswith("zeros up to the end of the file")


def test_zeros_before_anything_else_are_damage(partition: Path) -> None:
    (partition / SEGMENT).write_bytes(BATCHES + bytes(RESERVED_BYTES) + b"x")
    code, [place] = dumped(partition / SEGMENT)
    assert code == 1
    assert "magic" in place["reason"]


def test_the_index_of_a_broker_that_was_killed_tells_where_to_go_on(partition: Path) -> None:
    (partition / SEGMENT).write_bytes(b"\xff" * 20 + BATCHES[20:])
    result = CliRunner().invoke(log, ["dump", str(partition / SEGMENT), "--json"])
    [place, batch] = [json.loads(line) for line in result.stdout.splitlines()]
    assert (place["type"], place["unreached_bytes"]) == ("corrupt", len(BATCHES) // 2)
    assert (batch["type"], batch["base_offset"]) == ("batch", 105)
