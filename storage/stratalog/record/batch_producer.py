"""Who made a batch: what idempotence and transactions know a producer by."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.record.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

MAX_SEQUENCE = 2**31 - 1
"""Sequence numbers go on from here at 0."""


class BatchProducer(NamedTuple):
    """The producer's fields of a batch header. The defaults are those of a producer without idempotence."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    """Of the first record; the others count on from it. -1 where a coordinator writes for the producer."""
    is_transactional: bool = False

    def check(self) -> None:
        """Prove that the fields fit each other and the header."""
        assert -1 <= self.producer_id < 2**63
        assert -1 <= self.producer_epoch < 2**15
        assert -1 <= self.base_sequence < 2**31
        assert (self.producer_id == NO_PRODUCER_ID) == (self.producer_epoch == NO_PRODUCER_EPOCH)
        if self.producer_id == NO_PRODUCER_ID:
            assert self.base_sequence == NO_SEQUENCE
            assert not self.is_transactional


def add_to_sequence(sequence: int, count: int) -> int:
    """The sequence number `count` (which may be negative) behind `sequence`; 0 follows the greatest."""
    return (sequence + count) & MAX_SEQUENCE
