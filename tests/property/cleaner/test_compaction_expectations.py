"""Users of a compacted log expect more than the published guarantees, over random histories: transactions,
idempotence, look-ups by time and by leader epoch, deletion and retention go on as if nothing were compacted,
through restarts, kills in the middle of a clean, and clocks that jump."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.log.isolation import Isolation
from stratalog.log.log_config import UNLIMITED
from stratalog.record.header import TimestampType
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.cleaner.compacted_log import CompactedLog
from tests.support.logs.log_ledger import read_local
from tests.support.logs.sampling import examples_of

STEPS = (
    ["publish"] * 12
    + ["end"] * 6
    + ["roll"] * 4
    + ["clean"] * 5
    + ["wait", "wait", "jump", "epoch", "resend", "resend", "time type", "sizes", "sizes"]
    + ["restart", "kill", "kill in a clean", "kill in a clean"]
)


class Expectations:
    """A history that is looked at from all sides after each step. Used by one thread."""

    def __init__(self, seed: int) -> None:
        self.history = CompactedLog(seed=seed)
        self._epoch_ends: dict[int, int] = {}

    def play(self, step: str) -> None:
        getattr(self, "_" + step.replace(" ", "_"))()

    def _publish(self) -> None:
        self.history.random_batch()

    def _end(self) -> None:
        history, chance = self.history, self.history.chance
        if history.open_producers:
            history.end(chance.choice(history.open_producers), committed=chance.random() < 0.5)

    def _roll(self) -> None:
        self.history.log.roll()

    def _wait(self) -> None:
        self.history.machine.clock.advance(self.history.chance.choice([10, 20_000, 60_000]))

    def _jump(self) -> None:
        jump_ms = self.history.chance.choice([-100_000, -20_000, 30_000, 100_000])
        self.history.machine.clock.set_wall_ms(self.history.now_ms + jump_ms)

    def _epoch(self) -> None:
        self._epoch_ends[self.history.leader_epoch] = self.history.log.offsets.log_end_offset
        self.history.leader_epoch += self.history.chance.randrange(1, 4)

    def _time_type(self) -> None:
        self._reconfigure(message_timestamp_type=self.history.chance.choice(list(TimestampType)))

    def _sizes(self) -> None:
        """Segments that are there already may be larger than new ones get."""
        chance = self.history.chance
        self._reconfigure(
            segment_bytes=chance.choice([300, 700, 5000]),
            segment_index_bytes=chance.choice([24, 48, 1 << 20]),
        )

    def _restart(self) -> None:
        self.history.restart(is_clean=True)

    def _kill(self) -> None:
        self.history.restart(is_clean=False)

    def _clean(self) -> None:
        history = self.history
        producers, stable_offset = history.log.producers(), history.log.offsets.last_stable_offset
        aborted = self._aborted_ranges()
        history.clean(history.chance.choice([1, 2, 5, 1000]), io_buffer_bytes=history.chance.choice([1, 600]))
        assert history.log.producers() == producers
        assert history.log.offsets.last_stable_offset == stable_offset
        assert self._aborted_ranges() <= aborted

    def _aborted_ranges(self) -> set[tuple[int, int, int]]:
        log = self.history.log
        found = log.reader.aborted_transactions(log.offsets.log_start_offset, log.offsets.log_end_offset)
        return {(one.producer_id, one.first_offset, one.last_offset) for one in found}

    def _kill_in_a_clean(self) -> None:
        history = self.history
        at = history.chance.randrange(60)
        disk = history.disk_now()
        count = 0

        def on_step() -> None:
            nonlocal count, disk
            count += 1
            if count == at:
                disk = history.disk_now()

        history.clean(on_step=on_step)
        history.restart_from(disk if at else history.disk_now())

    def _lose_power(self) -> None:
        """In the middle of a clean, or after it; of what was not synced some is there, or nothing."""
        history, chance = self.history, self.history.chance
        contents = chance.choice([Kept.NONE, Kept.NONE, Kept.HALF, Kept.ALL, Kept.ZEROS, Kept.EACH])
        names = chance.choice([Kept.NONE, Kept.NONE, Kept.HALF, Kept.ALL, Kept.EACH])
        survival = Survival(contents, names, chance.randrange(1000))
        at, count, found = chance.randrange(40), 0, list[MemoryFileSystem]()

        def on_step() -> None:
            nonlocal count
            count += 1
            if count == at:
                found.append(history.disk_now(survival))

        history.clean(on_step=on_step)
        history.lose_power(found[0] if found else history.disk_now(survival))
        self._epoch_ends.clear()

    def _flush(self) -> None:
        self.history.log.flusher.flush()

    def _resend(self) -> None:
        """A producer whose acknowledgement was lost sends its last batch again."""
        history, chance = self.history, self.history.chance
        known = [
            pid
            for pid, (_, offset) in history.last_sent.items()
            if offset >= history.log.offsets.log_start_offset
        ]
        if known:
            data, last_offset = history.last_sent[chance.choice(known)]
            info = history.log.appender.append_as_leader(data, history.leader_epoch)
            assert (info.is_duplicate, info.last_offset) == (True, last_offset)

    def _reconfigure(self, **changes: Any) -> None:
        machine = self.history.machine
        machine.config = dataclasses.replace(machine.config, **changes)
        self.history.log.reconfigure(machine.config)

    def _delete(self) -> None:
        """Into the middle of batches, too."""
        log, chance = self.history.log, self.history.chance
        part = int(chance.random() / 2 * (log.offsets.last_stable_offset - log.offsets.log_start_offset))
        wanted = log.offsets.log_start_offset + part
        log.increment_log_start_offset(wanted)
        assert log.offsets.log_start_offset == wanted

    def _policy(self) -> None:
        chance = self.history.chance
        policies = chance.choice([{"compact"}, {"delete"}, {"compact", "delete"}])
        retention_ms = chance.choice([UNLIMITED, 30_000, 200_000])
        self._reconfigure(cleanup_policy=frozenset(policies), retention_ms=retention_ms)

    def _retain(self) -> None:
        log = self.history.log
        config, start_offset = self.history.machine.config, log.offsets.log_start_offset
        log.retention.delete_old_segments()
        if not config.is_deleted or config.retention_ms == UNLIMITED:
            assert log.offsets.log_start_offset == start_offset, "retention without the policy"
        else:
            now_ms = self.history.now_ms
            gone = [
                w.record
                for o, w in self.history.published.items()
                if start_offset <= o < log.offsets.log_start_offset
            ]
            assert all(now_ms - one.timestamp_ms > config.retention_ms for one in gone)

    def verify(self) -> None:
        history, log = self.history, self.history.log
        log.check()
        committed = {one.offset: one for one in history.committed()}
        for max_bytes in (1, 1 << 20):
            found = history.read(max_bytes=max_bytes)
            assert all(committed.get(one.offset) == one for one in found), (
                "readers get what was not committed"
            )
        end_offset = log.offsets.last_stable_offset
        assert history.read_table() == history.table(end_offset)
        seen = {one.offset for one in history.read()}
        final = history.final_records(end_offset)
        assert all(one.offset in seen for one in final if one.value is not None)
        self._verify_times()
        if log.offsets.log_start_offset == 0:
            for epoch, end in self._epoch_ends.items():
                self._verify_epoch(epoch, end)

    def _verify_epoch(self, epoch: int, end: int) -> None:
        """An epoch without records ends where the one before it ends."""
        found = self.history.log.end_offset_for(epoch)
        if found is not None and found.epoch == epoch:
            assert found.end_offset == end

    def _verify_times(self) -> None:
        log, chance = self.history.log, self.history.chance
        there = [
            one
            for one in read_local(log)
            if log.offsets.log_start_offset <= one.offset < log.offsets.high_watermark
        ]
        if there:
            wanted = chance.choice(there).timestamp_ms + chance.choice([-1, 0, 0, 1])
            expected = next((one for one in there if one.timestamp_ms >= wanted), None)
            answer = log.reader.offset_for_timestamp(wanted)
            assert (answer and tuple(answer)) == (expected and (expected.timestamp_ms, expected.offset))
        newest_ms = max((one.timestamp_ms for one in there), default=None)
        found = log.reader.max_timestamp(Isolation.HIGH_WATERMARK)
        assert (found and found.timestamp_ms) == newest_ms


# A power loss takes the end of the log. If a clean had dropped something for the sake of a record or a marker
# that was not durable yet, it would be missing then.
MIXTURES = {
    "as if nothing were compacted": STEPS,
    "with deletion and retention": [*STEPS, *["delete"] * 2, *["policy"] * 3, *["retain"] * 2],
    "with power losses": [*STEPS, *["lose power"] * 3, "flush"],
}


@pytest.mark.parametrize("mixture", MIXTURES.values(), ids=MIXTURES)
@settings(max_examples=examples_of(2))
@given(seed=st.integers(0, 2**32), data=st.data())
def test_everything_goes_on(mixture: list[str], seed: int, data: st.DataObject) -> None:
    expectations = Expectations(seed)
    for step in data.draw(st.lists(st.sampled_from(mixture), min_size=10, max_size=120)):
        expectations.play(step)
        expectations.verify()
