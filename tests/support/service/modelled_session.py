"""A model of the server's side of a lane: a session that stops at its first failure, a log, and a disk."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import takewhile
from typing import NamedTuple

from stratalog.base.errors import (
    DataDirectoryError,
    InvalidRecordError,
    LogStoreError,
    NotOwnerError,
    OutOfOrderSequenceError,
    OverloadedError,
    PrecedingAppendFailedError,
    RecordsLostError,
    StoreUnavailableError,
)

Numbers = tuple[int, int, int]
"""Producer id, epoch and base sequence of a batch."""
NO_NUMBERS = (-1, -1, -1)


class SentBatch(NamedTuple):
    """A request with one record."""

    sequence: int
    value: bytes
    numbers: Numbers
    resume: bool


class Answer(NamedTuple):
    """The answer to a request: the offset of its record, or the error."""

    sequence: int
    outcome: int | LogStoreError


class ModelledSession:
    """Answers the requests of one partition in order, with faults at random. Not thread-safe."""

    def __init__(self, chance: random.Random) -> None:
        self.log: list[bytes] = []
        """Every record that was ever written."""
        self.is_faulty = True
        self._chance = chance
        self._offsets: dict[Numbers, int] = {}
        self._next: dict[int, int] = {}
        """The next sequence number of each producer id."""
        self._failure: LogStoreError | None = None
        self._pending: list[Answer] = []
        """Not sent yet. Those with offsets are written, and wait for the disk or for a commit."""

    def begin(self) -> None:
        """A new connection: the answers of the former one are lost."""
        self._pending, self._failure = [], None

    def take(self, batch: SentBatch) -> None:
        """Write a request, or refuse it."""
        if batch.resume:
            self._failure = None
        error = self._refusal(batch)
        if error is not None:
            self._failure = self._failure or error
            self._pending.append(Answer(batch.sequence, error))
            return
        offset = self._offsets.get(batch.numbers)
        if offset is None:
            offset = len(self.log)
            self.log.append(batch.value)
            if batch.numbers != NO_NUMBERS:
                self._offsets[batch.numbers] = offset
                self._next[batch.numbers[0]] = batch.numbers[2] + 1
        self._pending.append(Answer(batch.sequence, offset))

    def answers(self) -> list[Answer]:
        """Let the disk answer some of those that wait, and return the answers that are ready."""
        written = list(takewhile(lambda answer: isinstance(answer.outcome, int), self._pending))
        behind = self._pending[len(written) :]
        refused = list(takewhile(lambda answer: not isinstance(answer.outcome, int), behind))
        self._pending = behind[len(refused) :]
        fault = self._chance.choice(_FAULTS) if self.is_faulty and written else "none"
        if fault == "none":
            return written + refused
        if fault == "slow":
            count = self._chance.randrange(len(written) + 1)
            self._pending = written[count:] + behind
            return written[:count]
        failure = _FAILURES[fault](fault)
        if not behind:
            # Otherwise the session has failed already, and another one may have begun.
            self._failure = failure
        # Where the first one is late or lost, the others may be committed.
        count = 1 if fault in ("late", "lost") else len(written)
        failed = [answer._replace(outcome=failure) for answer in written[:count]]
        return failed + written[count:] + refused

    def _refusal(self, batch: SentBatch) -> LogStoreError | None:
        if self._failure is not None:
            return PrecedingAppendFailedError("behind a failed one")
        if self.is_faulty and self._chance.random() < 0.1:
            return self._chance.choice((OverloadedError, InvalidRecordError, NotOwnerError))("refused")
        producer_id, epoch, sequence = batch.numbers
        if batch.numbers == NO_NUMBERS or batch.numbers in self._offsets:
            return None
        expected = self._next.get(producer_id, 0)
        if sequence == expected:
            return None
        return OutOfOrderSequenceError(
            "gap", producer_id=producer_id, epoch=epoch, sequence=sequence, expected_sequence=expected
        )


_FAILURES: Mapping[str, type[LogStoreError]] = {
    "late": StoreUnavailableError,
    "lost": RecordsLostError,
    "disk": DataDirectoryError,
    "silent": StoreUnavailableError,
}
_FAULTS = ("none", "none", "none", "slow", "slow", "slow", *_FAILURES)
