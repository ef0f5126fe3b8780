"""A log that begins anew at the tiered end, on an empty disk: its producers go on as if nothing were new."""

from __future__ import annotations

import pytest

from stratalog.base.errors import DataDirectoryError, OutOfOrderSequenceError
from stratalog.base.types import TopicPartition
from stratalog.record.batch_producer import BatchProducer
from stratalog.remote.tier import slice_producers
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.logs.plain_batches import batch
from tests.support.tiered.counting_object_store import CountingObjectStore
from tests.support.tiered.tiered_logs import TieredLogs
from tests.support.tiered.tiered_site import TieredSite

T0 = TopicPartition("t", 0)
NOW_MS = ManualClock().now_ms()


class Bucket(TieredSite):
    """The store, which is left when a machine is lost, and the time."""

    def __init__(self) -> None:
        super().__init__()
        self.store = self.counting = CountingObjectStore(self.bucket)

    def server(self, disk: MemoryFileSystem | None = None) -> TieredLogs:
        """Over that disk, an empty one by default."""
        return self.start(disk or MemoryFileSystem())

    def with_records(self, *batches: bytes) -> TieredLogs:
        """A server that has uploaded them, each its own segment."""
        logs = self.server()
        logs.create_topic("t", 1)
        for data in batches:
            logs.logs[T0].appender.append_as_leader(data, logs.claimed.epoch)
            logs.logs[T0].roll()
        logs.seal()
        logs.upload()
        return logs


def sent(sequence: int, count: int = 2, *, producer_id: int = 7, is_transactional: bool = False) -> bytes:
    producer = BatchProducer(producer_id, 0, sequence, is_transactional)
    return batch(count, timestamp_ms=NOW_MS + producer_id, producer=producer)


def append(logs: TieredLogs, data: bytes) -> tuple[int, int]:
    info = logs.logs[T0].appender.append_as_leader(data, logs.claimed.epoch)
    return info.base_offset, info.last_offset


def test_a_batch_that_comes_again_is_answered_as_the_first_time() -> None:
    bucket = Bucket()
    bucket.with_records(sent(0), sent(2), sent(4))
    logs = bucket.server()
    assert logs.logs[T0].offsets.log_end_offset == 6
    assert append(logs, sent(4)) == (4, 5)
    assert logs.logs[T0].offsets.log_end_offset == 6, "it is not stored twice"
    with pytest.raises(OutOfOrderSequenceError):
        append(logs, sent(9))
    assert append(logs, sent(6)) == (6, 7)
    logs.manager.check()


def test_where_a_leader_epoch_began_is_known_on_the_other_machine() -> None:
    bucket = Bucket()
    bucket.with_records(sent(0))
    second = bucket.server()
    append(second, sent(2))
    second.seal()
    second.upload()
    log = bucket.server().logs[T0]
    assert log.end_offset_for(1) == (1, 2)
    assert log.end_offset_for(2) == (2, 4)
    assert log.end_offset_for(9) is None


@pytest.mark.parametrize("names", [Kept.NONE, Kept.HALF, Kept.ALL])
@pytest.mark.parametrize("contents", [Kept.NONE, Kept.ZEROS])
def test_restored_state_survives_a_crash_or_is_restored_again(contents: Kept, names: Kept) -> None:
    bucket = Bucket()
    bucket.with_records(sent(0))
    disk = MemoryFileSystem()
    bucket.server(disk)
    bucket.counting.reset()
    logs = bucket.server(disk.after_crash(Survival(contents, names)))
    assert append(logs, sent(0)) == (0, 1)
    assert append(logs, sent(2)) == (2, 3)
    assert len(logs.logs[T0].state_transfer.leader_epochs(0, 4)) == 2
    logs.manager.check()


def test_a_restart_asks_for_nothing_that_is_known() -> None:
    bucket = Bucket()
    bucket.with_records(sent(0))
    disk = MemoryFileSystem()
    bucket.server(disk).close()
    bucket.counting.reset()
    logs = bucket.server(disk)
    # A restore would read the index. The head needs no directory: each claim is folded at once.
    [name] = logs.metadata.state().objects
    assert bucket.counting.total("GET", logs.metadata.layout.data_key(name)).requests == 0
    assert append(logs, sent(0)) == (0, 1)


def test_a_log_that_knows_itself_is_left_alone() -> None:
    bucket = Bucket()
    logs = bucket.with_records(sent(0))
    logs.logs[T0].retention.delete_local_segments(ignore_retention=True)
    assert not logs.logs[T0].state_transfer.is_restorable
    assert append(logs, sent(0)) == (0, 1)


def test_of_too_many_producers_the_idle_ones_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slice_producers, "MAX_PRODUCER_COUNT", 2)
    bucket = Bucket()
    bucket.with_records(*(sent(number, producer_id=number) for number in range(4)))
    logs = bucket.server()
    assert [entry.producer_id for entry in logs.logs[T0].producers()] == [2, 3]


def test_a_damaged_snapshot_keeps_the_log_from_opening() -> None:
    bucket = Bucket()
    logs = bucket.with_records(sent(0))
    ((name, found),) = logs.metadata.state().objects.items()
    key = logs.metadata.layout.data_key(name)
    data = bytearray(bucket.bucket.get(key).data)
    data[found.ref.key_streams_end + 60] ^= 1
    bucket.bucket.put(key, bytes(data))
    with pytest.raises(DataDirectoryError):
        bucket.server()
