"""The guarantees of Kafka's documentation for a compacted log.

The documentation's list ("What guarantees does log compaction provide?") has four points, the first with
three promises and the third with two sides. Each docstring names its point.
Histories are random; what is expected follows from what was published alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from stratalog.log.isolation import Isolation
from stratalog.record.header import TimestampType
from tests.support.cleaner.compacted_log import CONFIG, CompactedLog
from tests.support.logs.log_consumer import Consumer, table_of

SEEDS = st.integers(0, 2**32)
STEPS = st.lists(
    st.sampled_from(
        ["publish"] * 10 + ["end"] * 4 + ["roll"] * 3 + ["clean"] * 4 + ["wait"] * 2 + ["restart", "kill"]
    ),
    min_size=5,
    max_size=100,
)


def play(history: CompactedLog, step: str, during_clean: Callable[[], None] = lambda: None) -> None:
    chance = history.chance
    if step == "publish":
        history.random_batch()
    elif step == "end" and history.open_producers:
        history.end(chance.choice(history.open_producers), committed=chance.random() < 0.6)
    elif step == "roll":
        history.log.roll()
    elif step == "clean":
        history.clean(chance.choice([2, 3, 1000]), during_clean)
    elif step == "wait":
        history.machine.clock.advance(chance.choice([10, 5_000, 60_000]))
    elif step in ("restart", "kill"):
        history.restart(is_clean=step == "restart")


@given(seed=SEEDS, steps=STEPS)
def test_a_consumer_in_the_head_sees_every_message_under_sequential_offsets(
    seed: int, steps: list[str]
) -> None:
    """Guarantee 1, first sentence: a consumer that has read the tail misses nothing, however much of it is
    compacted meanwhile, and finds no holes. A message that is published takes the next offset, as if nothing
    had ever been removed."""
    history = CompactedLog(seed=seed)
    consumer = Consumer(history.log, isolation=Isolation.LOG_END)

    def during_clean() -> None:
        if history.chance.random() < 0.2:
            history.random_batch()
        if history.chance.random() < 0.2:
            consumer.poll()

    for step in steps:
        if step == "clean":
            # The active segment is head in any case: nothing of it is compacted.
            consumer.catch_up(history.log.local_log.segments.active.base_offset)
        play(history, step, during_clean)
        consumer.log = history.log
    consumer.catch_up()
    seen = [one for one in consumer.records if one.offset in history.published]
    assert seen == [written.record for written in history.published.values()]
    assert [one.offset for one in consumer.records] == list(range(history.log.offsets.log_end_offset))
    assert history.log.offsets.log_end_offset == len(history.published) + len(history.outcomes)


@given(
    seed=SEEDS,
    steps=st.lists(st.sampled_from(["put", "put", "put", "roll", "wait", "clean", "clean"]), max_size=80),
    timestamp_type=st.sampled_from(TimestampType),
    lag_ms=st.sampled_from([1, 1000, 10_000]),
)
def test_a_message_stays_in_the_head_for_min_compaction_lag(
    seed: int, steps: list[str], timestamp_type: TimestampType, lag_ms: int
) -> None:
    """Guarantee 1, second and third sentence: `min.compaction.lag.ms` is a lower bound. A message that is
    younger is there, superseded or not; one that is older is not kept for its sake."""
    config = dataclasses.replace(
        CONFIG, min_compaction_lag_ms=lag_ms, message_timestamp_type=timestamp_type, segment_bytes=300
    )
    history = CompactedLog(config, seed=seed)
    chance = history.chance
    for step in steps:
        if step == "put":
            history.put(*(f"k{chance.randrange(2)}={chance.getrandbits(20)}" for _ in range(2)))
        elif step == "wait":
            history.machine.clock.advance(chance.choice([1, lag_ms // 3, lag_ms - 1, lag_ms]))
        else:
            play(history, step)
        young = [one for one in history.committed() if history.now_ms - one.timestamp_ms < lag_ms]
        there = history.read()
        assert [one for one in there if one in young] == young
    history.put("other=1")
    history.log.roll()
    history.machine.clock.advance(lag_ms)
    history.put("young=1")
    history.clean_all()
    old = [one for one in history.read() if one.key != b"young"]
    assert old == history.final_records()[:-1]


@given(seed=SEEDS, lag_ms=st.sampled_from([1000, 60_000, 3_600_000]), batches=st.integers(1, 30))
def test_a_message_is_eligible_when_max_compaction_lag_is_over(seed: int, lag_ms: int, batches: int) -> None:
    """Guarantee 1, last sentence: `max.compaction.lag.ms` bounds the delay from a message's being written to
    its being eligible, though the log is hardly dirty and records come so rarely that no segment would be
    full or old enough by itself."""
    ratio_never_reached = 1.0
    config = dataclasses.replace(
        CONFIG,
        max_compaction_lag_ms=lag_ms,
        min_cleanable_dirty_ratio=ratio_never_reached,
        segment_bytes=1 << 20,
    )
    history = CompactedLog(config, seed=seed)
    chance = history.chance
    written_ms: dict[int, int] = {}
    cleaned_end_offset = 0
    for number in range(batches):
        written_ms[history.log.offsets.log_end_offset] = history.now_ms
        history.put(f"k{chance.randrange(2)}={number}")
        if chance.random() < 0.3:
            history.log.roll()
        history.machine.clock.advance(chance.choice([lag_ms // 10, lag_ms // 2, lag_ms]))
        if chance.random() < 0.2:
            # The next record finds the first one of the active segment too old, so it begins another.
            history.machine.clock.advance(lag_ms + 1)
            written_ms[history.log.offsets.log_end_offset] = history.now_ms
            history.put("k0=last")
            due = [offset for offset, at_ms in written_ms.items() if history.now_ms - at_ms > lag_ms]
            result = history.clean()
            assert result is not None or max(due) < cleaned_end_offset
            cleaned_end_offset = cleaned_end_offset if result is None else result.end_offset
            assert cleaned_end_offset > max(due), "a message stays ineligible"
        else:
            dirty = [at_ms for offset, at_ms in written_ms.items() if offset >= cleaned_end_offset]
            is_due = any(history.now_ms - at_ms > lag_ms for at_ms in dirty)
            result = history.clean()
            assert result is None or is_due, "it is cleaned before that, though there is little to gain"
            cleaned_end_offset = cleaned_end_offset if result is None else result.end_offset


@given(seed=SEEDS, steps=STEPS, begins=st.integers(0, 60), max_bytes=st.sampled_from([1, 400]))
def test_a_reader_from_the_start_sees_the_final_state_and_all_delete_markers(
    seed: int, steps: list[str], begins: int, max_bytes: int
) -> None:
    """Guarantee 4: who reads from the start on sees the last message of every key, in the order in which they
    were written; and, reaching the head within `delete.retention.ms`, every delete marker, so that nothing is
    left in its table that was deleted. It reads while cleans run; these take no time here, because a marker's
    time counts from when its segment is copied, a little before readers get the copy."""
    history = CompactedLog(seed=seed)
    for step in steps[:begins]:
        play(history, step)
    reader, uncleaned_offset = Consumer(history.log), history.log.local_log.segments.active.base_offset
    begun_ms = history.now_ms

    def read_on() -> None:
        if history.chance.random() < 0.15:
            reader.poll(max_bytes)

    for step in steps[begins:]:
        if step != "wait" or history.now_ms + 60_000 - begun_ms < CONFIG.delete_retention_ms:
            play(history, step, read_on)
        elif history.now_ms + 1000 - begun_ms < CONFIG.delete_retention_ms:
            history.machine.clock.advance(1000)
        reader.log = history.log
        read_on()
    reader.catch_up()
    end_offset = history.log.offsets.last_stable_offset
    final = history.final_records(end_offset)
    seen = set(reader.records)
    assert [one for one in final if one.value is not None and one not in seen] == []
    for one in final:
        # A marker that was cleaned before it began may have come to its end; a table never shows that.
        assert one.value is not None or one.offset < uncleaned_offset or one in seen
    assert reader.table == history.table(end_offset)
    in_order = [one for one in reader.records if one in set(final)]
    assert table_of(in_order) == reader.table
    assert in_order == [one for one in final if one in seen]
