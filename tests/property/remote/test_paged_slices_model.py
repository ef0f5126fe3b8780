"""A shard whose slices lie in pages agrees with one that has all of them in a list, whatever happens.

The oracle is a list of (object, base, end) for each partition, kept with a few lines of arithmetic. The shard
has pages of three rows and a cache that holds hardly one of them. Two writers, a follower that reads seldom,
and fresh readers must all say the same.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.base.errors import StoreCorruptError, StoreError
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.head.head_log import CommitSettings, StoreActor
from stratalog.remote.metadata.head.page_loader import PageLoader
from stratalog.remote.metadata.shard.live_slice import GapReason
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_judge import LostRange
from stratalog.remote.metadata.shard.slice_briefs import SliceBriefs
from stratalog.remote.metadata.shard.slice_columns import SliceColumns, SliceRanges
from tests.support.logs.sampling import examples_of
from tests.support.simulation.watched_object_store import WatchedObjectStore
from tests.support.tiered.current_keys import waiting_files
from tests.support.tiered.metadata_harness import A0, A1, B0, TOPIC_B, MetadataHarness
from tests.support.tiered.shard_states import require_same_state

PARTITIONS = (A0, A1, B0)
SETTINGS = CommitSettings(fold_by_itself=False, page_rows=3)
CACHE_BYTES = 4_000


class Machine:
    """A shard under random commits, and the oracle. Not thread-safe: one test drives it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.harness = MetadataHarness(seed % 1000)
        self.logs = [self.open(), self.open()]
        self.follower = self.open()
        self.epoch = self.logs[0].claim("owner", self.harness.ids.uuid())
        self.slices: dict[TopicIdPartition, list[tuple[str, int, int]]] = defaultdict(list)
        self.log_starts: dict[TopicIdPartition, int] = defaultdict(int)
        self.is_dropped = False

    def open(self, store: ObjectStore | None = None) -> MetadataLog:
        actor = self.harness.actor("owner", store=store)
        return MetadataLog.open(
            StoreActor(
                store=actor.store,
                clock=actor.clock,
                random_source=actor.random_source,
                ids=actor.ids,
                identity=actor.identity,
                writer=actor.writer,
                loader=PageLoader(CACHE_BYTES),
            ),
            0,
            self.harness.load_directory,
            settings=SETTINGS,
        )

    def step(self) -> None:
        steps = [self.add] * 5 + [self.fold] * 3 + [self.replace] * 3 + [self.advance] * 2
        steps += [self.gap, self.untier, self.follow, self.reopen, self.fold_under_way, self.fold_under_way]
        if not self.is_dropped and self.random.random() < 0.02:
            steps = [self.drop]
        self.random.choice(steps)()

    @property
    def log(self) -> MetadataLog:
        return self.random.choice(self.logs)

    def end(self, tip: TopicIdPartition) -> int:
        return self.slices[tip][-1][2] if self.slices[tip] else self.log_starts[tip]

    def known(self) -> list[TopicIdPartition]:
        return [tip for tip in PARTITIONS if not (self.is_dropped and tip == B0)]

    def add(self) -> None:
        log = self.log
        log.refresh()
        tips = self.random.sample(self.known(), self.random.randrange(1, len(self.known()) + 1))
        ranges = [(tip, self.end(tip), self.end(tip) + self.random.randrange(1, 4)) for tip in tips]
        name = self.harness.added(log, self.epoch, *ranges).ref.name
        for tip, base, end in ranges:
            self.slices[tip].append((name, base, end))

    def gap(self) -> None:
        tip = self.random.choice(self.known())
        base, end = self.end(tip), self.end(tip) + self.random.randrange(1, 3)
        self.log.add_gaps([LostRange(tip, base, end, GapReason.DROPPED_BY_POLICY)], self.epoch)
        self.slices[tip].append(("", base, end))

    def replace(self) -> None:
        log, tip = self.log, self.random.choice(self.known())
        log.refresh()
        mine = self.slices[tip]
        if not mine:
            return
        first = self.random.randrange(len(mine))
        last = min(first + self.random.randrange(1, 6), len(mine))
        if any(name == "" for name, _, _ in mine[first:last]):
            return
        base, end = mine[first][1], mine[last - 1][2]
        made = self.harness.put(log, (tip, base, end))
        planned = log.state().partition(tip).slices[first:last]
        log.replace(
            {tip: SliceRanges.of(planned)},
            sorted({live.object_name for live in planned}),
            [(made.ref, made.entries())],
            covers={tip: False},
            catalog_seq=0,
            drops_records=False,
        )
        mine[first:last] = [(made.ref.name, base, end)]

    def advance(self) -> None:
        tip = self.random.choice(self.known())
        offset = self.random.randrange(self.log_starts[tip], self.end(tip) + 1)
        self.log.advance_log_start({tip: offset}, epoch=None, catalog_seq=None)
        self.log_starts[tip] = max(offset, self.log_starts[tip])
        self.slices[tip] = [one for one in self.slices[tip] if one[2] > offset]

    def untier(self) -> None:
        tip = self.random.choice(self.known())
        start = self.random.randrange(self.log_starts[tip], self.end(tip) + 2)
        self.log.drop_tier({tip: start}, epoch=self.epoch, catalog_seq=0)
        self.log_starts[tip] = start
        self.slices[tip] = []

    def drop(self) -> None:
        self.log.drop_partitions(TOPIC_B, 0)
        self.is_dropped = True
        self.slices.pop(B0, None)
        self.log_starts.pop(B0, None)

    def fold(self) -> None:
        self.log.fold()

    def fold_under_way(self) -> None:
        """Commits of another writer land after the checkpoint is written and before its fold is committed."""
        meanwhile = [
            self.random.choice((self.add, self.replace, self.advance, self.untier)) for _ in range(2)
        ]

        def landed(key: str, _: bytes) -> None:
            if key.startswith(self.harness.layout.checkpoint_key("")):
                while meanwhile:
                    meanwhile.pop()()

        slow = self.open(WatchedObjectStore(self.harness.store, landed, lambda: None))
        self.follower.refresh()
        slow.fold()
        self.logs[0] = slow

    def follow(self) -> None:
        self.follower.refresh()

    def reopen(self) -> None:
        self.logs[self.random.randrange(2)] = self.open()

    def check(self, log: MetadataLog) -> None:
        log.refresh()
        state = log.state()
        log.check()
        for tip in PARTITIONS:
            expected = self.slices[tip]
            partition = state.partition(tip)
            found = [(live.object_name, live.base_offset, live.end_offset) for live in partition.slices]
            assert found == expected
            assert len(partition.slices) == len(expected)
            assert partition.log_start_offset == self.log_starts[tip]
            assert partition.tiered_end_offset == self.end(tip)
            self.check_parts(log, tip)

    def check_parts(self, log: MetadataLog, tip: TopicIdPartition) -> None:
        """Indexing and every way to begin or end inside of the slices agree with the whole list."""
        slices = log.state().partition(tip).slices
        whole = list(slices)
        assert list(reversed(slices)) == whole[::-1]
        for index in range(-len(whole), len(whole)):
            assert slices[index] == whole[index]
        if whole:
            assert comparable(slices.in_brief()) == comparable(SliceBriefs.of(whole))
        start, stop = sorted(self.random.randrange(len(whole) + 1) for _ in range(2))
        assert slices[start:stop] == tuple(whole[start:stop])
        first, last = sorted(self.random.randrange(self.end(tip) + 2) for _ in range(2))
        beginning = [live for live in whole if first <= live.base_offset < last]
        columns = slices.columns_between(first, last)
        assert columns == SliceColumns.of(beginning)
        assert columns.data_bytes == tuple(live.entry.data_bytes for live in beginning)
        assert slices.ranges_between(first, last) == columns.ranges
        is_exact = bool(beginning) and (beginning[0].base_offset, beginning[-1].end_offset) == (first, last)
        assert (slices.split(first, last) is not None) == is_exact
        if start < stop:
            first, last = whole[start].base_offset, whole[stop - 1].end_offset
            before, behind = slices.without(first, last)
            assert slices.split(first, last) == (before, SliceColumns.of(whole[start:stop]), behind)
        for offset in range(self.end(tip) + 2):
            assert list(slices.beginning_at(offset)) == [live for live in whole if live.end_offset > offset]
            below = [live for live in whole if live.base_offset <= offset]
            assert list(slices.ending_at(offset)) == below[::-1]


def comparable(briefs: SliceBriefs) -> list[list[object]]:
    """All of it, whether its columns come from pages or from slices."""
    is_gap = [gap is not None for gap in briefs.gaps]
    return list(map(list, briefs._replace(gaps=is_gap)))


@settings(max_examples=examples_of(5))
@given(st.integers(0, 2**32))
def test_paged_slices_agree_with_a_list(seed: int) -> None:
    machine = Machine(seed)
    for number in range(40):
        machine.step()
        if number % 8 == 0:
            machine.check(machine.log)
    for log in (*machine.logs, machine.follower, machine.open()):
        machine.check(log)
        require_same_state(log.state(), machine.logs[0].state())


def filled() -> Machine:
    machine = Machine(7)
    for _ in range(12):
        machine.add()
    machine.logs[0].fold()
    return machine


def page_keys(machine: Machine) -> list[str]:
    prefix = machine.harness.layout.page_key("")
    return [one.key for one in machine.harness.store.list(prefix)]


def test_a_damaged_page_is_found_when_it_is_read() -> None:
    machine = filled()
    store = machine.harness.store
    for key in page_keys(machine):
        good = store.get(key).data
        store.put(key, good[:-3] + b"7]]")
        with pytest.raises(StoreCorruptError):
            machine.open().check()
        store.put(key, good)
    machine.check(machine.open())


def test_pages_of_a_replaced_checkpoint_are_gone_and_their_reader_goes_on() -> None:
    """A follower that slept through a fold and the deletion of the old pages reads the head again."""
    machine = filled()
    log, sleeper = machine.open(), machine.open()
    machine.advance()
    for _ in range(6):
        machine.add()
    log.fold()
    dropped = [one.key(log.layout) for one in waiting_files(machine.harness.store, log)]
    assert any("/pages/" in key for key in dropped)
    machine.harness.store.delete_many(dropped)
    with pytest.raises(StoreError):
        sleeper.state().check()
    machine.check(sleeper)
    # A writer judges on an old state; the missing page makes it read the head again.
    late = machine.open()
    machine.advance()
    machine.add()
    log.fold()
    dropped = [one.key(log.layout) for one in waiting_files(machine.harness.store, log)]
    machine.harness.store.delete_many(dropped)
    tip = next(tip for tip in PARTITIONS if len(machine.slices[tip]) > 2)
    offset = machine.slices[tip][1][2]
    late.advance_log_start({tip: offset}, epoch=None, catalog_seq=None)
    machine.log_starts[tip] = max(offset, machine.log_starts[tip])
    machine.slices[tip] = [one for one in machine.slices[tip] if one[2] > offset]
    machine.check(late)
