"""A broker's directory whose file of leader epochs is older than its batches, or gone: the newest epochs are
learnt from these. Contradictions between the two are refused.

Holes that the broker's compaction left at the ends of segments are no loss, whatever the checkpoint says.
"""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import RECOVERY_POINT_FILE, format_checkpoint
from stratalog.log.isolation import Isolation
from stratalog.log.leader_epoch_cache import LEADER_EPOCH_FILE, EpochEntry, format_epochs, parse_epochs
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.migration.topic_importer import ImportSettings, TopicImporter
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.header import LEADER_EPOCH_POSITION
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.decoded_records import decode_all

TOPIC_ID = UUID(int=11)
ORDERS = TopicPartition("orders", 0)
BROKERS, OURS = f"/kafka/{ORDERS}", f"/data/{ORDERS}"
CONFIG = LogConfig(segment_bytes=512, index_interval_bytes=100, retention_ms=-1)
# Of batch after batch, one record each; a segment takes five. The last epoch has a single batch.
EPOCHS = [0] * 4 + [2] * 9 + [3] * 5 + [6] * 4 + [7]
EXPECTED = (
    EpochEntry(0, 0),
    EpochEntry(2, 4),
    EpochEntry(3, 13),
    EpochEntry(6, 18),
    EpochEntry(7, 22),
)


class Broker:
    """The disk of a broker that was killed; our own engine wrote what it would have."""

    def __init__(self, *, recovery_point: int = 0) -> None:
        self.clock = ManualClock()
        self.disk = MemoryFileSystem()
        manager = self.open("/kafka")
        log = manager.open_log(ORDERS, TOPIC_ID, CONFIG)
        for epoch in EPOCHS:
            log.appender.append_as_leader(encode_batch([Record(0, 5, b"k", b"v" * 20)]), epoch)
        manager.close()
        self.disk.unlink("/kafka/.kafka_cleanshutdown")
        self.size = len(self.disk.read_file(self.logs[0])) // 5
        self.write(f"/kafka/{RECOVERY_POINT_FILE}", format_checkpoint({ORDERS: recovery_point}).encode())

    def open(self, data_dir: str) -> LogManager:
        settings = LogManagerSettings(data_dirs=(data_dir,))
        return LogManager.open(self.disk, self.clock, ManualScheduler(self.clock), SequentialIds(3), settings)

    @property
    def logs(self) -> list[str]:
        return [f"{BROKERS}/{name}" for name in self.disk.list_directory(BROKERS) if name.endswith(".log")]

    def write(self, path: str, data: bytes) -> None:
        replace_file(self.disk, path, data)

    def know(self, entries: tuple[EpochEntry, ...]) -> None:
        self.write(f"{BROKERS}/{LEADER_EPOCH_FILE}", format_epochs(entries))

    def set_epoch(self, offset: int, epoch: int) -> None:
        """Change the batch, which its checksum does not show."""
        path = self.logs[offset // 5]
        data = bytearray(self.disk.read_file(path))
        position = offset % 5 * self.size + LEADER_EPOCH_POSITION
        data[position : position + 4] = epoch.to_bytes(4, "big")
        self.write(path, bytes(data))

    def leave_hole(self) -> None:
        """Take the last two batches out of the first segment, as compaction does."""
        path = self.logs[0]
        self.write(path, self.disk.read_file(path)[: 3 * self.size])
        for suffix in (".index", ".timeindex"):
            self.disk.unlink(path.removesuffix(".log") + suffix)

    def run(self) -> UnifiedLog:
        """Import, and open what came of it as a server does: with nothing learnt any more."""
        settings = ImportSettings(log_dirs=("/kafka",), data_dir="/data", config={}, owner="owner")
        store = MemoryObjectStore(self.clock)
        ids = SequentialIds(4)
        scheduler = ManualScheduler(self.clock)
        TopicImporter(self.disk, store, self.clock, scheduler, ids, random.Random(0), settings).run()
        return self.open("/data").open_log(ORDERS, TOPIC_ID, CONFIG)


def require_whole(broker: Broker, log: UnifiedLog) -> None:
    assert parse_epochs(broker.disk.read_file(f"{OURS}/{LEADER_EPOCH_FILE}")) == EXPECTED
    log.check()
    for offset in range(len(EPOCHS)):
        [record, *_] = decode_all(log.reader.read(offset, 1, Isolation.LOG_END).batches)
        assert record.offset == offset
    assert log.offsets.log_end_offset == len(EPOCHS)


@pytest.mark.parametrize("recovery_point", [0, 10, 15, 23])
@pytest.mark.parametrize("known_count", range(len(EXPECTED) + 1))
def test_epochs_that_are_newer_than_their_file_are_learnt(known_count: int, recovery_point: int) -> None:
    broker = Broker(recovery_point=recovery_point)
    broker.know(EXPECTED[:known_count])
    require_whole(broker, broker.run())


def offsets_of(log: UnifiedLog) -> list[int]:
    offsets: list[int] = []
    next_offset = log.offsets.log_start_offset
    while next_offset < log.offsets.log_end_offset:
        data = log.reader.read(next_offset, 1 << 20, Isolation.LOG_END)
        offsets += [record.offset for record in decode_all(data.batches)]
        next_offset = data.next_offset
    return offsets


KEPT_OFFSETS = [offset for offset in range(len(EPOCHS)) if offset not in (3, 4)]


@pytest.mark.parametrize("recovery_point", [0, 4, 10, 23])
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_hole_of_compaction_ends_no_broker_s_log(recovery_point: int, *, is_closed: bool) -> None:
    broker = Broker(recovery_point=recovery_point)
    broker.leave_hole()
    if is_closed and recovery_point in (0, len(EPOCHS)):
        broker.write("/kafka/.kafka_cleanshutdown", b"")
    log = broker.run()
    log.check()
    assert offsets_of(log) == KEPT_OFFSETS


def test_a_hole_ends_no_log_that_was_closed() -> None:
    """Its checkpoint is gone, and its newest segment has to be walked for want of an index."""
    broker = Broker()
    broker.leave_hole()
    broker.disk.unlink(f"{BROKERS}/{20:020d}.index")
    broker.disk.unlink(f"/kafka/{RECOVERY_POINT_FILE}")
    broker.write("/kafka/.kafka_cleanshutdown", b"")
    log = broker.open("/kafka").open_log(ORDERS, TOPIC_ID, CONFIG)
    log.check()
    assert offsets_of(log) == KEPT_OFFSETS


@pytest.mark.parametrize("recovery_point", [0, 10, 23])
def test_all_epochs_are_learnt_where_their_file_is_missing(recovery_point: int) -> None:
    broker = Broker(recovery_point=recovery_point)
    broker.disk.unlink(f"{BROKERS}/{LEADER_EPOCH_FILE}")
    require_whole(broker, broker.run())


def test_an_epoch_that_the_file_has_and_no_batch_is_let_go() -> None:
    broker = Broker()
    broker.know((*EXPECTED, EpochEntry(9, len(EPOCHS) + 5)))
    require_whole(broker, broker.run())


@pytest.mark.parametrize(
    "entries",
    [
        # One in the middle is missing; one has another start, or another number.
        EXPECTED[:2] + EXPECTED[3:],
        (*EXPECTED[:3], EpochEntry(6, 19)),
        (*EXPECTED[:3], EpochEntry(6, 17)),
        (*EXPECTED[:3], EpochEntry(5, 18)),
        (*EXPECTED[:3], EpochEntry(8, 18)),
        (*EXPECTED[:2], EpochEntry(3, 12)),
    ],
    ids=str,
)
def test_what_contradicts_the_file_is_refused(entries: tuple[EpochEntry, ...]) -> None:
    broker = Broker()
    broker.know(entries)
    with pytest.raises(DataDirectoryError):
        broker.run()
    assert not broker.disk.exists(OURS)


@pytest.mark.parametrize("known", [EXPECTED[:count] for count in range(1, 4)], ids=str)
@pytest.mark.parametrize("recovery_point", [0, 19])
@pytest.mark.parametrize("offset", [5, 8, 9, 19])
def test_an_epoch_that_sinks_again_is_not_learnt(
    offset: int, recovery_point: int, known: tuple[EpochEntry, ...]
) -> None:
    """A single batch has a higher epoch than those behind it: nothing is cut there, and nothing believed."""
    broker = Broker(recovery_point=recovery_point)
    broker.set_epoch(offset, 11)
    broker.know(known)
    with pytest.raises(DataDirectoryError):
        broker.run()
    assert not broker.disk.exists(OURS)


@pytest.mark.parametrize("has_file", [True, False])
@pytest.mark.parametrize("recovery_point", [0, 19])
@pytest.mark.parametrize("offset", [5, 8, 9, 19])
def test_where_no_file_has_epochs_those_that_sink_again_are_raised(
    offset: int, recovery_point: int, *, has_file: bool
) -> None:
    broker = Broker(recovery_point=recovery_point)
    broker.set_epoch(offset, 11)
    if has_file:
        broker.know(())
    else:
        broker.disk.unlink(f"{BROKERS}/{LEADER_EPOCH_FILE}")
    log = broker.run()
    log.check()
    assert offsets_of(log) == [*range(len(EPOCHS))]
    entries = parse_epochs(broker.disk.read_file(f"{OURS}/{LEADER_EPOCH_FILE}"))
    below = tuple(entry for entry in EXPECTED if entry.start_offset < offset)
    assert entries == (*below, EpochEntry(11, offset))


def test_a_torn_end_is_cut_behind_an_epoch_that_was_learnt() -> None:
    broker = Broker()
    broker.know(EXPECTED[:3])
    broker.write(broker.logs[-1], broker.disk.read_file(broker.logs[-1])[:-1])
    log = broker.run()
    assert log.offsets.log_end_offset == len(EPOCHS) - 1
    assert parse_epochs(broker.disk.read_file(f"{OURS}/{LEADER_EPOCH_FILE}")) == EXPECTED[:4]
