"""The sweep against a model that knows every file: a sweep deletes, young end or all, exactly what the model
says.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.stop_signal import StopSignal
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.store_layout import format_checkpoint_name
from stratalog.remote.tier.orphan_sweep import OrphanSweep, SweepSettings
from tests.support.tiered.metadata_harness import A0, MetadataHarness

DAY_MS = 24 * 3_600_000
STEP_MS = DAY_MS // 4

Step = tuple[str, int]


def steps() -> st.SearchStrategy[list[Step]]:
    """Events, each with a number to choose by."""
    names = st.sampled_from(["commit", "live", "orphan", "page", "wait", "sweep", "whole", "look"])
    return st.lists(st.tuples(names, st.integers(0, 7)), max_size=60)


class Model:
    """The commits, the orphans, and the place of the sweeps. Not thread-safe: one example uses it."""

    def __init__(self, log: MetadataLog, times: list[int]) -> None:
        self._log = log
        self.times = times
        """The time of each commit, in order."""
        self.orphans: dict[str, tuple[int, int]] = {}
        """The birth and the time of the PUT of each, by key."""
        self.swept_seq = 0
        self.whole_ms: int | None = None

    def old_seq(self, now_ms: int) -> int:
        return sum(time_ms <= now_ms - DAY_MS for time_ms in self.times)

    def due(self, now_ms: int, *, is_whole: bool) -> set[str]:
        """The orphans that a sweep deletes now."""
        first = 0 if is_whole else self.swept_seq
        return {key for key, (birth, _) in self.orphans.items() if first <= birth < self.old_seq(now_ms)}

    def is_whole_due(self, now_ms: int) -> bool:
        return self.whole_ms is None or now_ms - self.whole_ms >= DAY_MS

    def swept(self, now_ms: int, *, is_whole: bool) -> None:
        self.swept_seq = max(self.swept_seq, self.old_seq(now_ms))
        self.whole_ms = now_ms if is_whole else self.whole_ms
        head_times = self._log.state().seq - len(self.times)
        self.times += [now_ms] * head_times


@given(steps())
def test_a_sweep_deletes_exactly_the_orphans_of_its_range(happening: list[Step]) -> None:
    harness = MetadataHarness()
    log, epoch = harness.owned()
    model = Model(log, [harness.clock.now_ms()])
    sweep = OrphanSweep(harness.store, log, SweepSettings(grace_ms=DAY_MS))
    live: set[str] = set()
    for name, number in happening:
        now_ms = harness.clock.now_ms()
        birth = max(log.state().seq - number, 0)
        match name:
            case "commit":
                epoch = log.claim("owner", harness.ids.uuid())
                model.times.append(now_ms)
            case "live":
                end = log.state().partition(A0).tiered_end_offset
                made = harness.put_born(max(birth, log.state().orphan_horizon_seq), (A0, end, end + 1))
                assert log.add([(made.ref, made.entries())], epoch).refused == ()
                model.times.append(now_ms)
                live.add(log.layout.data_key(made.ref.name))
            case "orphan":
                key = log.layout.data_key(harness.put_born(birth, (A0, 0, 1)).ref.name)
                model.orphans[key] = (birth, now_ms)
            case "page":
                key = log.layout.page_key(format_checkpoint_name(birth, harness.ids.uuid()))
                harness.store.put(key, b"page")
                model.orphans[key] = (birth, now_ms)
            case "wait":
                harness.clock.advance(STEP_MS * number)
            case "look":
                report = sweep.run(now_ms, StopSignal(), is_dry_run=True)
                assert {one.key for one in report.deleted} == model.due(now_ms, is_whole=True)
            case _:
                is_whole = name == "whole" or model.is_whole_due(now_ms)
                due = model.due(now_ms, is_whole=is_whole)
                report = sweep.run(now_ms, StopSignal(), is_whole=name == "whole")
                assert {one.key for one in report.deleted} == due
                for key in due:
                    del model.orphans[key]
                model.swept(now_ms, is_whole=is_whole)
        there = {info.key for info in harness.store.list("shards/0000/data/")}
        there |= {info.key for info in harness.store.list("shards/0000/pages/")}
        assert there == live | model.orphans.keys()
    for _ in range(3):
        harness.clock.advance(DAY_MS)
        sweep.run(harness.clock.now_ms(), StopSignal())
    assert {info.key for info in harness.store.list("shards/0000/data/")} == live
    assert list(harness.store.list("shards/0000/pages/")) == []
    log.check()
