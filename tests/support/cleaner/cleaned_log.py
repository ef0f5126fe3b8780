"""A log and a cleaner, for tests of one rule each."""

from __future__ import annotations

from collections.abc import Callable

from stratalog.cleaner.clean.clean_result import CleanLimits
from stratalog.cleaner.clean.log_clean import LogClean
from stratalog.cleaner.log_to_clean import LogToClean, NextClean
from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import BatchHeader
from stratalog.record.record import Record
from stratalog.segment.file_names import CLEANED_SUFFIX, SWAP_SUFFIX
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaning_history import limits
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import LogMachine

CONFIG = LogConfig(
    retention_ms=UNLIMITED,
    segment_bytes=4096,
    index_interval_bytes=100,
    remote_storage_enable=False,
    delete_retention_ms=1000,
)


class Cleaned:
    """A log, a cleaner and what is clean so far. Used by one thread."""

    def __init__(self, config: LogConfig = CONFIG) -> None:
        self.machine = LogMachine(MemoryFileSystem(), config)
        self.log: UnifiedLog = self.machine.start()
        self.end_offset = 0

    def put(self, *pairs: tuple[bytes, bytes | None], codec: Codec = Codec.NONE) -> None:
        now_ms = self.machine.clock.now_ms()
        records = [Record(0, now_ms, key, value) for key, value in pairs]
        self.log.appender.append_as_leader(encode_batch(records, codec=codec), 1)

    def put_as(self, producer_id: int, sequence: int, *pairs: tuple[bytes, bytes | None]) -> None:
        records = [Record(0, self.machine.clock.now_ms(), key, value) for key, value in pairs]
        producer = BatchProducer(producer_id, 0, sequence, is_transactional=True)
        self.log.appender.append_as_leader(encode_batch(records, producer=producer), 1)

    def end(self, producer_id: int, *, committed: bool) -> None:
        self.log.appender.append_end_transaction_marker(
            producer_id, 0, 1, committed=committed, leader_epoch=1
        )

    def clean(
        self,
        made: CleanLimits | None = None,
        *,
        all_dirty: bool = False,
        on_chosen: Callable[[], None] = lambda: None,
        is_next_due: bool = False,
    ) -> None:
        """Everything but what is written to. `on_chosen` is called before the clean begins. `is_next_due`:
        horizons of what is clean have passed."""
        log = self.log
        log.roll()
        stop_offset = min(log.local_log.segments.active.base_offset, log.offsets.last_stable_offset)
        first_offset = (
            log.offsets.log_start_offset if all_dirty else max(self.end_offset, log.offsets.log_start_offset)
        )
        to_clean = LogToClean(
            log=log,
            first_dirty_offset=first_offset,
            first_uncleanable_offset=stop_offset,
            clean_bytes=0,
            cleanable_bytes=1,
            compaction_delay_ms=0,
            next_clean=NextClean(self.machine.clock.now_ms(), is_due=is_next_due),
        )
        on_chosen()
        log_clean = LogClean(self.machine.clock, SequentialIds())
        self.result = log_clean.run(to_clean, limits() if made is None else made)
        self.end_offset = self.result.end_offset
        log.check()

    def left(self) -> list[tuple[int, bytes | None, bytes | None]]:
        """The records that are read now, markers included."""
        return [(one.offset, one.key, one.value) for one in read_local(self.log)]

    def headers(self) -> list[BatchHeader]:
        return [located.header for segment in self.log.local_log.segments for located in segment.batches()]

    def unfinished(self) -> list[str]:
        names = self.machine.disk.list_directory(self.log.local_log.directory)
        return [name for name in names if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))]
