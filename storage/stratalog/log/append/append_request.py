"""One request to append: proved, and as producer state sees it. Made without a lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stratalog.log.append.log_validator import ValidatedAppend
from stratalog.log.producers.producer_append import AppendOrigin
from stratalog.log.producers.producer_batch import ProducerBatch
from stratalog.record.batch import batches
from stratalog.record.end_transaction_marker import EndTransactionMarker


class AppendRequest(NamedTuple):
    """Immutable, as long as the buffer is."""

    validated: ValidatedAppend
    origin: AppendOrigin
    producer_batches: Sequence[ProducerBatch]
    """All batches, where one of them has a producer; else none, because nobody asks."""

    @staticmethod
    def of(validated: ValidatedAppend, origin: AppendOrigin) -> AppendRequest:
        """Raises CorruptRecordError where a control batch is none."""
        if not any(header.has_producer_id for header in validated.headers):
            return AppendRequest(validated, origin, ())
        located = zip(validated.positions, validated.headers, strict=True)
        return AppendRequest(
            validated,
            origin,
            tuple(ProducerBatch.read(validated.buffer, position, header) for position, header in located),
        )

    @staticmethod
    def end_of_transaction(
        producer_id: int, producer_epoch: int, marker: EndTransactionMarker, now_ms: int
    ) -> AppendRequest:
        """The control batch that ends the producer's transaction."""
        data = marker.to_batch(producer_id, producer_epoch, now_ms)
        return AppendRequest.of(ValidatedAppend.of(data, tuple(batches(data))), AppendOrigin.COORDINATOR)
