"""Transactions that were open when the broker was stopped: the import tells, as readers will find it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.base.types import TopicPartition
from stratalog.client.isolation_level import IsolationLevel
from stratalog.log.checkpoint import format_checkpoint
from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.log.producers.producer_state_entry import ProducerStateEntry
from stratalog.record.batch import stamp
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.record import Record
from tests.support.kafka.import_command import import_kafka, import_report
from tests.support.service.service_bench import service_bench

PARTITION = TopicPartition("t", 0)


def partition_directory(folder: Path) -> Path:
    """The directory of a broker that was killed before it wrote its checkpoints."""
    directory = folder / "kafka" / str(PARTITION)
    directory.mkdir(parents=True)
    for name in ("recovery-point", "log-start"):
        (folder / "kafka" / f"{name}-offset-checkpoint").touch()
    return directory


def write_log_start(folder: Path, offset: int) -> None:
    """The broker lived long enough to write this, and was killed before it had fsynced anything."""
    for name, known in (("recovery-point", 0), ("log-start", offset)):
        text = format_checkpoint({PARTITION: known})
        (folder / "kafka" / f"{name}-offset-checkpoint").write_text(text)


def write_log(folder: Path) -> Path:
    """Producers 1, 2 and 3 begin a transaction at offsets 1, 2 and 3; that of 1 is ended at 4."""
    directory = partition_directory(folder)
    data = encode_batch([Record(0, 1000, b"k", b"v")], base_offset=0, leader_epoch=0)
    for number in (1, 2, 3):
        producer = BatchProducer(number, 0, 0, is_transactional=True)
        data += encode_batch(
            [Record(0, 1000, b"k", b"v")], base_offset=number, leader_epoch=0, producer=producer
        )
    marker = bytearray(EndTransactionMarker(ControlType.COMMIT, 0).to_batch(1, 0, 1000))
    stamp(marker, 0, base_offset=4, leader_epoch=0)
    (directory / f"{0:020}.log").write_bytes(data + marker)
    return directory


async def require_told(folder: Path, count: int, first_offset: int, stops_at: int) -> None:
    told = "open transaction" if count == 1 else "open transactions"
    assert (
        f"warning: t-0 has {count} {told}, the first one from offset {first_offset};"
        f" readers of committed records stop at offset {stops_at} until"
    ) in import_kafka(folder / "trial", folder / "kafka")
    report = import_report(folder / "data", folder / "kafka")
    assert report["topics"][0]["partitions"][0]["open_transactions"] == count
    assert [remark for remark in report["remarks"] if told in remark]
    async with service_bench(folder) as bench:
        [answer] = await bench.client.list_offsets(
            [(PARTITION, "latest")], isolation=IsolationLevel.READ_COMMITTED
        )
    assert answer.offset == stops_at


@pytest.mark.parametrize(("log_start_offset", "stops_at"), [(0, 2), (3, 3)])
async def test_open_transactions_are_counted_and_told(
    tmp_path: Path, log_start_offset: int, stops_at: int
) -> None:
    write_log(tmp_path)
    write_log_start(tmp_path, log_start_offset)
    await require_told(tmp_path, 2, 2, stops_at)


async def test_one_whose_records_were_all_deleted_is_reported(tmp_path: Path) -> None:
    """A snapshot alone knows of it."""
    directory = partition_directory(tmp_path)
    batch = encode_batch([Record(0, 1000, b"k", b"v")], base_offset=9, leader_epoch=0)
    (directory / f"{9:020}.log").write_bytes(batch)
    entry = ProducerStateEntry(7, 0, current_txn_first_offset=5)
    (directory / f"{9:020}.snapshot").write_bytes(ProducerSnapshot(9, (entry,)).to_bytes())
    write_log_start(tmp_path, 9)
    await require_told(tmp_path, 1, 5, 9)
