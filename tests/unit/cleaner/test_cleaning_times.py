"""How long a clean keeps what it need not keep for ever, and what it keeps in any case."""

from __future__ import annotations

import dataclasses

import pytest

from stratalog.base.types import Durability
from stratalog.cleaner.clean.log_cleaner import LogCleaner
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.native.cleaned_batches import NO_HORIZON
from stratalog.record.native.offset_map import OffsetMap
from stratalog.record.record import Record
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaned_log import CONFIG, Cleaned
from tests.support.cleaner.cleaning_history import limits


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_tombstone_that_never_goes_stays_under_a_shorter_time_until_it_is_written_again(
    codec: Codec,
) -> None:
    """The horizon that is written into a batch holds, as docs/cleaning.md says."""
    cleaned = Cleaned(dataclasses.replace(CONFIG, delete_retention_ms=2**63 - 1))
    cleaned.put((b"a", b"1"), (b"a", None), codec=codec)
    cleaned.clean()
    cleaned.log.reconfigure(CONFIG)
    for text in (b"1", b"2"):
        cleaned.machine.clock.advance(100_000)
        cleaned.put((b"x", text))
        cleaned.clean(all_dirty=True)
        assert (1, b"a", None) in cleaned.left()
        assert cleaned.result.horizon_ms == NO_HORIZON
    cleaned.put((b"a", None), codec=codec)
    cleaned.clean()
    assert cleaned.left() == [(3, b"x", b"2"), (4, b"a", None)]
    assert cleaned.result.horizon_ms == cleaned.machine.clock.now_ms() + CONFIG.delete_retention_ms
    cleaned.machine.clock.advance(CONFIG.delete_retention_ms)
    cleaned.put((b"x", b"3"))
    cleaned.clean()
    assert cleaned.left() == [(5, b"x", b"3")]


def test_the_batch_before_the_high_watermark_stays() -> None:
    cleaned = Cleaned(dataclasses.replace(CONFIG, min_durability=Durability.DISK))
    cleaned.put((b"a", b"1"))
    now_ms = cleaned.machine.clock.now_ms()
    for _ in range(2):
        cleaned.log.appender.append_as_leader(encode_batch([Record(0, now_ms, None, b"without a key")]), 1)
    cleaned.log.flusher.flush()
    cleaned.put((b"b", b"1"))
    assert cleaned.log.offsets.high_watermark == 3
    cleaned.clean()
    assert cleaned.end_offset == 3
    assert [(header.base_offset, header.records_count) for header in cleaned.headers()] == [
        (0, 1),
        (2, 0),
        (3, 1),
    ]


def test_the_hash_of_each_clean_has_its_own_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    used: list[bytes] = []

    class NotingIds(SequentialIds):
        def secret(self, size_bytes: int) -> bytes:
            asked.append(super().secret(size_bytes))
            return asked[-1]

    def noting_map(secret: bytes, slot_count: int, load_factor: float) -> OffsetMap:
        used.append(secret)
        return OffsetMap(secret, slot_count, load_factor)

    monkeypatch.setattr(noting_map, "slots_for", OffsetMap.slots_for, raising=False)
    monkeypatch.setattr("stratalog.cleaner.clean.log_cleaner.OffsetMap", noting_map)
    cleaned = Cleaned()
    cleaner = LogCleaner(cleaned.machine.clock, NotingIds())
    cleaned.put((b"a", b"1"))
    cleaned.log.roll()
    for _ in range(2):
        cleaner.clean(LogToClean(cleaned.log, 0, 1, 0, 1, 0), limits())
    assert used == asked
    assert len(set(used)) == 2
    assert all(len(secret) == 16 for secret in used)


def test_all_that_is_read_and_written_is_throttled() -> None:
    cleaned = Cleaned()
    for number in range(60):
        cleaned.put((b"k%d" % (number % 40), b"x" * 50))
    throttled = 0

    def throttle(size_bytes: int) -> None:
        nonlocal throttled
        throttled += size_bytes

    cleaned.clean(limits()._replace(throttle=throttle))
    stats = cleaned.result.stats
    # Once for each pass, for what is written, and for what is read back.
    least_bytes = stats.mapped_bytes + stats.cleaned_bytes + 2 * stats.written_bytes
    assert least_bytes <= throttled < least_bytes + 100


def test_a_marker_that_alone_tells_the_epoch_of_its_producer_stays_whole_until_that_is_forgotten() -> None:
    cleaned = Cleaned()
    cleaned.put_as(1, 0, (b"a", b"1"))
    cleaned.log.appender.append_end_transaction_marker(1, 1, 1, committed=True, leader_epoch=1)
    cleaned.put((b"a", b"2"))
    assert [entry.batches for entry in cleaned.log.producers()] == [()]
    for _ in range(4):
        cleaned.clean(all_dirty=True)
        cleaned.machine.clock.advance(2000)
        # It has no time to go, and is waited for by no clean.
        assert cleaned.result.horizon_ms == NO_HORIZON
    found = [
        (header.base_offset, header.records_count, header.delete_horizon_ms) for header in cleaned.headers()
    ]
    assert found == [(1, 1, None), (2, 1, None)]
    cleaned.log.set_producer_id_expiration_ms(1000)
    cleaned.log.remove_expired_producers()
    for _ in range(2):
        cleaned.clean(all_dirty=True)
        cleaned.machine.clock.advance(2000)
    assert [(header.base_offset, header.records_count) for header in cleaned.headers()] == [(2, 1)]


def test_the_time_of_a_tombstone_begins_when_older_segments_without_the_value_are_there() -> None:
    cleaned = Cleaned()
    clock = cleaned.machine.clock
    cleaned.put((b"a", b"1"), (b"x", b"x" * 3000))
    cleaned.log.roll()
    cleaned.put((b"y", b"y" * 3000), (b"a", None))
    last_seen_ms = 0

    def take_time(_: int) -> None:
        nonlocal last_seen_ms
        clock.advance(100)
        if (0, b"a", b"1") in cleaned.left():
            last_seen_ms = clock.now_ms()

    cleaned.clean(limits()._replace(throttle=take_time))
    [horizon_ms] = [header.delete_horizon_ms for header in cleaned.headers() if header.delete_horizon_ms]
    assert horizon_ms >= last_seen_ms + CONFIG.delete_retention_ms
