"""Kafka's own programs on files that this project wrote: its dump tool, and a broker.

Fetched by Maven on first use; skipped where that, or Java, cannot be had.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import lz4.frame  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]  # has no types
import pytest
from click.testing import CliRunner
from crc32c import crc32c

from stratalog.base.errors import DataDirectoryInUseError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.cli.main import stratalog
from stratalog.log.checkpoint import LOG_START_OFFSET_FILE, format_checkpoint, parse_checkpoint
from stratalog.manager.directories.partition_metadata import format_topic_id
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import ATTRIBUTES_POSITION, HEADER_SIZE, LOG_OVERHEAD, parse_header
from stratalog.record.record import Record
from tests.support.kafka.import_command import import_golden
from tests.support.kafka.kafka_broker import KafkaBroker, encoded
from tests.support.kafka.kafka_distribution import KafkaDistribution
from tests.support.logs.log_machine import LogMachine
from tests.support.logs.sampling import whole_only
from tests.support.places import GOLDEN
from tests.support.service.service_bench import ServiceBench, service_bench

LZ4: Any = lz4.frame
TOPICS = ("appendtime", "codecs", "compacted", "recompressed", "txn")
OURS = "ours"

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


async def write_ours(bench: ServiceBench) -> None:
    """Every codec, headers, nulls, several segments."""
    await bench.client.admin.create_topic(OURS, 1, {"segment.bytes": "4096", "index.interval.bytes": "512"})
    for number, codec in enumerate([*Codec] * 6):
        records = [
            Record(0, 1_700_000_000_000 + number, b"k%d" % number, None),
            Record(0, 1_700_000_000_000 - number, None, os.urandom(300), (("h", b"x"), ("h", None))),
        ]
        await bench.client.append(OURS, 0, records, codec=codec)


async def export(bench: ServiceBench, topic: str, target: Path, topic_id: UUID, *options: str) -> None:
    arguments = ["export", "kafka", topic, str(target), "--topic-id", format_topic_id(topic_id)]
    arguments += ["--server", bench.client.address, *options]
    result = await asyncio.to_thread(CliRunner().invoke, stratalog, arguments, catch_exceptions=False)
    assert result.exit_code == 0


SUFFIXES = (".log", ".txnindex", ".snapshot")


def batch_lines(dump: str, directory: Path, suffix: str) -> list[str]:
    """The lines about batches, aborted transactions and producers in files of that directory and suffix,
    without names of files and positions in them."""
    sections = re.split(r"^Dumping (\S+)$", dump, flags=re.MULTILINE)
    return [
        re.sub(r"position: \d+ ", "", line.strip())
        for name, text in zip(sections[1::2], sections[2::2], strict=True)
        if name.startswith(str(directory)) and name.endswith(suffix)
        for line in text.splitlines()
        if re.match(r"(baseOffset|version|producerId): ", line)
    ]


@whole_only
async def test_the_dump_tool_finds_nothing_wrong(tmp_path: Path, kafka: KafkaDistribution) -> None:
    import_golden(tmp_path)
    async with service_bench(tmp_path) as bench:
        await write_ours(bench)
        for name in TOPICS:
            # From here on the segments, indexes and snapshots are ours.
            await bench.append(f"g1-{name}", [b"after the import"])
        await bench.client.admin.upload([])
    directories = [tmp_path / "data" / f"{name}-0" for name in (OURS, *(f"g1-{name}" for name in TOPICS))]
    logs = [path for directory in directories for path in sorted(directory.glob("*.log"))]
    logs.append(write_linked_lz4(tmp_path / "lz4"))
    indexes = [path for directory in directories for path in sorted(directory.glob("*index"))]
    found = kafka.dump(logs, "--deep-iteration", "--print-data-log")
    assert found.count("isvalid: true") > len(directories)
    assert len(re.findall(r"^\| offset: ", found.rpartition("Dumping ")[2], re.MULTILINE)) == 3000
    for text in (found, kafka.dump(indexes, "--index-sanity-check")):
        assert text.count("Dumping ") > len(directories)
        assert not re.search(r"isvalid: false|Mismatch|Found|Exception|not valid|Error", text), text
    assert len(list((tmp_path / "data" / f"{OURS}-0").glob("*.log"))) > 3


def write_linked_lz4(folder: Path) -> Path:
    """A log whose lz4 blocks refer to each other when they are sent. Kafka's reader knows no such blocks."""
    plain = encode_batch([Record(0, 1000, b"k%d" % number, os.urandom(40)) for number in range(3000)])
    section = LZ4.compress(plain[HEADER_SIZE:], block_size=LZ4.BLOCKSIZE_MAX64KB)
    header = parse_header(plain)._replace(
        attributes=Codec.LZ4, batch_length=HEADER_SIZE - LOG_OVERHEAD + len(section)
    )
    crc = crc32c(section, crc32c(header.pack()[ATTRIBUTES_POSITION:]))
    machine = LogMachine(PosixFileSystem(), data_dirs=(str(folder),))
    machine.start().appender.append_as_leader(header._replace(crc=crc).pack() + section, 1)
    machine.stop()
    [log] = folder.glob("*/*.log")
    return log


async def test_what_was_replayed_is_dumped_as_kafkas_own(tmp_path: Path, kafka: KafkaDistribution) -> None:
    import_golden(tmp_path)
    async with service_bench(tmp_path) as bench:
        await export(bench, "g1-txn", tmp_path / "out", UUID(int=9), "--keep-producer-ids")
    directories = tmp_path / "out", GOLDEN / "data"
    paths = [directory.glob(f"g1-txn-0/*{suffix}") for directory in directories for suffix in SUFFIXES]
    dump = kafka.dump([path for found in paths for path in sorted(found)])
    for suffix in SUFFIXES:
        our_lines, their_lines = (batch_lines(dump, directory, suffix) for directory in directories)
        assert our_lines
        if suffix == ".snapshot":
            # Theirs lie where their segments began; the last one has everything.
            our_lines, their_lines = our_lines[-4:], their_lines[-4:]
        assert our_lines == their_lines


def put_in_place(exported: Path, log_dir: Path) -> None:
    """Do what the documentation says: the directories, and the lines about deleted records."""
    for directory in exported.glob("*-*"):
        if directory.is_dir():
            shutil.rmtree(log_dir / directory.name)
            shutil.move(directory, log_dir / directory.name)
    starts = parse_checkpoint((exported / LOG_START_OFFSET_FILE).read_text())
    known = parse_checkpoint((log_dir / LOG_START_OFFSET_FILE).read_text())
    (log_dir / LOG_START_OFFSET_FILE).write_text(format_checkpoint({**known, **starts}))


async def test_a_broker_serves_what_was_exported(tmp_path: Path, kafka: KafkaDistribution) -> None:
    import_golden(tmp_path)
    broker = KafkaBroker(kafka, tmp_path)
    names = [OURS, *(f"g1-{name}" for name in TOPICS)]
    with broker.running():
        topic_ids = {name: broker.create_topic(name) for name in names}
        refused = CliRunner().invoke(
            stratalog,
            ["import", "kafka", str(broker.log_dir), "--data-dir", f"{tmp_path}/other", "--dry-run"],
        )
        assert isinstance(refused.exception, DataDirectoryInUseError)
    async with service_bench(tmp_path) as bench:
        await write_ours(bench)
        # Half of it from the object store.
        await bench.client.admin.upload([OURS, "g1-txn", "g1-compacted"], delete_local=True)
        [[*expected_ours]] = await bench.read_all(OURS)
        for name, topic_id in topic_ids.items():
            await export(bench, name, tmp_path / "out" / name, topic_id)
    for name in names:
        put_in_place(tmp_path / "out" / name, broker.log_dir)
    with broker.running():
        for isolation_level in ("read_uncommitted", "read_committed"):
            for name in TOPICS:
                lines = (GOLDEN / "expected" / f"{name}.{isolation_level}.jsonl").read_text().splitlines()
                assert broker.records(f"g1-{name}", isolation_level) == list(map(json.loads, lines)), name
            found = broker.records(OURS, isolation_level)
            assert [(record["offset"], record["value"]) for record in found] == [
                (record.offset, encoded(record.value)) for record in expected_ours
            ]
