"""A world in which imports happen: a broker's log directory `/kafka`, and `/data`, which becomes a server's.

The broker has `orders`, of two partitions, and `payments`, of one; each has thirty batches of one record, in
segments of five.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest

from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import format_checkpoint
from stratalog.log.log_config import LogConfig
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.migration.import_plan import ImportPlan
from stratalog.migration.topic_importer import ImportReport, ImportSettings, TopicImporter
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.overwriting import overwrite
from tests.support.tiered.tiered_logs import TieredLogs

ORDERS = UUID(int=11)
PAYMENTS = UUID(int=12)
SMALL_SEGMENTS = LogConfig(segment_bytes=1024)
NO_FIELDS: Mapping[str, object] = MappingProxyType({})


class ImportWorld:
    """A broker's directory with two topics, a machine's disk, and a store. Belongs to one thread."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = ManualScheduler(self.clock)
        self.ids = SequentialIds(3)
        self.disk = MemoryFileSystem()
        self.store = MemoryObjectStore(self.clock)
        broker = self.broker()
        for name, topic_id, count in (("orders", ORDERS, 2), ("payments", PAYMENTS, 1)):
            for number in range(count):
                log = broker.open_log(TopicPartition(name, number), topic_id, SMALL_SEGMENTS)
                for _ in range(30):
                    log.appender.append_as_leader(encode_batch([Record(0, 5, b"k", b"v" * 100)]), 7)
        broker.close()

    def broker(self) -> LogManager:
        """Our own engine: it writes what a broker writes."""
        settings = LogManagerSettings(data_dirs=("/kafka",))
        return LogManager.open(self.disk, self.clock, self.scheduler, self.ids, settings)

    def importer(self, **settings: Any) -> TopicImporter:
        values: dict[str, Any] = {
            "log_dirs": ("/kafka",),
            "data_dir": "/data",
            "config": {},
            "owner": "owner",
            **settings,
        }
        return TopicImporter(
            self.disk,
            self.store,
            self.clock,
            self.scheduler,
            self.ids,
            random.Random(0),
            ImportSettings(**values),
        )

    def plan(self, *topics: str, **settings: Any) -> ImportPlan:
        return self.importer(topics=topics, **settings).plan()

    def run(self, *topics: str, **settings: Any) -> ImportReport:
        return self.importer(topics=topics, **settings).run()

    def server(self, disk: MemoryFileSystem | None = None) -> TieredLogs:
        return TieredLogs(disk or self.disk, self.store, self.clock, self.ids)

    def write(self, path: str, data: bytes) -> None:
        overwrite(self.disk, path, data)

    def write_offsets(self, name: str, offsets: Mapping[str, int], log_dir: str = "/kafka") -> None:
        """Write the checkpoint `NAME-offset-checkpoint`; `offsets` by directory name, such as `orders-0`."""
        entries = {partition_of(directory): offset for directory, offset in offsets.items()}
        self.write(f"{log_dir}/{name}-offset-checkpoint", format_checkpoint(entries).encode())

    def last_log(self, directory: str) -> str:
        """The path of the newest segment in `directory`."""
        names = self.disk.list_directory(directory)
        return f"{directory}/{max(name for name in names if name.endswith('.log'))}"

    def refuse(
        self,
        error: type[LogStoreError],
        *topics: str,
        fields: Mapping[str, object] = NO_FIELDS,
        **settings: Any,
    ) -> None:
        """Both the plan and the import fail, with these fields, and change nothing but the file of a lock."""
        before, store = self._contents(), list(self.store.list(""))
        for attempt in (self.plan, self.run):
            with pytest.raises(error) as refusal:
                attempt(*topics, **settings)
            assert fields.items() <= refusal.value.fields.items()
            assert (self._contents(), list(self.store.list(""))) == (before, store)

    def _contents(self) -> dict[str, bytes | None]:
        return {path: data for path, data in self.disk.contents().items() if path != "/data/.lock"}


def partition_of(directory: str) -> TopicPartition:
    topic, _, number = directory.rpartition("-")
    return TopicPartition(topic, int(number))
