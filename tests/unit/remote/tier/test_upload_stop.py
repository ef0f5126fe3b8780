"""An upload that is stopped, at each place where it looks: objects that were committed stay, the next pass
brings the rest.
"""

from __future__ import annotations

import pytest

from stratalog.base.errors import StoppingError
from stratalog.base.stop_signal import StopSignal
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.stop_at_look import StopAtLook
from tests.support.tiered.tiered_logs import TieredLogs

PARTITION_COUNT = 3
BATCH_COUNT = 6


EXPECTED = [[b"%d" % number * 20 for number in range(BATCH_COUNT)]] * PARTITION_COUNT


class Machine:
    """A disk with rolled segments, whose upload takes several objects and several reads for each."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.filesystem = MemoryFileSystem()
        self.store = MemoryObjectStore(self.clock)
        self.ids = SequentialIds(1)
        logs = self.start(StopSignal())
        self.topic = logs.create_topic("t", PARTITION_COUNT)
        for log in logs.logs.values():
            for number in range(BATCH_COUNT):
                logs.append(log, [Record(0, 1000, b"key", b"%d" % number * 20)])
        logs.seal()
        logs.manager.close()

    def start(self, stop: StopSignal) -> TieredLogs:
        return TieredLogs(
            self.filesystem,
            self.store,
            self.clock,
            self.ids,
            max_object_bytes=500,
            read_bytes=150,
            stop=stop,
        )

    def opened(self, stop: StopSignal) -> TieredLogs:
        logs = self.start(stop)
        logs.open_topic(self.topic)
        return logs


def values(logs: TieredLogs) -> list[list[bytes | None]]:
    return [[record.value for record in logs.tiered_records(log)] for log in logs.logs.values()]


def test_an_upload_ends_where_it_looks_and_the_next_one_goes_on() -> None:
    watched = StopAtLook(0)
    logs = Machine().opened(watched)
    assert logs.upload().object_count > 3
    assert values(logs) == EXPECTED
    committed_counts: set[int] = set()
    for at in range(1, watched.look_count + 1):
        machine, stop = Machine(), StopAtLook(at)
        logs = machine.opened(stop)
        with pytest.raises(StoppingError):
            logs.upload()
        assert stop.look_count == at, "and asks for nothing any more"
        assert machine.filesystem.list_directory("/spool") == []
        live = logs.metadata.refresh().objects
        committed_counts.add(len(live))
        found = values(logs)
        assert all(part == whole[: len(part)] for part, whole in zip(found, EXPECTED, strict=True))
        logs.manager.close()
        logs = machine.opened(StopSignal())
        logs.upload()
        assert values(logs) == EXPECTED
        assert set(live) <= set(logs.metadata.state().objects), "what was committed by then stays"
    assert len(committed_counts) > 3
