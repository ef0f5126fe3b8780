"""Reads from memory beside reads of files: a log with a tail answers as one without.

Two machines live the same life, and only one has memory for tails. The files of the other are the oracle.
"""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from stratalog.base.types import Durability, TopicPartition
from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch import batches
from stratalog.segment import kept_bytes
from tests.support.logs.log_machine import NEVER_MS, LogMachine
from tests.support.logs.plain_batches import batch
from tests.support.logs.sampling import IS_WHOLE, SEED

TAIL_BYTES = 16_000
STEP_COUNT = 150
SEEDS = range(SEED, SEED + (200 if IS_WHOLE else 6))


class Twins:
    """Two logs on each of two machines; those of the first have tails. Used by one thread."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        config = LogConfig(
            segment_bytes=chance.choice([7_000, 30_000]),
            index_interval_bytes=150,
            min_durability=chance.choice(list(Durability)),
            remote_storage_enable=True,
            retention_ms=-1,
        )
        self.machines = [
            LogMachine(config=config, producer_id_expiration_ms=NEVER_MS, tail_bytes=size)
            for size in (TAIL_BYTES, 0)
        ]
        managers = [machine.open() for machine in self.machines]
        self.pairs = [
            tuple(one.open_log(TopicPartition("t", number), UUID(int=number + 1), config) for one in managers)
            for number in range(2)
        ]
        self.memory_read_count = self.cached_read_count = self.full_read_count = 0

    def step(self) -> None:
        """Change both logs of a pair alike."""
        pair = self.chance.choice(self.pairs)
        steps = [*[self.append] * 8, self.flush, self.commit, self.roll, self.cut, self.delete, self.restart]
        change = self.chance.choice(steps)
        change(pair)
        self.compare(self.chance.choice(self.pairs))

    def append(self, pair: tuple[UnifiedLog, ...]) -> None:
        largest_bytes = self.chance.choice([20, 200, 2_000])
        requests = [
            batch(self.chance.randint(1, 3), value_bytes=self.chance.randint(1, largest_bytes))
            for _ in range(self.chance.randint(1, 4))
        ]
        outcomes = [log.appender.append_group(requests, leader_epoch=1) for log in pair]
        assert outcomes[0] == outcomes[1]

    def flush(self, pair: tuple[UnifiedLog, ...]) -> None:
        for log in pair:
            log.flusher.flush()

    def commit(self, pair: tuple[UnifiedLog, ...]) -> None:
        offsets = pair[0].offsets
        end_offset = self.chance.randint(offsets.tiered_end_offset, offsets.log_end_offset)
        for log in pair:
            log.update_tiered_end_offset(end_offset)

    def roll(self, pair: tuple[UnifiedLog, ...]) -> None:
        for log in pair:
            log.roll()

    def cut(self, pair: tuple[UnifiedLog, ...]) -> None:
        end_offset = pair[0].offsets.log_end_offset
        wanted = max(pair[0].offsets.log_start_offset, end_offset - self.chance.randint(0, 6))
        for log in pair:
            log.truncation.truncate_to(wanted)

    def delete(self, pair: tuple[UnifiedLog, ...]) -> None:
        offsets = pair[0].offsets
        wanted = self.chance.randint(offsets.log_start_offset, offsets.high_watermark)
        for log in pair:
            log.increment_log_start_offset(wanted)
        assert pair[0].local_log.tail.read(wanted - 1, 1, 2**60, min_one=True) is None, "it is dropped, too"

    def restart(self, pair: tuple[UnifiedLog, ...]) -> None:
        wanted = pair[0].offsets.log_end_offset + self.chance.randint(0, 5)
        for log in pair:
            log.truncation.truncate_fully_and_start_at(wanted)

    def compare(self, pair: tuple[UnifiedLog, ...]) -> None:
        """Read both logs from an offset, and the first one from memory alone, too."""
        log, oracle = pair
        start_offset, end_offset = oracle.offsets.local_log_start_offset, oracle.offsets.log_end_offset
        offset = self.chance.randint(max(start_offset, end_offset - 20), end_offset)
        isolation = self.chance.choice(list(Isolation))
        max_bytes = self.chance.choice([0, 1, 100, 1_000, 100_000])
        min_one = self.chance.random() < 0.7
        found = log.reader.read(offset, max_bytes, isolation, min_one_message=min_one)
        wanted = oracle.reader.read(offset, max_bytes, isolation, min_one_message=min_one)
        visible_end = oracle.offsets.end_offset(isolation)
        assert_alike(found, wanted, visible_end)
        recent = log.reader.read_recent(offset, max_bytes, isolation, min_one_message=min_one)
        if recent is not None:
            assert_alike(recent, wanted, visible_end)
            self.memory_read_count += recent.size_bytes > 0
            if recent.lacks_room:
                left_bytes = max(0, max_bytes - recent.size_bytes)
                behind = oracle.reader.read(recent.next_offset, left_bytes, isolation, min_one_message=False)
                assert (behind.size_bytes, behind.next_offset) == (0, recent.next_offset)
                assert recent.next_offset < visible_end
                self.full_read_count += recent.size_bytes > 0
        self.compare_cached(oracle, wanted.next_offset, max_bytes, isolation, min_one)
        below = max(0, start_offset - 1)
        if below < start_offset:
            assert log.reader.read_recent(below, 1_000, isolation, min_one_message=True) is None
        log.local_log.tail.check()
        log.local_log.resources.tails.check()

    def compare_cached(
        self, log: UnifiedLog, offset: int, max_bytes: int, isolation: Isolation, min_one: bool
    ) -> None:
        """Read on where a read of the file has ended, with and without the system's memory."""
        cached = log.reader.read_cached(offset, max_bytes, isolation, min_one_message=min_one)
        if cached is not None:
            read = log.reader.read(offset, max_bytes, isolation, min_one_message=min_one)
            assert (cached.batches, cached.next_offset) == (read.batches, read.next_offset)
            self.cached_read_count += cached.size_bytes > 0


def assert_alike(found: FetchData, wanted: FetchData, end_offset: int) -> None:
    """The reads may end at different batches, because a read of a file ends with its segment."""
    shorter = min(found.size_bytes, wanted.size_bytes)
    assert found.batches[:shorter] == wanted.batches[:shorter]
    assert bool(found.size_bytes) == bool(wanted.size_bytes)
    if found.size_bytes == wanted.size_bytes:
        assert found.next_offset == wanted.next_offset
    last_offsets = [header.last_offset for chunk in found.chunks for _, header in batches(chunk)]
    assert last_offsets == sorted(last_offsets)
    assert all(offset < end_offset for offset in last_offsets)
    if last_offsets:
        assert found.next_offset == last_offsets[-1] + 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tail_changes_no_answer(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        # Most appends stay in their requests until they are read.
        monkeypatch.setattr(kept_bytes, "MIN_PART_BYTES", 50)
    twins = Twins(random.Random(seed))
    for _ in range(STEP_COUNT):
        twins.step()
    assert twins.memory_read_count > 5, "the tails were read"
    assert twins.cached_read_count > 0, "and the files where another read had ended"
    assert twins.full_read_count > 0, "and some reads had no room for the next batch"
    for pair in twins.pairs:
        pair[0].close()
    assert twins.machines[0].manager.tail_bytes == 0
