"""The plan of commits: when a turn begins, what it takes, and how appends leave that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from stratalog.base.errors import (
    DataDirectoryError,
    LogStoreError,
    NotOwnerError,
    StoppingError,
    StoreUnavailableError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import Durability, TopicIdPartition, TopicPartition
from stratalog.log.append_info import AppendInfo
from stratalog.remote.metadata.shard.shard_judge import NOT_AT_TIERED_END, TOPIC_DELETED
from stratalog.remote.tier.upload_report import RefusedUpload, UploadReport
from stratalog.server.append.commit_waiters import CommitWaiters
from stratalog.server.append.pending_append import AppendSession, PendingAppend
from stratalog.server.background import tail_commits
from stratalog.server.background.pass_registry import PassRegistry
from stratalog.server.background.tail_commits import FLUSH_WAIT_MS, CommitThreads, TailCommits
from stratalog.server.background.waiting_tails import CommitSettings
from stratalog.server.request_memory import RequestMemory
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.service.held_writer import SOME_LOG

SETTINGS = CommitSettings(interval_ms=250, buffer_bytes=1000, max_slices_per_s=100, timeout_ms=30_000)
TOPIC_ID = SequentialIds(1).uuid()


class FakePartition:
    """A partition whose log ends where the appends end. It is its own parts."""

    def __init__(self, bench: Bench, number: int) -> None:
        self.topic_partition = TopicPartition("t", number)
        self.topic_id_partition = TopicIdPartition(TOPIC_ID, number)
        self.log = self.local_log = self.flusher = self.writer = self
        self.log_dir = f"/disk{number}"
        self.commit_waiters = CommitWaiters(bench.clock, bench.loop)
        self.log_end_offset = self.tiered_end_offset = 0
        self.flush_count = 0
        self.defect: Exception | None = None
        self.is_offline = False
        self.has_waiting_tail = False

    def ensure_served(self) -> None:
        """It is."""

    def flush(self) -> None:
        self.flush_count += 1
        if self.defect is not None:
            raise self.defect

    def offline(self) -> object:
        return self if self.is_offline else None

    def ask_for_commit(self) -> None:
        """No consumer waits."""

    def note_commit(self) -> None:
        self.commit_waiters.acknowledge(self.tiered_end_offset)


def as_candidate(_: object, partition: FakePartition, *, is_tail: bool) -> FakePartition:
    assert is_tail
    return partition


class Bench:
    """Commits over a store that does as the test says. Belongs to the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = ManualClock()
        self.scheduler = ManualScheduler(self.clock)
        self.memory = RequestMemory(1 << 20)
        self.passes = PassRegistry(self.clock)
        self.begins_ms: list[int] = []
        self.counts: list[int] = []
        self.joined_counts: list[int] = []
        self.more_count = 0
        """Calls of `note_more`."""
        self.failure: Exception | None = None
        self.left_out: set[TopicPartition] = set()
        self.refusal = ""
        self.during: Callable[[], object] = lambda: None
        self.near_end: Callable[[], object] = lambda: None
        """Called once an upload takes no more logs."""
        self.is_owner = True
        self.slow: set[int] = set()
        """The partitions whose disks are slow."""
        self.fsyncs: list[Callable[[], None]] = []
        """Those of slow disks."""
        monkeypatch.setattr(tail_commits, "candidate_of", as_candidate)
        monkeypatch.setattr(tail_commits, "may_upload", bool)
        self.commits = TailCommits(
            self.clock,
            CommitThreads(self.scheduler, cast(Any, self.run_on_disk), StopSignal()),
            cast(Any, self),
            cast(Any, None),
            cast(Any, self),
            self.passes,
            lambda: SETTINGS,
        )
        self.partitions = [FakePartition(self, number) for number in range(60)]
        for partition in self.partitions:
            self.commits.follow(cast(Any, partition))
        self.advance(1_000)

    def run_on_disk(self, partition: FakePartition, task: Callable[[], None]) -> None:
        if partition.topic_partition.partition in self.slow:
            self.fsyncs.append(task)
        else:
            task()

    def leader_epoch(self) -> int:
        if not self.is_owner:
            raise NotOwnerError("another server has taken over")
        return 1

    def refresh(self) -> None:
        """Nothing is new."""

    def upload(
        self,
        candidates: Sequence[FakePartition],
        *,
        more: Callable[[], Sequence[FakePartition]],
        **_: object,
    ) -> UploadReport:
        self.begins_ms.append(self.clock.elapsed_ms)
        self.counts.append(len(candidates))
        ends = [partition.log_end_offset for partition in candidates]
        self.during()
        joined = more()
        self.joined_counts.append(len(joined))
        self.near_end()
        candidates, ends = [*candidates, *joined], [*ends, *(one.log_end_offset for one in joined)]
        if self.failure is not None:
            raise self.failure
        if self.refusal:
            reason, self.refusal = self.refusal, ""
            refused = [RefusedUpload(one.topic_partition, "x", reason) for one in candidates]
            return UploadReport(refused=refused)
        for partition, end_offset in zip(candidates, ends, strict=True):
            if partition.topic_partition not in self.left_out:
                partition.tiered_end_offset = end_offset
        return UploadReport(left_out=self.left_out)

    def note_more(self) -> None:
        self.more_count += 1

    def append(self, number: int = 0, size_bytes: int = 10) -> PendingAppend:
        partition = self.partitions[number]
        partition.log_end_offset += 1
        return self.wait(number, partition.log_end_offset - 1, size_bytes)

    def wait(self, number: int, offset: int, size_bytes: int = 10) -> PendingAppend:
        """An append with that offset begins to wait; maybe a producer sends it once more."""
        partition = self.partitions[number]
        append = PendingAppend(
            batches=b"",
            durability=Durability.OBJECT,
            future=self.loop.create_future(),
            memory=self.memory.lease(size_bytes),
            identity=SOME_LOG,
            session=AppendSession(),
        )
        info = AppendInfo(offset, offset, size_bytes)
        partition.commit_waiters.add([(append, info)], lambda: partition.tiered_end_offset)
        return append

    def advance(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)


async def answered(append: PendingAppend) -> int:
    return (await asyncio.wait_for(append.future, 10)).base_offset


async def test_an_append_that_comes_alone_does_not_wait_and_the_next_waits_for_the_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    first = bench.append()
    bench.scheduler.run_due()
    assert await answered(first) == 0
    second, third = bench.append(), bench.append(1)
    bench.advance(244)
    assert bench.begins_ms == [1_000]
    bench.advance(1)
    # They fill a fiftieth of the buffer.
    assert (bench.begins_ms, bench.counts) == ([1_000, 1_245], [1, 2])
    assert [await answered(second), await answered(third)] == [1, 0]
    assert bench.partitions[0].flush_count == 2, "the bucket holds nothing that the disk could lose"
    assert bench.commits.stats.append_count == 3
    assert bench.commits.stats.wait_s == pytest.approx(0.49)
    assert bench.memory.held_bytes == 0


async def test_a_full_buffer_begins_a_turn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.append()
    bench.scheduler.run_due()
    bench.advance(20)
    bench.append(size_bytes=600)
    bench.scheduler.run_due()
    assert len(bench.begins_ms) == 1
    bench.append(size_bytes=400)
    bench.scheduler.run_due()
    assert bench.begins_ms == [1_000, 1_020]


async def test_two_buffers_begin_a_turn_while_an_upload_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    flush_counts: list[int] = []

    def append_much() -> None:
        if not flush_counts:
            bench.append(1, size_bytes=1_000)
            for size_bytes in (0, 600, 400):
                bench.append(1, size_bytes=size_bytes)
                bench.advance(10)
                flush_counts.append(bench.partitions[1].flush_count)

    bench.during = append_much
    bench.append()
    bench.scheduler.run_due()
    assert flush_counts == [0, 0, 1]


async def test_what_fills_the_buffer_begins_a_turn_once_the_upload_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    bench.near_end = lambda: bench.append(1, size_bytes=1_000) if len(bench.begins_ms) == 1 else None
    bench.append()
    bench.scheduler.run_due()
    bench.advance(10)
    assert bench.begins_ms == [1_000, 1_010], "as soon as there may be another slice"


async def test_a_part_of_the_buffer_leaves_out_that_part_of_the_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A producer that waits for its answers sends nothing more, however long the turn waits."""
    bench = Bench(monkeypatch)
    bench.append()
    bench.scheduler.run_due()
    bench.append(size_bytes=200)
    bench.append(1, size_bytes=400)
    bench.advance(99)
    assert bench.begins_ms == [1_000]
    bench.advance(1)
    assert (bench.begins_ms, bench.counts) == ([1_000, 1_100], [1, 2])
    bench.append(size_bytes=600)
    bench.advance(50)
    bench.append(size_bytes=200)
    bench.scheduler.run_due()
    assert bench.begins_ms[2:] == [1_150], "what comes later brings the turn forward"


@pytest.mark.parametrize("append_bytes", [10, 90, 400, 999, 3_000])
@pytest.mark.parametrize("gap_ms", [1, 7, 60])
async def test_there_is_at_most_a_turn_for_each_interval_and_one_for_each_full_buffer(
    monkeypatch: pytest.MonkeyPatch, append_bytes: int, gap_ms: int
) -> None:
    bench = Bench(monkeypatch)
    appended_bytes = 0
    for _ in range(300):
        bench.append(size_bytes=append_bytes)
        appended_bytes += append_bytes
        bench.advance(gap_ms)
    spent_ms = bench.clock.elapsed_ms - 1_000
    most = 1 + spent_ms / SETTINGS.interval_ms + appended_bytes / SETTINGS.buffer_bytes
    assert len(bench.begins_ms) <= most


async def test_many_partitions_stretch_the_interval_also_if_much_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    bench.append()
    bench.scheduler.run_due()
    for number in range(60):
        bench.append(number, 100)
    bench.advance(599)
    assert len(bench.begins_ms) == 1
    bench.advance(1)
    assert (bench.begins_ms, bench.counts) == ([1_000, 1_600], [1, 60])


async def test_what_comes_during_a_turn_is_in_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    late: list[PendingAppend] = []
    bench.during = lambda: late.append(bench.append()) if not late else None
    first = bench.append()
    bench.scheduler.run_due()
    assert await answered(first) == 0
    assert not late[0].future.done()
    bench.advance(250)
    assert await answered(late[0]) == 1


async def test_appends_fail_after_their_time_and_a_repetition_waits_for_the_same_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    bench.failure = StoreUnavailableError("no answer")
    append = bench.append()
    bench.advance(29_000)
    assert not append.future.done()
    bench.advance(3_000)
    with pytest.raises(StoreUnavailableError) as failure:
        await answered(append)
    assert "no answer" in str(failure.value.fields["reason"])
    assert append.session is not None
    assert append.session.is_broken
    assert bench.memory.held_bytes == 0
    pauses = [later - earlier for earlier, later in zip(bench.begins_ms, bench.begins_ms[1:], strict=False)]
    assert pauses[:4] == [500, 1000, 2000, 4000]
    assert set(pauses[4:]) == {5000}
    again = bench.wait(0, 0)
    bench.advance(10)
    assert not again.future.done()
    bench.failure = None
    bench.advance(6_000)
    assert await answered(again) == 0
    assert bench.commits.stats.timeout_count == 1
    known = bench.wait(0, 0)
    assert await answered(known) == 0, "without another commit"


async def test_an_append_that_a_deletion_of_records_has_overtaken_is_committed_by_the_next_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    bench.refusal = NOT_AT_TIERED_END
    append = bench.append()
    bench.advance(10)
    assert bench.counts == [1]
    assert not append.future.done()
    bench.advance(250)
    assert await answered(append) == 0
    bench.refusal = TOPIC_DELETED
    append = bench.append()
    bench.advance(500)
    with pytest.raises(UnknownTopicOrPartitionError) as failure:
        await answered(append)
    assert failure.value.fields == bench.partitions[0].topic_partition.error_fields


async def test_turns_go_on_until_they_get_a_partition_that_the_other_uploader_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise no uploader gets it again: it stays reserved for the turn that does not come."""
    bench = Bench(monkeypatch)
    bench.left_out = {bench.partitions[0].topic_partition}
    append = bench.append()
    bench.advance(32_000)
    with pytest.raises(StoreUnavailableError):
        await answered(append)
    count = len(bench.counts)
    bench.advance(1_000)
    assert len(bench.counts) > count, "the append has failed, and the partition is still wanted"
    bench.left_out = set()
    bench.advance(1_000)
    assert bench.partitions[0].tiered_end_offset == 1
    count = len(bench.counts)
    bench.advance(1_000)
    assert len(bench.counts) == count, "nothing is left"


async def test_an_append_behind_an_fsync_that_hangs_names_the_disk_and_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    bench.slow = {7}
    begin_ms = bench.clock.now_ms()
    append = bench.append(7)
    bench.advance(32_000)
    with pytest.raises(StoreUnavailableError) as failure:
        await answered(append)
    assert "fsync" in failure.value.message
    fields = failure.value.fields
    assert (fields["topic"], fields["partition"], fields["path"]) == ("t", 7, "/disk7")
    assert fields["fsync_since_ms"] == pytest.approx(begin_ms, abs=300)
    assert fields["fsync_unanswered_s"] == pytest.approx(30, abs=2)
    [fsync] = bench.fsyncs
    bench.slow = set()
    bench.failure = StoreUnavailableError("no answer")
    fsync()
    later = bench.append(7)
    bench.advance(32_000)
    with pytest.raises(StoreUnavailableError) as failure:
        await answered(later)
    assert "fsync_since_ms" not in failure.value.fields, "its disk has answered"


@pytest.mark.parametrize("is_known", [False, True])
async def test_another_owner_ends_the_waiting(monkeypatch: pytest.MonkeyPatch, *, is_known: bool) -> None:
    bench = Bench(monkeypatch)
    bench.is_owner = not is_known
    bench.failure = NotOwnerError("another server has taken over")
    append = bench.append()
    bench.scheduler.run_due()
    with pytest.raises(NotOwnerError):
        await answered(append)
    assert bench.commits.stats.waiting_count == 0


async def test_the_next_turn_fsyncs_beside_the_upload_which_takes_its_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    late: list[PendingAppend] = []

    def append_much() -> None:
        if not late:
            late.append(bench.append(1, 2_000))
            bench.advance(10)
            assert bench.partitions[1].flush_count == 1

    bench.during = append_much
    first = bench.append()
    bench.scheduler.run_due()
    assert (bench.counts, bench.joined_counts) == ([1], [1])
    assert bench.more_count == 1, "an upload that waits for the store takes the logs at once"
    assert [await answered(first), await answered(late[0])] == [0, 0]


async def test_a_disk_that_hangs_holds_up_its_own_partitions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.slow = {0}
    hanging, other = [bench.append(0), bench.append(0)], bench.append(1)
    bench.advance(FLUSH_WAIT_MS - 1)
    assert not other.future.done(), "the turn is patient"
    bench.advance(1)
    assert await answered(other) == 0
    for offset in range(1, 5):
        hanging.append(bench.append(0))
        other = bench.append(1)
        bench.advance(250)
        assert await answered(other) == offset, "turns do not wait for it again"
    [fsync] = bench.fsyncs
    bench.advance(5_000)
    assert not any(one.future.done() for one in hanging)
    fsync()
    bench.scheduler.run_due()
    assert [await answered(one) for one in hanging] == [*range(6)]
    bench.slow = set()
    later = bench.append(0)
    bench.advance(250)
    assert await answered(later) == 6


async def test_a_late_fsync_joins_the_upload_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.slow = {0}
    appends = [bench.append(0), bench.append(1)]
    bench.during = lambda: [fsync() for fsync in bench.fsyncs]
    bench.advance(FLUSH_WAIT_MS)
    assert (bench.counts, bench.joined_counts) == ([1], [1])
    assert [await answered(one) for one in appends] == [0, 0]


async def test_a_log_that_is_fsynced_near_the_end_of_an_upload_is_in_the_next_one_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    bench.slow = {0}
    appends = [bench.append(0), bench.append(1)]
    bench.near_end = lambda: bench.fsyncs.pop()() if bench.fsyncs else None
    bench.advance(FLUSH_WAIT_MS)
    assert (bench.counts, bench.begins_ms) == ([1, 1], [1_000 + FLUSH_WAIT_MS] * 2)
    assert [await answered(one) for one in appends] == [0, 0]


async def test_a_late_fsync_waits_for_the_others_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.slow = {0, 1}
    first = bench.append(0)
    bench.advance(FLUSH_WAIT_MS)
    second = bench.append(1)
    bench.scheduler.run_due()
    counts = [*bench.counts]
    for fsync in bench.fsyncs:
        assert bench.counts == counts
        fsync()
    bench.scheduler.run_due()
    assert bench.counts == [*counts, 2]
    assert [await answered(first), await answered(second)] == [0, 0]


async def test_a_late_fsync_that_fails_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.slow = {0}
    hanging, broken = bench.append(0), bench.partitions[0]
    bench.advance(5_000)
    broken.defect, broken.is_offline = DataDirectoryError("the disk has failed"), True
    bench.fsyncs.pop()()
    with pytest.raises(DataDirectoryError):
        await answered(hanging)
    other = bench.append(1)
    bench.advance(250)
    assert await answered(other) == 0
    assert bench.passes.status("object-commit").consecutive_failure_count == 0


async def test_a_log_that_is_fsynced_while_the_store_fails_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    bench.slow, bench.failure = {0}, StoreUnavailableError("no answer")
    appends = [bench.append(0), bench.append(1)]
    bench.near_end = lambda: bench.fsyncs.pop()() if bench.fsyncs else None
    bench.advance(FLUSH_WAIT_MS)
    assert bench.begins_ms == [1_000 + FLUSH_WAIT_MS]
    bench.slow = set()
    bench.failure = None
    bench.advance(1_000)
    assert bench.counts[-1] == 2
    assert [await answered(one) for one in appends] == [0, 0]


async def test_without_a_thread_an_append_fails_and_the_next_turn_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(bench, "slow", None)
        append = bench.append()
        bench.scheduler.run_due()
        with pytest.raises(LogStoreError):
            await answered(append)
    append = bench.append()
    bench.advance(250)
    assert await answered(append) == 1


async def test_a_partition_that_fails_fails_alone_and_is_tried_again_with_growing_pauses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(monkeypatch)
    broken = bench.partitions[0]
    broken.defect, broken.has_waiting_tail = ZeroDivisionError(), True
    failing, other = bench.append(0), bench.append(1)
    bench.advance(10)
    assert await answered(other) == 0
    with pytest.raises(LogStoreError) as failure:
        await answered(failing)
    assert failure.value.fields == {**broken.topic_partition.error_fields, "reason": "ZeroDivisionError()"}
    assert "Traceback" in caplog.text
    assert bench.passes.status("object-commit").consecutive_failure_count == 1
    assert broken.flush_count == 1
    bench.advance(1_000)
    assert broken.flush_count == 2
    bench.advance(1_980)
    assert broken.flush_count == 2
    bench.advance(20)
    assert broken.flush_count == 3
    broken.defect = None
    bench.advance(4_300)
    assert broken.tiered_end_offset == 1, "consumers see it without another append"
    assert bench.passes.status("object-commit").consecutive_failure_count == 0


async def test_a_partition_on_a_failed_disk_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    broken = bench.partitions[0]
    broken.defect, broken.is_offline = DataDirectoryError("the disk has failed"), True
    failing = bench.append(0)
    bench.advance(120_000)
    with pytest.raises(DataDirectoryError):
        await answered(failing)
    assert broken.flush_count == 1


async def test_a_server_that_stops_waits_for_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.append()
    bench.scheduler.run_due()
    waiting = bench.append()
    bench.commits.hurry()
    bench.scheduler.run_due()
    assert await answered(waiting) == 1
    late = bench.append()
    bench.scheduler.run_due()
    assert await answered(late) == 2
    assert bench.begins_ms == [1_000, 1_000, 1_000]


async def test_a_stop_fails_what_waits_and_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.append()
    bench.scheduler.run_due()
    waiting = bench.append()
    bench.commits.stop()
    later = bench.append()
    for append in (waiting, later):
        with pytest.raises(StoppingError):
            await answered(append)
    bench.advance(1_000)
    assert len(bench.begins_ms) == 1
    assert issubclass(StoppingError, LogStoreError)
