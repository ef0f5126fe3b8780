"""Checks the batches of producers that wait to be written together.

Each request is checked against the state that the requests before it leave behind, although none of them is
in the log yet: that state is staged here. `commit` makes it the state of the log after the write; `discard`
forgets it after a failed write. The log's own state does not move in between.

    origin       epoch                  sequence        marker's coordinator
    CLIENT       not below the known    the next one    -
    COORDINATOR  not below the known    -               not below the known
    REPLICATION  -                      -               -

The first sequence of a client's producer is 0 after a change of its epoch. If nothing is known of the
producer, any sequence is right: its records may have been deleted. `append_rules` has checked that the batch
has an epoch and a sequence, and comes alone.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from stratalog.base.errors import (
    CoordinatorFencedError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from stratalog.log.append_info import AppendInfo
from stratalog.log.producers.producer_batch import ProducerBatch
from stratalog.log.producers.producer_fold import CompletedTransaction
from stratalog.log.producers.producer_state_entry import ProducerStateEntry
from stratalog.log.producers.producer_state_manager import ProducerStateManager


class AppendOrigin(enum.Enum):
    """The sender of the batches, which decides on the checks."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class ProducerAppend:
    """The changes of producers by one append, staged until they are committed. Guarded by UnifiedLog.lock,
    from its making to the last `commit` or `discard`."""

    def __init__(self, state: ProducerStateManager) -> None:
        self._state = state
        self._new_ids: set[int] = set()
        """The staged producers that the log does not know."""
        self._staged: list[ProducerBatch] = []
        self._entries: dict[int, ProducerStateEntry] = {}

    def duplicate_of(self, batches: Sequence[ProducerBatch]) -> AppendInfo | None:
        """The answer to a client's request whose batches are all stored, or staged, already; else None.

        If they are only staged, their offsets are not below the log's end; then the answer holds after
        `commit`.
        """
        found = [self._entry(batch.header.producer_id).duplicate_of(batch) for batch in batches]
        known = [item for item in found if item is not None]
        if not known or len(known) < len(found):
            return None
        return AppendInfo(known[0].first_offset, known[-1].last_offset, 0, is_duplicate=True)

    def stage(self, batches: Sequence[ProducerBatch], origin: AppendOrigin) -> None:
        """Check the batches of one request, which have their offsets, and take all of them or none.

        Raises ProducerFencedError, OutOfOrderSequenceError, InvalidTxnStateError, CoordinatorFencedError,
        LimitExceededError, OverloadedError.
        """
        entries: dict[int, ProducerStateEntry] = {}
        new_ids: set[int] = set()
        for batch in batches:
            if not batch.has_producer:
                continue
            producer_id = batch.header.producer_id
            entry = entries.get(producer_id) or self._entry(producer_id)
            if origin is not AppendOrigin.REPLICATION:
                _require_current(entry, batch)
            if origin is AppendOrigin.CLIENT:
                _require_in_sequence(entry, batch)
                if entry.is_unknown:
                    new_ids.add(producer_id)
                    new_count = len(self._new_ids) + len(new_ids)
                    self._state.require_room(new_count, self._entries.keys())
            entries[producer_id] = entry.after(batch)
        self._new_ids |= new_ids
        self._entries |= entries
        self._staged += batches

    def commit(self) -> list[CompletedTransaction]:
        """Let the log's state follow all staged batches, which are in the log now; return the transactions
        that they ended, in order."""
        if not self._staged:
            # So it is for most groups: their producers have no ids.
            return []
        completed = [self._state.append(batch) for batch in self._staged]
        self.discard()
        return [transaction for transaction in completed if transaction is not None]

    def discard(self) -> None:
        """Forget the staged batches, which are not in the log."""
        self._staged.clear()
        self._entries.clear()
        self._new_ids.clear()

    def _entry(self, producer_id: int) -> ProducerStateEntry:
        return self._entries.get(producer_id) or self._state.entry(producer_id)


def _require_current(entry: ProducerStateEntry, batch: ProducerBatch) -> None:
    """Raise unless the batch is from the owner of the producer's id and fits the state of its transaction."""
    header = batch.header
    if header.producer_epoch < entry.epoch:
        raise ProducerFencedError(
            "another producer has taken over this producer id; stop, or begin again with a new epoch",
            producer_id=header.producer_id,
            epoch=header.producer_epoch,
            current_epoch=entry.epoch,
        )
    if batch.marker is not None:
        if batch.marker.coordinator_epoch < entry.coordinator_epoch:
            raise CoordinatorFencedError(
                "another transaction coordinator has taken over this producer; stop",
                producer_id=header.producer_id,
                coordinator_epoch=batch.marker.coordinator_epoch,
                current_coordinator_epoch=entry.coordinator_epoch,
            )
    elif entry.current_txn_first_offset is not None and not header.is_transactional:
        raise InvalidTxnStateError(
            "the producer has an open transaction here; send transactional batches, or end it first",
            producer_id=header.producer_id,
            epoch=header.producer_epoch,
            current_txn_first_offset=entry.current_txn_first_offset,
        )


def _require_in_sequence(entry: ProducerStateEntry, batch: ProducerBatch) -> None:
    """Raise OutOfOrderSequenceError unless the batch begins where the producer's last one ended."""
    header = batch.header
    assert min(header.producer_epoch, header.base_sequence) >= 0, "`validate_append` refuses others"
    if entry.is_unknown:
        return
    expected_sequence = entry.next_sequence if header.producer_epoch == entry.epoch else 0
    if header.base_sequence != expected_sequence:
        raise OutOfOrderSequenceError(
            "a batch of this producer is missing before this one, or it came too late to be recognised; send "
            "in order from the expected sequence on, or with a new epoch from 0 on",
            producer_id=header.producer_id,
            epoch=header.producer_epoch,
            sequence=header.base_sequence,
            expected_sequence=expected_sequence,
        )
