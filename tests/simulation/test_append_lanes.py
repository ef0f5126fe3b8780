"""A producer's lane against a model of the server's session, with requests, answers and failures in every
order: a batch is stored at most once, in order, and its outcome is true.

In the model requests that are in flight behind a failed one are refused, unless they were written before the
failure was known. These are answered for themselves: with the same failure, or with their offsets.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest

from stratalog.base.errors import LogStoreError
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.sending.producer_identities import ProducerIdentity
from stratalog.record.batch import decode
from stratalog.record.header import parse_header
from tests.support.logs.sampling import IS_WHOLE, SEED
from tests.support.service.lane_bench import LaneBench
from tests.support.service.modelled_session import Answer, ModelledSession, SentBatch

RUNS = range(SEED, SEED + (5_000 if IS_WHOLE else 100))
BATCH_COUNT = 25


class _Wire:
    """A lane, a session and what is under way between them. Belongs to the test's loop."""

    def __init__(self, chance: random.Random, *, is_idempotent: bool) -> None:
        self.bench = LaneBench(identity=ProducerIdentity(1, 0) if is_idempotent else None)
        self.session = ModelledSession(chance)
        self._chance = chance
        self._requests: deque[SentBatch] = deque()
        self._answers: deque[Answer] = deque()

    def send(self) -> None:
        """Send a request, if the lane has one; numbers that are of no use any more get a new id first."""
        identity = self.bench.identity
        if self.bench.lane.needs_identity(identity):
            assert identity is not None
            self.bench.identity = ProducerIdentity(identity.producer_id + 1, 0)
        taken = self.bench.take_batch()
        if taken is not None:
            header = parse_header(taken.batch.head)
            numbers = (header.producer_id, header.producer_epoch, header.base_sequence)
            value = decode(b"".join(taken.batch))[0].value or b""
            self._requests.append(SentBatch(self.bench.sequence, value, numbers, taken.resume))

    def arrive(self) -> None:
        """Let the server take a request."""
        if self._requests:
            self.session.take(self._requests.popleft())

    def answer(self) -> None:
        """Let the server answer."""
        self._answers.extend(self.session.answers())

    def hear(self) -> None:
        """Let the lane get an answer."""
        if not self._answers:
            return
        sequence, outcome = self._answers.popleft()
        if isinstance(outcome, LogStoreError):
            self.bench.refuse(sequence, outcome)
        else:
            self.bench.acknowledge(sequence, outcome)

    def break_off(self) -> None:
        """End the connection. The server has taken some of the requests by then."""
        for _ in range(self._chance.randrange(len(self._requests) + 1)):
            self.arrive()
        self._requests.clear()
        self._answers.clear()
        self.session.begin()
        if self.bench.identity is not None:
            self.bench.lane.lose()
        elif self.bench.lane.in_flight_count == 1:
            self.bench.lane.fail_oldest(ServerUnavailableError("away"))
        else:
            self.bench.lane.fail_in_flight(ServerUnavailableError("away"))
        self.bench.lane.check()

    def step(self) -> None:
        """Something happens."""
        steps = (self.send, self.arrive, self.answer, self.hear)
        step = self.break_off if self._chance.random() < 0.02 else self._chance.choice(steps)
        step()


@pytest.mark.parametrize("is_idempotent", [False, True])
async def test_a_batch_is_stored_at_most_once_and_its_outcome_is_true(is_idempotent: bool) -> None:
    for seed in RUNS:
        wire = _Wire(random.Random(seed), is_idempotent=is_idempotent)
        values = [b"%03d" % number for number in range(BATCH_COUNT)]
        for value in values:
            wire.bench.queue(value)
            for _ in range(6):
                wire.step()
                await asyncio.sleep(0)
        await _settle(wire)
        bench, log = wire.bench, wire.session.log
        assert log == sorted(set(log)), f"seed {seed}: a batch is stored at most once, and in order"
        assert sorted(value for value, _ in bench.outcomes) == values, f"seed {seed}: each is settled once"
        acknowledged = {value for value, error in bench.outcomes if error is None}
        assert acknowledged <= set(log), f"seed {seed}"
        failed = [value for value, error in bench.outcomes if error is not None]
        not_stored = {value for value, how in zip(failed, bench.stored, strict=True) if how == "not stored"}
        assert not not_stored & set(log), f"seed {seed}"


async def _settle(wire: _Wire) -> None:
    """Go on without faults until each batch is settled."""
    wire.session.is_faulty = False
    for _ in range(10_000):
        if not wire.bench.lane.is_busy:
            return
        for step in (wire.send, wire.arrive, wire.answer, wire.hear):
            step()
        await asyncio.sleep(0)
    raise AssertionError("batches wait for ever")
