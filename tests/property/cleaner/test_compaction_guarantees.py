"""The guarantees of Kafka's documentation for a compacted log that readers see.

The documentation's list ("What guarantees does log compaction provide?") has four points. Each docstring
names its point. Order and offsets are in `test_cleaner_oracle`, the two lags in `test_cleaner_selection` and
in scenarios. Histories are random; what is expected follows from what was published alone.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from stratalog.log.isolation import Isolation
from tests.support.cleaner.compacted_log import CONFIG, CompactedLog
from tests.support.logs.log_consumer import Consumer, table_of
from tests.support.logs.log_ledger import read_local

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


@given(seed=SEEDS, steps=STEPS)
def test_an_offset_is_for_ever_and_always_a_valid_position(seed: int, steps: list[str]) -> None:
    """Guarantee 3, and the note on removed offsets in the basics: a message is found under the offset that it
    was given; a read that begins where one was removed begins with the next one that there is."""
    history = CompactedLog(seed=seed)

    def require_positions(offsets: list[int]) -> None:
        there = read_local(history.log)
        for one in there:
            written = history.published.get(one.offset)
            assert written is None or one == written.record
        for offset in offsets:
            consumer = Consumer(history.log, offset, Isolation.LOG_END)
            while not consumer.records and consumer.poll():
                pass
            expected = next((one for one in there if one.offset >= offset), None)
            assert (consumer.records[0] if consumer.records else None) == expected

    def any_offset() -> int:
        return history.chance.randrange(history.log.offsets.log_end_offset + 1)

    def sometimes() -> None:
        if history.chance.random() < 0.1:
            require_positions([any_offset()])

    for step in steps:
        play(history, step, sometimes)
        require_positions([any_offset(), any_offset()])
    require_positions(list(range(history.log.offsets.log_end_offset + 1)))
