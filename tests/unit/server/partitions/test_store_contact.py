"""The contact with the store: a silence that is too long and a wrong clock have a line when they begin and a
line when they end.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from random import Random

import pytest

from stratalog.base.errors import StoreAccessDeniedError, StoreCorruptError, StoreError, StoreUnavailableError
from stratalog.remote.metadata.head.committed_log import MAX_CLOCK_SKEW_MS
from stratalog.remote.metadata.ownership.ownership import ClaimedShard
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.server.partitions.hosted_shard import HostedShard
from stratalog.server.partitions.store_contact import COMPARISON_PERIOD_MS, ContactFaults, StoreContact
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.store_faults import Fault
from tests.support.tiered.metadata_harness import MetadataHarness

MAX_SILENCE_MS = 60_000
LOOK_MS = 5_000
ERROR, INFO = logging.ERROR, logging.INFO


class Bench:
    """A shard whose head is looked at every five seconds. Its store has an own clock and can be away."""

    def __init__(self, caplog: pytest.LogCaptureFixture, max_silence_ms: int = MAX_SILENCE_MS) -> None:
        caplog.set_level(logging.DEBUG, "stratalog.server.partitions.store_contact")
        self._caplog = caplog
        harness = MetadataHarness()
        self.store_clock = harness.clock
        self.clock = harness.clock = ManualClock(harness.clock.now_ms())
        self.is_away = False
        self.refusal: StoreError | None = None
        store = FaultyObjectStore(harness.store, Random(1), self._fault)
        metadata = harness.log(store=store)
        epoch = metadata.claim("owner-1", harness.ids.uuid())
        self.shard = HostedShard(self.clock, metadata, ClaimedShard(epoch, 0), lambda: None, max_silence_ms)
        self.contact = self.shard.contact

    def _fault(self, _: object) -> Fault:
        if self.refusal is not None:
            raise self.refusal
        return Fault.FAILS if self.is_away else Fault.NONE

    def look(self, count: int = 1) -> list[int]:
        """Look at the head so often; returns the levels of the lines."""
        self._caplog.clear()
        for _ in range(count):
            for clock in (self.clock, self.store_clock):
                clock.advance(LOOK_MS)
            try:
                self.shard.refresh()
            except StoreError:
                assert self.is_away or self.refusal is not None
        return self.levels

    @property
    def levels(self) -> list[int]:
        assert all(
            isinstance(one.args, tuple) and one.args[0] in (0, "shard 0") for one in self._caplog.records
        )
        return [one.levelno for one in self._caplog.records]


def test_a_silence_that_is_too_long_has_a_line_at_its_begin_and_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(caplog)
    assert bench.look() == []
    answered_ms = bench.clock.now_ms()
    bench.is_away = True
    assert bench.look(MAX_SILENCE_MS // LOOK_MS) == []
    bench.contact.ensure_heard()
    assert bench.look(40) == [ERROR]
    assert bench.contact.is_too_silent
    assert bench.contact.last_answer_ms == answered_ms
    assert bench.contact.silence_ms == bench.clock.now_ms() - answered_ms
    bench.is_away = False
    assert bench.look(3) == [INFO]
    assert bench.contact.silence_ms == 0
    bench.contact.ensure_heard()
    bench.is_away = True
    assert bench.look(40) == [ERROR], "another one"


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (
            StoreAccessDeniedError("the store refuses these credentials; correct them", status=403),
            "the store answers, and has refused this server for",
        ),
        (
            StoreCorruptError("the head is lost; restore it"),
            "the store answers, and its metadata could not be read for",
        ),
    ],
)
def test_a_store_that_answers_is_not_looked_for_in_the_network(
    caplog: pytest.LogCaptureFixture, failure: StoreError, words: str
) -> None:
    bench = Bench(caplog)
    bench.look()
    bench.refusal = failure
    assert bench.look(1 + MAX_SILENCE_MS // LOOK_MS) == [ERROR]
    [line] = caplog.messages
    assert words in line
    assert line.endswith(str(failure))
    with pytest.raises(StoreUnavailableError) as refused:
        bench.contact.ensure_heard()
    assert refused.value.message.startswith(words)
    assert refused.value.message.endswith(str(failure))
    bench.refusal = None
    assert bench.look() == [INFO]
    assert bench.contact.failure is None


def test_a_failure_that_an_answer_has_overtaken_counts_no_more(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog)
    asked_s = bench.clock.monotonic_s()
    bench.look()
    bench.contact.note_failure(asked_s, StoreUnavailableError("an old look"))
    assert bench.contact.failure is None


def test_an_append_that_is_refused_notices_the_silence_before_a_look(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(caplog)
    bench.clock.advance(MAX_SILENCE_MS + 1)
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            bench.contact.ensure_heard()
    assert bench.levels == [ERROR]
    bench.is_away = True
    assert bench.look() == []
    bench.is_away = False
    assert bench.look() == [INFO]


def test_without_a_bound_no_silence_is_too_long(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog, max_silence_ms=0)
    bench.is_away = True
    assert bench.look(100) == []
    bench.contact.ensure_heard()


@pytest.mark.parametrize("sign", [1, -1])
def test_a_wrong_clock_has_a_line_at_its_begin_and_at_its_end(
    caplog: pytest.LogCaptureFixture, sign: int
) -> None:
    bench = Bench(caplog)
    assert bench.look(30) == []
    bench.clock.set_wall_ms(bench.store_clock.now_ms() + sign * (MAX_CLOCK_SKEW_MS + 1))
    assert bench.look() == [ERROR], "a jump is noticed by the next look"
    assert bench.look(100) == []
    assert bench.contact.is_clock_wrong
    bench.clock.set_wall_ms(bench.store_clock.now_ms() + sign * MAX_CLOCK_SKEW_MS)
    assert bench.look(COMPARISON_PERIOD_MS // LOOK_MS) == [INFO]


def test_a_store_whose_clock_goes_wrong_is_noticed_within_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog)
    bench.look()
    bench.store_clock.set_wall_ms(bench.clock.now_ms() + 2 * MAX_CLOCK_SKEW_MS)
    assert bench.look(COMPARISON_PERIOD_MS // LOOK_MS) == [ERROR]


def test_one_line_names_all_shards_that_are_silent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stratalog.server.partitions.store_contact")
    harness, faults = MetadataHarness(), ContactFaults.none()
    actor = harness.actor("owner")
    actor = replace(actor, identity=replace(actor.identity, shard_count=3))
    logs = [MetadataLog.open(actor, number, harness.load_directory) for number in range(3)]
    contacts = [StoreContact(harness.clock, log, MAX_SILENCE_MS, faults) for log in logs]
    harness.clock.advance(MAX_SILENCE_MS + 1)
    contacts[1].note_answer(harness.clock.monotonic_s(), harness.clock.now_ms())
    for contact in reversed(contacts):
        contact.log_changes()
    [line] = caplog.messages
    assert line.startswith("shards 0, 2: ")
