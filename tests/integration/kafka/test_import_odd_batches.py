"""Batches that a broker took and a server of ours would not: they are imported, read from both tiers, and
exported, all as they are.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from crc32c import crc32c

from stratalog.base.types import TopicPartition
from stratalog.cli.main import stratalog
from stratalog.log.checkpoint import format_checkpoint
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import MAX_SENT_BYTES, Codec
from stratalog.record.header import ATTRIBUTES_POSITION, HEADER_SIZE, parse_header
from stratalog.record.record import Record
from tests.support.kafka.import_command import import_kafka
from tests.support.service.service_bench import service_bench

FIRST_MS = 1_700_000_000_000


def large() -> bytes:
    """It decompresses to more than a client of ours may send."""
    count = MAX_SENT_BYTES // (1 << 20) + 1
    return encode_batch(
        [Record(0, FIRST_MS + number, b"k", b"v" * (1 << 20)) for number in range(count)],
        codec=Codec.ZSTD,
        leader_epoch=0,
    )


def misdated(difference_ms: int) -> bytes:
    """Its header has another highest timestamp than its records."""
    batch = encode_batch([Record(0, FIRST_MS + number, b"k", b"v") for number in range(3)], leader_epoch=0)
    header = parse_header(batch)
    header = header._replace(max_timestamp=header.max_timestamp + difference_ms)
    crc = crc32c(batch[HEADER_SIZE:], crc32c(header.pack()[ATTRIBUTES_POSITION:]))
    return header._replace(crc=crc).pack() + batch[HEADER_SIZE:]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(stratalog, arguments, catch_exceptions=False)


async def shown(*arguments: str) -> Any:
    result = await asyncio.to_thread(invoke, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def write_topic(log_dir: Path, name: str, first: bytes) -> bytes:
    """The batch, and one record behind it; the bytes of the log."""
    next_offset = parse_header(first).next_offset
    log = first + encode_batch(
        [Record(0, FIRST_MS + 500, b"k", b"last")], base_offset=next_offset, leader_epoch=0
    )
    directory = log_dir / f"{name}-0"
    directory.mkdir(parents=True)
    (directory / f"{0:020}.log").write_bytes(log)
    return log


@pytest.mark.parametrize("is_tiered", [False, True], ids=["local", "tiered"])
@pytest.mark.parametrize(
    ("first", "count"),
    [(large(), MAX_SENT_BYTES // (1 << 20) + 1), (misdated(40), 3), (misdated(-3), 3)],
    ids=["large", "too-late", "too-early"],
)
async def test_what_a_broker_took_is_read_and_exported(
    tmp_path: Path, first: bytes, count: int, *, is_tiered: bool
) -> None:
    log = write_topic(tmp_path / "kafka", "t", first)
    offsets = format_checkpoint({TopicPartition("t", 0): count + 1})
    (tmp_path / "kafka" / "recovery-point-offset-checkpoint").write_text(offsets)
    (tmp_path / "kafka" / "log-start-offset-checkpoint").write_text(format_checkpoint({}))
    (tmp_path / "kafka" / ".kafka_cleanshutdown").touch()
    import_kafka(tmp_path / "data", tmp_path / "kafka")
    async with service_bench(tmp_path) as bench:
        if is_tiered:
            await bench.client.admin.upload([], delete_local=True)
        server = ("--server", bench.client.address)
        [records] = await bench.read_all("t")
        assert [record.offset for record in records] == [*range(count + 1)]
        # As in Kafka, it is the header that says whether to look for a record.
        second = 1 if parse_header(first).max_timestamp > FIRST_MS else count
        for at, offset in ((FIRST_MS + 1, second), (FIRST_MS + 400, count), ("max-timestamp", count)):
            [row] = await shown("log", "offsets", "t", "--at", str(at), *server)
            assert row["offset"] == offset
        await shown("export", "kafka", "t", f"{tmp_path}/out", *server)
    assert (tmp_path / "out" / "t-0" / f"{0:020}.log").read_bytes() == log
    if is_tiered:
        return
    path = f"{tmp_path}/kafka/t-0/{0:020}.log"
    # It marks what is odd, and prints the rest.
    dumped = await asyncio.to_thread(CliRunner().invoke, stratalog, ["log", "dump", "--records", path])
    assert dumped.stdout.count('  "k"  ') == count + 1
