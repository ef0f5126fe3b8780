"""How far the log start moves, against a list of units, and through the whole stack."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import re
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from stratalog.base.errors import (
    CorruptRecordError,
    NotOwnerError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.log.read.segment_info import SegmentInfo
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.header import MAX_TIMESTAMP_POSITION
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.partition_row import PartitionRow, StoredSlices
from stratalog.remote.retention.remote_retention import (
    ExplainedPartition,
    RemoteRetention,
    RetentionReport,
)
from stratalog.remote.retention.retention_units import RetentionUnit, expired_rules, is_worth_a_look
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Fault, Operation
from tests.support.logs.overwriting import flip
from tests.support.tiered.tiered_site import TieredSite

NOW_MS = 10_000
HOUR_MS = 3_600_000


@st.composite
def unit_rows(draw: st.DrawFn) -> list[RetentionUnit]:
    offset = 0
    row: list[RetentionUnit] = []
    for _ in range(draw(st.integers(0, 6))):
        offset += draw(st.integers(1, 5))
        is_empty = draw(st.booleans())
        timestamp = -1 if is_empty else draw(st.integers(-1, NOW_MS))
        row.append(RetentionUnit(offset, draw(st.integers(0, 10)), timestamp, is_empty))
    if draw(st.booleans()):
        row.append(RetentionUnit(offset + 1, draw(st.integers(0, 10)), 0, is_active=True))
    return row


def is_older(row: list[RetentionUnit], retention_ms: int) -> bool:
    """Whether the first of the row is; one without timestamps is as old as the first behind it with one."""
    known = [unit.max_timestamp for unit in row if unit.max_timestamp >= 0]
    return row[0].is_empty or (bool(known) and NOW_MS - known[0] > retention_ms)


def log_start_after(units: list[RetentionUnit], config: LogConfig, now_ms: int | None) -> int | None:
    """The end of the last unit that goes; None if none does."""
    count = len(expired_rules(units, config, now_ms))
    return units[count - 1].end_offset if count else None


@given(unit_rows(), st.integers(-1, 12_000), st.integers(-1, 40), st.booleans())
def test_the_front_goes_while_it_is_old_or_too_much(
    units: list[RetentionUnit], retention_ms: int, retention_bytes: int, is_time_known: bool
) -> None:
    config = LogConfig(retention_ms=retention_ms, retention_bytes=retention_bytes)
    now_ms = NOW_MS if is_time_known else None
    offset = log_start_after(units, config, now_ms)
    gone = [unit for unit in units if offset is not None and unit.end_offset <= offset]
    left = units[len(gone) :]
    assert units[: len(gone)] == gone, "from the front"
    assert not any(unit.is_active for unit in gone)
    # What the limits say, of each unit by itself.
    for number in range(len(gone)):
        behind_bytes = sum(later.size_bytes for later in units[number + 1 :])
        is_too_much = 0 <= retention_bytes <= behind_bytes
        is_old = is_time_known and retention_ms >= 0 and is_older(units[number:], retention_ms)
        assert is_too_much or is_old
    if left and not left[0].is_active:
        behind_bytes = sum(later.size_bytes for later in left[1:])
        assert retention_bytes < 0 or behind_bytes < retention_bytes
        assert not is_time_known or retention_ms < 0 or not is_older(left, retention_ms)


@given(unit_rows(), st.integers(1, 6), st.integers(-1, 12_000), st.integers(-1, 40), st.booleans())
def test_slices_that_are_not_looked_at_would_stay(
    units: list[RetentionUnit], count: int, retention_ms: int, retention_bytes: int, is_time_known: bool
) -> None:
    """The row of a partition tells where no slice can expire."""
    slices, local = units[:count], units[count:]
    if not slices or slices[-1].is_active:
        return
    row = PartitionRow(
        tiered_bytes=sum(unit.size_bytes for unit in slices),
        oldest_newest_ms=slices[0].max_timestamp,
        pieces=(StoredSlices(0, slices[-1].end_offset, len(slices)),),
    )
    config = LogConfig(retention_ms=retention_ms, retention_bytes=retention_bytes)
    now_ms = NOW_MS if is_time_known else None
    expires = log_start_after(units, config, now_ms) is not None
    assert is_worth_a_look(row, local, config, now_ms) or not expires
    event("looked at" if is_worth_a_look(row, local, config, now_ms) else "not looked at")


def test_a_topic_that_is_only_compacted_keeps_everything() -> None:
    units = [RetentionUnit(5, 100, 0)]
    config = LogConfig(cleanup_policy=frozenset({"compact"}), retention_ms=0, retention_bytes=0)
    assert log_start_after(units, config, NOW_MS) is None
    both = dataclasses.replace(config, cleanup_policy=frozenset({"compact", "delete"}))
    assert log_start_after(units, both, NOW_MS) == 5


class World(TieredSite):
    """A shard with one partition, whose bucket may go away after an object."""

    def __init__(self, config: dict[str, str], *, max_object_bytes: int = 1 << 20, skew_ms: int = 0) -> None:
        super().__init__(skew_ms=skew_ms, max_object_bytes=max_object_bytes)
        self.objects_left: int | None = None
        self.store = FaultyObjectStore(self.bucket, random.Random(0), self.fault)
        self.logs = self.start()
        self.topic = self.logs.create_topic("t", 1, config)
        self.log: UnifiedLog = self.logs.logs[TopicPartition("t", 0)]
        self.tip = TopicIdPartition(self.topic.topic_id, 0)

    def append(
        self, *, age_ms: int = 0, timestamp_ms: int | None = None, is_sealed: bool = True, upload: bool = True
    ) -> None:
        """A batch with one record, of now or as told; a segment of its own if it is sealed."""
        timestamp_ms = self.clock.now_ms() - age_ms if timestamp_ms is None else timestamp_ms
        self.logs.append(self.log, [Record(0, timestamp_ms, b"k", b"v" * 100)])
        if is_sealed:
            self.logs.seal()
        if is_sealed and upload:
            self.logs.upload()

    def upload_one_object(self) -> None:
        """Upload one object, as if the bucket went away after it."""
        self.objects_left = 1
        with contextlib.suppress(StoreUnavailableError):
            self.logs.upload()
        self.objects_left = None

    def fault(self, operation: Operation) -> Fault:
        if self.objects_left is None or operation.verb != "PUT" or "/data/" not in operation.key:
            return Fault.NONE
        self.objects_left -= 1
        return Fault.NONE if self.objects_left >= 0 else Fault.FAILS

    def delete_records(self, before_offset: int) -> None:
        """Delete records as the call of that name does: first commit, then alter the log."""
        starts = {self.tip: before_offset}
        self.logs.metadata.advance_log_start(starts, epoch=self.logs.claimed.epoch, catalog_seq=None)
        partition = self.logs.metadata.state().partition(self.tip)
        self.log.update_tiered_end_offset(partition.tiered_end_offset)
        self.log.increment_log_start_offset(partition.log_start_offset)

    def retain(self, catalog_seq: int | None = None) -> RetentionReport:
        retention = RemoteRetention(self.logs.metadata)
        seq = self.logs.catalog.confirm([self.topic]).catalog_seq if catalog_seq is None else catalog_seq
        return retention.run([self.log], epoch=self.logs.claimed.epoch, catalog_seq=seq)

    def check_starts_at(self, offset: int) -> None:
        partition = self.logs.metadata.refresh().partition(self.tip)
        assert (partition.log_start_offset, self.log.offsets.log_start_offset) == (offset, offset)
        self.logs.metadata.check()
        self.log.check()


SCENARIOS = """
slices expire by time | retention.ms=1h
    new seal upload | wait 30m | new seal upload | starts 0 | wait 31m | starts 1
a segment that is tiered in part counts once | retention.bytes=343 retention.ms=-1
    new new new seal one-object | starts 0
a segment that is tiered in part counts its rest | retention.bytes=342 retention.ms=-1
    new new new seal one-object | starts 1
the rest of a segment keeps the segments behind it | retention.ms=1h
    old new seal old seal one-object | starts 1
a log start inside of a segment keeps its rest | retention.ms=1h
    new new seal old seal delete 1 | starts 1 | wait 61m | starts 3
slices without timestamps are as old as their upload | retention.ms=1h
    undated seal upload | wait 30m | undated seal upload new seal upload | wait 31m | starts 1
    wait 30m | starts 3 | undated seal upload | starts 3
segments without timestamps go with the next unit that has one | retention.ms=1h
    undated seal undated seal | wait 600m | starts 0 | new seal | starts 0 | wait 61m | starts 3
size counts all tiers, and segments go that were never uploaded | retention.bytes=400 retention.ms=-1
    new seal upload new seal upload new seal upload new seal new seal new seal | starts 3
    new seal new seal | starts 5 | upload | starts 5
the active segment waits for the upload that rolls it | retention.ms=1h
    new seal upload new | wait 61m | starts 1 | seal upload | starts 2
an active segment goes that no upload will roll | retention.ms=1h remote.log.copy.disable=true
    new seal new | wait 30m | new | wait 31m | starts 1 | wait 30m | starts 3 | new | starts 3
    wait 61m | starts 4
an active segment goes while uploads are paused | retention.ms=1h remote.copy.pause=true
    new | starts 0 | wait 61m | starts 1 | new | starts 1 | wait 61m | starts 2
an active segment goes behind slices | retention.ms=1h remote.copy.pause=true
    new new seal one-object | wait 30m | new | wait 31m | starts 2 | wait 30m | starts 3
an active segment does not go by size alone | retention.bytes=1 retention.ms=-1 remote.copy.pause=true
    new seal new | starts 1 | new | starts 1
without a limit nothing moves | retention.ms=-1
    new seal upload | wait 60000m | starts 0
"""


def scenarios() -> list[tuple[str, str, list[str]]]:
    """Name, configuration and steps of each scenario."""
    blocks = re.findall(r"^(\S.*) \| (.*)\n((?:    .*\n)+)", SCENARIOS, re.MULTILINE)
    return [(name, config, re.split(r"[|\s]+", steps.strip())) for name, config, steps in blocks]


@pytest.mark.parametrize(
    ("config", "steps"), [row[1:] for row in scenarios()], ids=[row[0] for row in scenarios()]
)
def test_scenario(config: str, steps: list[str]) -> None:
    """`starts N` retains and expects the log start N; nothing is committed where it does not move."""
    keys = dict(setting.split("=") for setting in config.split())
    keys["retention.ms"] = keys["retention.ms"].replace("1h", str(HOUR_MS))
    world = World(keys, max_object_bytes=200)
    words = iter(steps)
    log_start_offset = 0
    for word in words:
        match word:
            case "new" | "old" | "undated":
                stamp = {"new": 0, "old": 2 * HOUR_MS}.get(word)
                world.append(age_ms=stamp or 0, timestamp_ms=-1 if stamp is None else None, is_sealed=False)
            case "seal":
                world.logs.seal()
            case "upload":
                world.logs.upload()
            case "one-object":
                world.upload_one_object()
            case "delete":
                log_start_offset = int(next(words))
                world.delete_records(log_start_offset)
            case "wait":
                world.clock.advance(int(next(words).removesuffix("m")) * 60_000)
            case _:
                expected, seq = int(next(words)), world.logs.metadata.refresh().seq
                moved = ((TopicPartition("t", 0), expected),) if expected > log_start_offset else ()
                assert world.retain().advanced == moved
                assert (world.logs.metadata.state().seq > seq) == bool(moved)
                log_start_offset = expected
                world.check_starts_at(expected)


@pytest.mark.parametrize("reason", ["clock", "configuration", "owner"])
def test_nothing_expires_for(reason: str) -> None:
    """A wrong clock, a configuration older than one that was used, a former owner."""
    world = World({"retention.ms": str(HOUR_MS)}, skew_ms=6 * 60_000 if reason == "clock" else 0)
    world.append(age_ms=2 * HOUR_MS)
    if reason == "configuration":
        world.logs.catalog.create("another", 1, {})
        world.retain()
        world.append(age_ms=2 * HOUR_MS)
        with pytest.raises(PreconditionFailedError):
            world.retain(catalog_seq=1)
        world.check_starts_at(1)
    elif reason == "owner":
        world.logs.metadata.claim("another", SequentialIds(9).uuid())
        with pytest.raises(NotOwnerError):
            world.retain()
        assert world.log.offsets.log_start_offset == 0
    else:
        report = world.retain()
        assert (report.advanced, report.clock_skew_ms, report.clock_refused_count) == ((), 6 * 60_000, 1)
        world.check_starts_at(0)


@given(st.data())
def test_no_record_that_is_young_enough_goes_and_in_time_all_do(data: st.DataObject) -> None:
    """However segments and objects are cut: against nothing but the age of each record."""
    world = World({"retention.ms": str(HOUR_MS)}, max_object_bytes=400)
    ages_ms: list[int] = []
    for step in data.draw(st.lists(st.sampled_from("aaasuodlr"), max_size=25)):
        if step == "a":
            ages_ms.append(data.draw(st.sampled_from([0, 2 * HOUR_MS])))
            world.append(age_ms=ages_ms[-1], is_sealed=False)
        elif step == "s":
            world.logs.seal()
        elif step == "u":
            world.logs.upload()
        elif step == "o":
            world.upload_one_object()
        elif step == "d":
            world.delete_records(data.draw(st.integers(world.log.offsets.log_start_offset, len(ages_ms))))
        elif step == "l":
            world.log.retention.delete_local_segments(ignore_retention=True)
        else:
            before = world.log.offsets.log_start_offset
            world.retain()
            after = world.log.offsets.log_start_offset
            assert all(age_ms > HOUR_MS for age_ms in ages_ms[before:after])
    world.logs.seal()
    world.clock.advance(HOUR_MS + 1)
    world.retain()
    world.check_starts_at(len(ages_ms))


@pytest.mark.parametrize("skew_ms", [6 * 60_000, 0])
@pytest.mark.parametrize("config", [{"retention.ms": "-1"}, {"retention.ms": str(HOUR_MS)}])
def test_an_explanation_says_that_a_wrong_clock_stops_retention_by_time(
    config: dict[str, str], skew_ms: int
) -> None:
    world = World(config | {"local.retention.ms": "-2"}, skew_ms=skew_ms)
    world.append()
    [explained] = RemoteRetention(world.logs.metadata).explain([world.log])
    assert isinstance(explained, ExplainedPartition)
    assert explained.tiered.next is not None
    is_timed = config["retention.ms"] != "-1"
    is_refused = is_timed and skew_ms > 0
    assert (explained.is_clock_refused, explained.clock_skew_ms) == (is_refused, skew_ms)
    assert (explained.tiered.next.time_ms >= 0) == (is_timed and not is_refused)
    assert ("the clocks of this server and of the store" in explained.tiered.next.reason) == is_refused
    assert ("have no limit" in explained.tiered.next.reason) == (not is_timed)


@pytest.mark.parametrize("limit_minutes", [30, 90])
def test_slices_without_timestamps_are_at_most_as_old_as_the_newest_commit_while_the_store_is_away(
    limit_minutes: int,
) -> None:
    """A segment behind them that is old enough does not take them, and does not go before them."""
    world = World({"retention.ms": str(limit_minutes * 60_000)})
    world.append(timestamp_ms=-1)
    world.clock.advance(HOUR_MS)
    world.append(age_ms=2 * HOUR_MS, upload=False)
    report = RemoteRetention(world.logs.metadata).run_unreachable([world.log])
    assert [one.log_start_offset for one in report.advanced] == ([2] if limit_minutes == 30 else [])


def test_what_is_uploaded_and_dropped_here_during_a_pass_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World({"retention.ms": str(HOUR_MS)})
    world.append(upload=False)
    world.append(age_ms=2 * HOUR_MS, upload=False)
    segments = world.log.reader.segments

    def segments_after_upload(**options: Any) -> tuple[SegmentInfo, ...]:
        world.logs.upload()
        world.log.retention.delete_local_segments(ignore_retention=True)
        return segments(**options)

    monkeypatch.setattr(world.log.reader, "segments", segments_after_upload)
    assert world.retain().advanced == ()
    world.check_starts_at(0)


def test_the_high_watermark_is_not_passed() -> None:
    world = World({"retention.ms": "0", "min.durability": "disk"})
    world.logs.append(world.log, [Record(0, world.clock.now_ms(), b"k", b"v")])
    world.log.roll()
    world.clock.advance(10)
    assert world.log.offsets.high_watermark == 0
    assert world.retain().advanced == ()


@pytest.mark.parametrize("key", ["remote.log.copy.disable", "remote.copy.pause"])
@pytest.mark.parametrize("is_away", [False, True])
def test_a_quiet_topic_whose_uploads_stand_still_expires_on_the_disk(key: str, is_away: bool) -> None:
    """Its active segment goes from the disk, also while the store does not answer, and appends go on."""
    world = World({"retention.ms": str(HOUR_MS), key: "true"})
    retention = RemoteRetention(world.logs.metadata)
    for _ in range(3):
        world.append(is_sealed=False)
    [explained] = retention.explain([world.log])
    assert isinstance(explained, ExplainedPartition)
    assert explained.local.next is not None
    assert explained.local.next.time_ms == world.clock.now_ms() + HOUR_MS + 1
    world.retain()
    world.clock.advance(HOUR_MS + 1)
    if is_away:
        report = retention.run_unreachable([world.log])
        assert [one.log_start_offset for one in report.advanced] == [3]
    else:
        world.retain()
    assert world.log.offsets.log_start_offset == 3
    assert world.log.retention.delete_local_segments() == 1
    [segment] = world.log.reader.segments()
    assert (segment.base_offset, segment.size_bytes) == (3, 0)
    world.append(is_sealed=False)
    world.retain()
    assert (world.log.offsets.log_start_offset, world.log.offsets.log_end_offset) == (3, 4)
    world.clock.advance(HOUR_MS + 1)
    world.retain()
    world.check_starts_at(4)


def test_a_topic_that_was_cut_before_it_was_tiered_starts_where_it_was_cut() -> None:
    world = World({"retention.ms": "-1"})
    for _ in range(2):
        world.append(upload=False)
    world.log.increment_log_start_offset(1)
    world.log.retention.delete_local_segments()
    assert world.logs.upload().slice_count == 1
    world.check_starts_at(1)
    assert [record.offset for record in world.logs.tiered_records(world.log)] == [1]


def test_a_partition_whose_disk_fails_does_not_hold_up_the_others() -> None:
    world = World({"retention.ms": "0"})
    other = world.logs.create_topic("other", 1, {"retention.ms": "0"})
    world.append()
    broken = world.logs.logs[TopicPartition("other", 0)]
    broken.close()
    world.clock.advance(10)
    seq = world.logs.catalog.confirm([world.topic, other]).catalog_seq
    retention = RemoteRetention(world.logs.metadata)
    report = retention.run([broken, world.log], epoch=world.logs.claimed.epoch, catalog_seq=seq)
    assert [failed.topic_partition for failed in report.failed] == [broken.topic_partition]
    assert [advanced.topic_partition for advanced in report.advanced] == [world.log.topic_partition]
    world.check_starts_at(1)


def test_what_is_on_this_disk_only_does_not_go_by_an_age_that_is_damaged() -> None:
    world = World({"retention.ms": str(HOUR_MS), "retention.bytes": "-1"})
    world.append()
    for _ in range(3):
        world.append(upload=False)
    flip(world.disk, f"{world.log.local_log.directory}/{2:020d}.log", MAX_TIMESTAMP_POSITION + 7)
    world.clock.advance(3 * HOUR_MS)
    for _ in range(2):
        (failed,) = world.retain().failed
        assert isinstance(failed.error, CorruptRecordError)
        partition = world.logs.metadata.refresh().partition(world.tip)
        assert partition.log_start_offset == world.log.offsets.log_start_offset == 2
    # By size it goes as every other: a disk must not grow without end.
    world.log.reconfigure(dataclasses.replace(world.log.local_log.config, retention_bytes=0))
    world.retain()
    assert world.logs.metadata.refresh().partition(world.tip).log_start_offset == 4
