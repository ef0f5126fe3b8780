"""The compacted topic of a real broker, which Kafka's cleaner wrote, cleaned again by ours."""

from __future__ import annotations

from uuid import UUID

from stratalog.base.atomic_file import replace_file
from stratalog.base.types import TopicPartition
from stratalog.cleaner.clean.log_clean import LogClean
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.locked_directory import REBUILD
from stratalog.manager.directories.manifest import MANIFEST_FILE
from stratalog.manager.directories.partition_metadata import read_partition_metadata
from stratalog.record.record import Record
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaning_history import limits
from tests.support.logs.golden_records import golden_records
from tests.support.logs.log_consumer import read_as_consumer
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import NEVER_MS, LogMachine
from tests.support.places import GOLDEN

PARTITION = TopicPartition("g1-compacted", 0)
CONFIG = LogConfig(remote_storage_enable=False, retention_ms=UNLIMITED)
ACTIVE_BASE = 6081


class Broker:
    """Our manager over a copy of the broker's directory, at a time before anything has expired."""

    def __init__(self) -> None:
        self.disk = MemoryFileSystem()
        self.disk.make_directories("/data")
        for path in sorted((GOLDEN / "data").rglob("*")):
            target = f"/data/{path.relative_to(GOLDEN / 'data').as_posix()}"
            if path.is_dir():
                self.disk.make_directories(target)
            else:
                file = self.disk.open_append(target)
                file.append([path.read_bytes()])
                file.sync()
        replace_file(self.disk, f"/data/{MANIFEST_FILE}", REBUILD)
        self.machine = LogMachine(self.disk, producer_id_expiration_ms=NEVER_MS)
        self.clock = self.machine.clock

    def open(self) -> UnifiedLog:
        """The log, in another process."""
        self.machine.kill()
        topic_id = read_partition_metadata(self.disk, f"/data/{PARTITION}")
        assert isinstance(topic_id, UUID)
        return self.machine.open().open_log(PARTITION, topic_id, CONFIG)

    def clean(self, log: UnifiedLog) -> LogToClean:
        log.roll()
        to_clean = LogToClean(
            log=log,
            first_dirty_offset=0,
            first_uncleanable_offset=ACTIVE_BASE,
            clean_bytes=0,
            cleanable_bytes=1,
            compaction_delay_ms=0,
        )
        result = LogClean(self.clock, SequentialIds()).run(to_clean, limits(10_000))
        assert result.end_offset == ACTIVE_BASE
        log.check()
        return to_clean


def horizons_ms(log: UnifiedLog) -> list[int]:
    headers = (located.header for segment in log.local_log.segments for located in segment.batches())
    return sorted(h.delete_horizon_ms for h in headers if h.delete_horizon_ms is not None)


def expected(isolation_level: str) -> list[Record]:
    return golden_records(GOLDEN, "compacted", isolation_level)


def test_what_the_brokers_cleaner_left_reads_back_the_same_after_ours() -> None:
    broker = Broker()
    log = broker.open()
    before = read_local(log)
    producers = log.producers()
    broker.clock.set_wall_ms(horizons_ms(log)[0] - 1)
    for _ in range(2):
        broker.clean(log)
        assert read_local(log) == before
        for level, isolation in (
            ("read_committed", Isolation.TXN_COMMITTED),
            ("read_uncommitted", Isolation.HIGH_WATERMARK),
        ):
            assert read_as_consumer(log, isolation, 4096) == expected(level)
    assert log.producers() == producers
    log.flusher.flush()
    assert read_local(broker.open()) == before


def test_behind_their_horizons_the_brokers_tombstones_go_and_nothing_else() -> None:
    broker = Broker()
    log = broker.open()
    broker.clock.set_wall_ms(horizons_ms(log)[-1])
    broker.clean(log)
    kept = [one for one in expected("read_committed") if one.value is not None or one.offset >= ACTIVE_BASE]
    assert read_as_consumer(log, Isolation.TXN_COMMITTED, 4096) == kept
    assert len(kept) < len(expected("read_committed"))
