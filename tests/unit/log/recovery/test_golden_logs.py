"""The log directory of a real broker, opened in place: offsets, transactions and producers are the broker's.

Opened and closed without an append, its files stay as the broker left them, byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

import pytest

from stratalog.base.atomic_file import replace_file
from stratalog.base.types import TopicPartition
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import LogConfig
from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.locked_directory import REBUILD
from stratalog.manager.directories.manifest import MANIFEST_FILE
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.segment.file_names import LOG_SUFFIX, SEAL_SUFFIX
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.log_consumer import read_as_consumer
from tests.support.logs.log_machine import NEVER_MS
from tests.support.logs.overwriting import flip
from tests.support.places import GOLDEN

TOPICS = ["appendtime", "codecs", "compacted", "recompressed", "txn"]
ISOLATIONS = {
    "read_uncommitted": Isolation.HIGH_WATERMARK,
    "read_committed": Isolation.TXN_COMMITTED,
}
KEPT_FOREVER = LogConfig(remote_storage_enable=False, retention_ms=-1)
MakeDisk = Callable[[], MemoryFileSystem]
LOG_FILES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint")


class Broker(NamedTuple):
    """Our manager over a copy of the broker's directory."""

    disk: MemoryFileSystem
    manager: LogManager

    def log(self, name: str) -> UnifiedLog:
        return self.manager.log(TopicPartition(f"g1-{name}", 0))


def copied() -> MemoryFileSystem:
    disk = MemoryFileSystem()
    disk.make_directories("/data")
    for path in sorted((GOLDEN / "data").rglob("*")):
        target = f"/data/{path.relative_to(GOLDEN / 'data').as_posix()}"
        if path.is_dir():
            disk.make_directories(target)
            continue
        file = disk.open_append(target)
        file.append([path.read_bytes()])
        file.close()
    replace_file(disk, f"/data/{MANIFEST_FILE}", REBUILD)
    return disk


def opened(disk: MemoryFileSystem, *, is_import: bool = False) -> Broker:
    clock = ManualClock()
    # The records are of 2023, and so are most producers.
    settings = LogManagerSettings(
        data_dirs=("/data",), producer_id_expiration_ms=NEVER_MS, written_by_broker=is_import
    )
    manager = LogManager.open(disk, clock, ManualScheduler(clock), SequentialIds(), settings)
    found = manager.found.with_topics()
    assert [str(partition) for partition, _ in found] == [f"g1-{name}-0" for name in TOPICS]
    for partition, topic_id in found:
        assert isinstance(topic_id, UUID)
        manager.open_log(partition, topic_id, KEPT_FOREVER)
    manager.check()
    return Broker(disk, manager)


def without_shutdown_marker() -> MemoryFileSystem:
    disk = copied()
    disk.unlink("/data/.kafka_cleanshutdown")
    return disk


def without_anything_but_logs() -> MemoryFileSystem:
    """Whatever can be made again is missing, and nothing is known to be durable."""
    disk = without_shutdown_marker()
    disk.unlink("/data/recovery-point-offset-checkpoint")
    for path in disk.contents():
        if path.startswith("/data/g1-") and path.endswith(LOG_FILES) and not path.endswith(".log"):
            disk.unlink(path)
    return disk


WAYS = pytest.mark.parametrize(
    "make_disk", [copied, without_shutdown_marker, without_anything_but_logs], ids=lambda make: make.__name__
)
NAMES = pytest.mark.parametrize("name", TOPICS)
WITH_ISOLATION = pytest.mark.parametrize("isolation", ISOLATIONS)


def test_a_stop_without_an_append_changes_no_file_of_an_imported_log() -> None:
    disk = copied()
    before = disk.contents()
    for is_import in (True, True, False, False):
        broker = opened(disk, is_import=is_import)
        assert broker.manager.was_clean
        assert all(broker.log(name).recovery_report.was_clean for name in TOPICS)
        broker.manager.close()
        after = disk.contents()
        for path, data in before.items():
            if path.endswith(LOG_FILES):
                assert after[path] == data, path
        added = {path for path in after.keys() - before.keys() if path.startswith("/data/g1-")}
        logs = {path for path in before if path.startswith("/data/g1-") and path.endswith(LOG_SUFFIX)}
        assert added == {path.removesuffix(LOG_SUFFIX) + SEAL_SUFFIX for path in logs}
        assert not [path for path in before.keys() - after.keys() if path.startswith("/data/g1-")]


@NAMES
def test_what_is_made_again_has_the_brokers_bytes(name: str) -> None:
    broker = opened(without_anything_but_logs())
    end_offset = broker.log(name).offsets.log_end_offset
    broker.manager.close()
    for path in (GOLDEN / "data" / f"g1-{name}-0").iterdir():
        if path.suffix in (".log", ".txnindex") or (path.name.endswith(LOG_FILES) and name != "compacted"):
            assert broker.disk.read_file(f"/data/g1-{name}-0/{path.name}") == path.read_bytes(), path.name
    assert broker.disk.exists(f"/data/g1-{name}-0/{end_offset:020d}.snapshot")


@WAYS
@NAMES
@WITH_ISOLATION
def test_offsets_and_times_are_those_that_the_broker_answers(
    make_disk: MakeDisk, name: str, isolation: str
) -> None:
    log = opened(make_disk()).log(name)
    level = ISOLATIONS[isolation]
    expected = json.loads((GOLDEN / "expected" / f"{name}.offsets.json").read_text())[isolation]
    latest = (
        log.offsets.last_stable_offset if level is Isolation.TXN_COMMITTED else log.offsets.high_watermark
    )
    assert [log.offsets.log_start_offset, -1] == expected.pop("earliest")
    assert [latest, -1] == expected.pop("latest")
    newest = log.reader.max_timestamp(level)
    assert newest is not None
    assert [newest.offset, newest.timestamp_ms] == expected.pop("max_timestamp")
    for question, answer in expected.items():
        found = log.reader.offset_for_timestamp(int(question.removeprefix("ts:")), level)
        assert ([found.offset, found.timestamp_ms] if found else [-1, -1]) == answer, question


@WAYS
@NAMES
@WITH_ISOLATION
@pytest.mark.parametrize("max_bytes", [1, 2000, 10**6])
def test_records_are_those_that_a_consumer_got(
    make_disk: MakeDisk, name: str, isolation: str, max_bytes: int
) -> None:
    log = opened(make_disk()).log(name)
    lines = (GOLDEN / "expected" / f"{name}.{isolation}.jsonl").read_text().splitlines()
    expected = [json.loads(line)["offset"] for line in lines]
    found = [record.offset for record in read_as_consumer(log, ISOLATIONS[isolation], max_bytes)]
    assert found == expected


@WAYS
@NAMES
def test_aborted_transactions_and_producers_are_those_that_kafkas_tool_prints(
    make_disk: MakeDisk, name: str
) -> None:
    broker = opened(make_disk())
    log = broker.log(name)
    dump = (GOLDEN / "expected" / f"{name}.dump.txt").read_text()
    printed = [
        AbortedTransaction(*(int(number) for number in numbers))
        for numbers in re.findall(
            r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", dump
        )
    ]
    everything = log.reader.read(log.offsets.log_start_offset, 1, Isolation.TXN_COMMITTED)._replace(
        aborted_transactions=()
    )
    found: set[AbortedTransaction] = set()
    while everything.next_offset < log.offsets.last_stable_offset:
        everything = log.reader.read(everything.next_offset, 1, Isolation.TXN_COMMITTED)
        found |= set(everything.aborted_transactions)
    assert sorted(found, key=lambda aborted: aborted.last_offset) == printed
    assert bool(printed) == (name == "txn")
    last_snapshot = GOLDEN / "data" / f"g1-{name}-0" / f"{log.offsets.log_end_offset:020d}.snapshot"
    known = ProducerSnapshot.from_bytes(log.offsets.log_end_offset, last_snapshot.read_bytes())
    assert ProducerSnapshot(log.offsets.log_end_offset, log.producers()).to_bytes() == known.to_bytes()


def transaction_indexes() -> list[str]:
    return [path for path in copied().contents() if path.endswith(".txnindex")]


@pytest.mark.parametrize("make_disk", [copied, without_shutdown_marker], ids=lambda make: make.__name__)
@pytest.mark.parametrize("kept_count", [0, 1])
@pytest.mark.parametrize("paths", [*([path] for path in transaction_indexes()), transaction_indexes()])
def test_an_import_makes_what_is_missing_of_a_transaction_index_again(
    make_disk: MakeDisk, kept_count: int, paths: list[str]
) -> None:
    disk = make_disk()
    whole = copied().contents()
    for path in paths:
        disk.unlink(path)
        if kept_count:
            file = disk.open_append(path)
            file.append([(GOLDEN / path[1:]).read_bytes()[:34]])
            file.close()
    broker = opened(disk, is_import=True)
    lines = (GOLDEN / "expected" / "txn.read_committed.jsonl").read_text().splitlines()
    expected = [json.loads(line)["offset"] for line in lines]
    found = [record.offset for record in read_as_consumer(broker.log("txn"), Isolation.TXN_COMMITTED, 2000)]
    assert found == expected
    broker.manager.close()
    for path, data in whole.items():
        if path.endswith((".log", ".txnindex", ".index", ".timeindex")):
            assert disk.read_file(path) == data, path


def test_an_import_recovers_nothing_that_was_closed() -> None:
    broker = opened(copied(), is_import=True)
    assert all(broker.log(name).recovery_report.was_clean for name in TOPICS)


@pytest.mark.parametrize("path", transaction_indexes())
def test_an_import_believes_no_entry_of_a_transaction_index(path: str) -> None:
    whole = (GOLDEN / path[1:]).read_bytes()
    lines = (GOLDEN / "expected" / "txn.read_committed.jsonl").read_text().splitlines()
    expected = [json.loads(line)["offset"] for line in lines]
    for position in range(0, len(whole), 3):
        disk = copied()
        flip(disk, path, position, position % 8)
        log = opened(disk, is_import=True).log("txn")
        found = [record.offset for record in read_as_consumer(log, Isolation.TXN_COMMITTED, 2000)]
        assert found == expected, position
        assert disk.read_file(path) == whole, position
