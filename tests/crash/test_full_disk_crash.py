"""A machine whose disk is full while a topic is deleted, and which dies at every operation.

Records of the topic are deleted, and the topic, on the full disk, which may have no room for new names
either; room is made, and the next topic of the name gets records. Whenever the machine dies, what was deleted
stays deleted, what was acknowledged is there, and nothing that was known of the one topic is believed of the
other.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.logs.log_machine import DATA_DIR, PARTITION, TOPIC_ID, LogMachine

CONFIG = LogConfig(remote_storage_enable=False, retention_ms=-1, segment_bytes=1024)
OTHER = TopicPartition("others", 0)
NEW_ID = UUID(int=8)
OLD, NEW = b"old" * 50, b"new" * 50


class Work:
    """The work, and the part of it that was acknowledged."""

    def __init__(self, *, names_are_full: bool) -> None:
        self.disk = FullFileSystem()
        self._names_are_full = names_are_full
        self.topic_id: UUID | None = TOPIC_ID
        """Of the topic that has the name, as the catalog says; None while it is about to be another one."""
        self.start_offset = 0
        self.wanted_start_offset = 0
        """Where the log starts if what was under way has happened."""
        self.end_offset = 0

    def run(self) -> None:
        manager = LogMachine(self.disk, ids=SequentialIds()).open()
        log = manager.open_log(PARTITION, TOPIC_ID, CONFIG, is_first_opening=True)
        manager.open_log(OTHER, TOPIC_ID, CONFIG, is_first_opening=True)
        manager.tasks.keep_spare_space()
        self._fill(log, OLD, 12)
        self._delete_records(log, 5)
        self.disk.fill(DATA_DIR)
        self.disk.names_are_full = self._names_are_full
        self._delete_records(log, 9)
        # The rest of what was kept aside is another one's by now.
        self.disk.room_bytes = 0
        log.retention.delete_old_segments()
        # The space that was kept aside is in use by now.
        self.disk.room_bytes = 0
        try:
            self._delete_records(log, 11)
        except DataDirectoryError:
            self.wanted_start_offset = self.start_offset
        self.topic_id = None
        self.start_offset = self.wanted_start_offset = self.end_offset = 0
        self.disk.room_bytes = 0
        manager.delete_log(PARTITION)
        self.disk.fill(None)
        self.topic_id = NEW_ID
        self._fill(manager.open_log(PARTITION, NEW_ID, CONFIG, is_first_opening=True), NEW, 14)
        manager.checkpoint()

    def _fill(self, log: UnifiedLog, value: bytes, count: int) -> None:
        for _ in range(count):
            log.appender.append_as_leader(encode_batch([Record(0, 1000, b"key", value)]), 1)
        log.flusher.flush()
        self.end_offset = count

    def _delete_records(self, log: UnifiedLog, offset: int) -> None:
        self.wanted_start_offset = offset
        log.increment_log_start_offset(offset)
        self.start_offset = offset

    def verify(self, disk: FaultyFileSystem) -> None:
        """On the disk that another process finds, with room again."""
        assert isinstance(disk, FullFileSystem)
        disk.fill(None)
        manager = LogMachine(disk, ids=SequentialIds(1000)).open()
        topic_id = self.topic_id or NEW_ID
        log = manager.open_log(PARTITION, topic_id, CONFIG, is_first_opening=True)
        assert self.start_offset <= log.offsets.log_start_offset <= self.wanted_start_offset
        assert log.offsets.log_end_offset >= self.end_offset
        offset = log.offsets.log_start_offset
        while offset < log.offsets.log_end_offset:
            found = log.reader.read(offset, 1)
            assert (OLD if topic_id == TOPIC_ID else NEW) in found.batches
            assert found.next_offset == offset + 1
            offset = found.next_offset
        log.check()


@pytest.mark.parametrize("names_are_full", [False, True])
def test_whenever_the_machine_dies_no_topic_is_taken_for_the_other(names_are_full: bool) -> None:
    sweep = CrashSweep(lambda: Work(names_are_full=names_are_full), Work.run, count=120)
    unlinked = [operation for operation in sweep.trace if operation.startswith("unlink")]
    assert any(operation.endswith(".timeindex") for operation in unlinked) == names_are_full
    # A file of the deleted partition makes room for the manifest.
    assert any(operation.endswith(".log") for operation in unlinked)

    def verify(death: Death[Work]) -> None:
        for disk in death.disks():
            death.subject.verify(disk)

    sweep.at_deaths(verify)
