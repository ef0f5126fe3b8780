"""An import takes over parts of a broker's transaction indexes, where the batches do not say everything."""

from __future__ import annotations

import pytest

from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.log.checkpoint import RECOVERY_POINT_FILE
from stratalog.log.leader_epoch_cache import LEADER_EPOCH_FILE
from stratalog.log.log_config import LogConfig
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.header import ATTRIBUTES_POSITION, LEADER_EPOCH_POSITION, MAGIC_POSITION, parse_header
from stratalog.record.record import Record
from stratalog.segment.batch_headers import UNKNOWN_HEADERS
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.segment.segment_seal import SegmentSeal
from stratalog.testing.manual_clock import DEFAULT_NOW_MS
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.log_machine import DATA_DIR, PARTITION_DIR, LogMachine
from tests.support.logs.overwriting import overwrite

CONFIG = LogConfig(remote_storage_enable=False, retention_ms=-1)
# Each batch has an index entry, so a look-up does not pass a damaged one.
DENSE_CONFIG = LogConfig(remote_storage_enable=False, retention_ms=-1, index_interval_bytes=60)
FIRST, SECOND = (f"{PARTITION_DIR}/{offset:020d}" for offset in (0, 3))


def broker_disk() -> tuple[MemoryFileSystem, tuple[AbortedTransaction, ...]]:
    """Two segments that lost their seals. The transaction of producer 1 goes from the first into the second
    one; those of producer 2, before and behind the boundary, are short."""
    machine = LogMachine(MemoryFileSystem(), CONFIG)
    log = machine.start()
    sequences = {1: 0, 2: 0}

    def append(producer_id: int) -> None:
        producer = BatchProducer(producer_id, 0, base_sequence=sequences[producer_id], is_transactional=True)
        log.appender.append_as_leader(
            encode_batch([Record(0, DEFAULT_NOW_MS, b"k", b"v")], producer=producer), 1
        )
        sequences[producer_id] += 1

    def end(producer_id: int, *, committed: bool) -> None:
        log.appender.append_end_transaction_marker(producer_id, 0, 0, committed=committed, leader_epoch=1)

    append(1)
    append(2)
    end(2, committed=False)
    log.roll()
    append(1)
    append(2)
    end(2, committed=False)
    end(1, committed=False)
    log.roll()
    append(2)
    truth = log.reader.aborted_transactions(0, log.offsets.log_end_offset)
    assert truth == ((2, 1, 2, 0), (2, 4, 5, 0), (1, 0, 6, 7))
    machine.stop()
    disk = machine.disk
    assert isinstance(disk, MemoryFileSystem)
    for path in (FIRST, SECOND):
        disk.unlink(f"{path}.seal")
    return disk, truth


def imported(disk: MemoryFileSystem) -> tuple[AbortedTransaction, ...]:
    """The aborted transactions that the import finds, and that the next process finds."""
    machine = LogMachine(disk, CONFIG, written_by_broker=True)
    log = machine.start()
    assert log.recovery_report.was_clean
    found = log.reader.aborted_transactions(log.offsets.log_start_offset, log.offsets.log_end_offset)
    machine.stop()
    machine = LogMachine(disk, CONFIG)
    log = machine.start()
    assert log.recovery_report.was_clean
    assert log.reader.aborted_transactions(log.offsets.log_start_offset, log.offsets.log_end_offset) == found
    machine.stop()
    return found


def test_where_the_batches_say_everything_an_index_may_be_missing() -> None:
    disk, truth = broker_disk()
    for path in (FIRST, SECOND):
        disk.unlink(f"{path}.txnindex")
    assert imported(disk) == truth


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("path", [FIRST, SECOND])
def test_an_index_that_leads_to_batches_is_made_again_where_it_is_missing_or_damaged(
    path: str, suffix: str
) -> None:
    disk, truth = broker_disk()
    whole = disk.read_file(path + suffix)
    for data in (None, b"damaged", bytes(48)):
        if data is None:
            disk.unlink(path + suffix)
        else:
            overwrite(disk, path + suffix, data)
            disk.unlink(f"{path}.seal")
        assert imported(disk) == truth
        assert disk.read_file(path + suffix) == whole


def test_of_a_transaction_that_began_below_the_log_the_entry_of_the_broker_stands() -> None:
    disk, truth = broker_disk()
    for suffix in (".log", ".index", ".timeindex", ".txnindex"):
        disk.unlink(FIRST + suffix)
    # The second segment begins behind the last batch of producer 1, which the marker aborts.
    data = disk.read_file(f"{SECOND}.log")
    first_bytes = parse_header(data).size_in_bytes
    overwrite(disk, f"{SECOND}.log", data[first_bytes:])
    for suffix in (".index", ".timeindex"):
        disk.unlink(SECOND + suffix)
    assert imported(disk)[-1] == truth[-1]


def test_behind_a_damaged_header_the_entries_of_the_broker_stand() -> None:
    disk, truth = broker_disk()
    data = bytearray(disk.read_file(f"{FIRST}.log"))
    data[parse_header(data).size_in_bytes + MAGIC_POSITION] ^= 1
    overwrite(disk, f"{FIRST}.log", bytes(data))
    assert imported(disk) == truth


EPOCHS_FILE = f"{PARTITION_DIR}/{LEADER_EPOCH_FILE}"


def disk_with_two_epochs(*, rolls: bool = True) -> tuple[MemoryFileSystem, int]:
    """A first segment with epoch 1 up to offset 3 and epoch 2 behind it, and another one if it `rolls`,
    without seals; the size of each batch."""
    machine = LogMachine(MemoryFileSystem(), DENSE_CONFIG)
    log = machine.start()
    data = encode_batch([Record(0, DEFAULT_NOW_MS, b"k", b"v")])
    for offset in range(7):
        if rolls and offset == 6:
            log.roll()
        log.appender.append_as_leader(data, 1 if offset < 4 else 2)
    machine.stop()
    disk = machine.disk
    assert isinstance(disk, MemoryFileSystem)
    for name in disk.list_directory(PARTITION_DIR):
        if name.endswith(".seal"):
            disk.unlink(f"{PARTITION_DIR}/{name}")
    assert disk.read_file(EPOCHS_FILE) == b"0\n2\n1 0\n2 4\n"
    return disk, len(data)


def unreadable_offsets(disk: MemoryFileSystem, *, written_by_broker: bool) -> list[int]:
    machine = LogMachine(disk, DENSE_CONFIG, written_by_broker=written_by_broker)
    log = machine.start()
    found: list[int] = []
    for offset in range(7):
        try:
            log.reader.read(offset, 1)
        except CorruptRecordError:
            found.append(offset)
    machine.stop()
    return found


@pytest.mark.parametrize("epoch_mask", [0, 1, 255])
def test_a_damaged_batch_leaves_the_epochs_of_the_broker_as_they_are(epoch_mask: int) -> None:
    """The mask 0 stands for a damaged header; otherwise the epoch and the last byte are altered."""
    disk, size = disk_with_two_epochs()
    path, epochs = f"{FIRST}.log", disk.read_file(EPOCHS_FILE)
    whole = disk.read_file(path)
    data = bytearray(whole)
    if epoch_mask:
        data[size + LEADER_EPOCH_POSITION + 3] ^= epoch_mask
        data[2 * size - 1] ^= 1
    else:
        data[size + MAGIC_POSITION] ^= 1
    overwrite(disk, path, bytes(data))
    assert unreadable_offsets(disk, written_by_broker=True) == [1]
    assert unreadable_offsets(disk, written_by_broker=False) == [1]
    assert disk.read_file(EPOCHS_FILE) == epochs
    # The seal does not contradict the segment once that is restored.
    overwrite(disk, path, whole)
    assert unreadable_offsets(disk, written_by_broker=False) == []
    assert disk.read_file(EPOCHS_FILE) == epochs


def test_a_damaged_batch_that_seems_to_reach_into_the_next_segment_does_not_close_the_log() -> None:
    disk, size = disk_with_two_epochs()
    path, epochs = f"{FIRST}.log", disk.read_file(EPOCHS_FILE)
    data = bytearray(disk.read_file(path))
    last_offset_delta = 5 * size + ATTRIBUTES_POSITION + 2
    data[last_offset_delta + 3] ^= 1
    overwrite(disk, path, bytes(data))
    assert unreadable_offsets(disk, written_by_broker=True) == [5]
    assert unreadable_offsets(disk, written_by_broker=False) == [5]
    assert disk.read_file(EPOCHS_FILE) == epochs


@pytest.mark.parametrize("has_other_segment", [True, False])
def test_epochs_that_neither_the_file_nor_a_damaged_segment_has_are_refused(has_other_segment: bool) -> None:
    disk, size = disk_with_two_epochs(rolls=has_other_segment)
    data = bytearray(disk.read_file(f"{FIRST}.log"))
    data[size + MAGIC_POSITION] ^= 1
    overwrite(disk, f"{FIRST}.log", bytes(data))
    disk.unlink(EPOCHS_FILE)
    with pytest.raises(DataDirectoryError):
        LogMachine(disk, DENSE_CONFIG, written_by_broker=True).start()
    assert bytes(data) == disk.read_file(f"{FIRST}.log")


def test_a_seal_without_headers_refuses_no_restored_segment() -> None:
    disk, size = disk_with_two_epochs()
    path = f"{FIRST}.log"
    whole = disk.read_file(path)
    data = bytearray(whole)
    data[size + MAGIC_POSITION] ^= 1
    overwrite(disk, path, bytes(data))
    assert unreadable_offsets(disk, written_by_broker=True) == [1]
    overwrite(disk, path, whole)
    machine = LogMachine(disk, DENSE_CONFIG)
    for segment in machine.start().local_log.segments:
        segment.prove_headers(lambda: None)
    machine.kill()
    disk.unlink(f"{DATA_DIR}/{RECOVERY_POINT_FILE}")
    assert unreadable_offsets(disk, written_by_broker=False) == []


def test_a_seal_without_headers_stays_so_when_its_segment_grows() -> None:
    disk, size = disk_with_two_epochs(rolls=False)
    data = bytearray(disk.read_file(f"{FIRST}.log"))
    data[size + MAGIC_POSITION] ^= 1
    overwrite(disk, f"{FIRST}.log", bytes(data))
    assert unreadable_offsets(disk, written_by_broker=True) == [1]
    machine = LogMachine(disk, DENSE_CONFIG)
    machine.start().appender.append_as_leader(encode_batch([Record(0, DEFAULT_NOW_MS, b"k", b"v")]), 3)
    machine.stop()
    seal = SegmentSeal.read(disk, PARTITION_DIR, 0)
    assert seal is not None
    assert (seal.end_offset, seal.headers) == (8, UNKNOWN_HEADERS)
