"""The identity of a batch's producer, for idempotence and transactions."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.record.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

MAX_SEQUENCE = 2**31 - 1
"""The highest sequence number; 0 follows it."""
MAX_PRODUCER_EPOCH = 2**15 - 1


class BatchProducer(NamedTuple):
    """The producer's fields of a batch header. The defaults are those of a producer without idempotence."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    """The sequence number of the first record; the others count on from it. -1 if a coordinator writes for
    the producer."""
    is_transactional: bool = False

    def check(self) -> None:
        """Prove that the fields fit each other and a header."""
        assert -1 <= self.producer_id < 2**63
        assert -1 <= self.producer_epoch <= MAX_PRODUCER_EPOCH
        assert -1 <= self.base_sequence <= MAX_SEQUENCE
        assert (self.producer_id == NO_PRODUCER_ID) == (self.producer_epoch == NO_PRODUCER_EPOCH)
        if self.producer_id == NO_PRODUCER_ID:
            assert self.base_sequence == NO_SEQUENCE
            assert not self.is_transactional


def add_to_sequence(sequence: int, count: int) -> int:
    """The sequence number `count` places after `sequence` (before it if negative); 0 follows the highest
    one."""
    return (sequence + count) & MAX_SEQUENCE
