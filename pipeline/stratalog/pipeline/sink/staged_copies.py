"""Appends of staged batches by the server itself: the driver names them, and no row goes through it.

The copies of a decision have the same producer and the same sequences as the appends of a driver that reads
the rows (`TargetLanes`), so each of them goes on where the other one stopped. This one does nothing about a
failure. It leaves the rest to the other one, which asks each partition how far it came: so it does if the
server is older, or does not own all the partitions, or if the principal may not read what it writes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stratalog.base.errors import LogStoreError
from stratalog.client.channel import CALL_TIMEOUT_S
from stratalog.client.errors import error_of_status
from stratalog.client.messages import wire_durability
from stratalog.pipeline.sink.staging_topic import ROWS, StagedTask
from stratalog.pipeline.sink.target_appender import Appends
from stratalog.pipeline.sink.target_batches import Target
from stratalog.v1 import log_pb2

logger = logging.getLogger(__name__)

FIRST_CALL_COUNT = 32
MAX_CALL_COUNT = 1_000
"""The most copies of a call that the server takes."""


class _Place(NamedTuple):
    """A staged batch."""

    offset: int
    target: Target
    record_count: int
    attempt: str


async def copy_staged(appends: Appends, topic: str, tasks: Sequence[StagedTask]) -> bool:
    """Let the server copy the batches of the attempts of a decision out of this staging topic, in the order
    in which a driver reads them. Returns False if some may be missing."""
    copies = list(_copies(appends, _places(tasks)))
    done_count, call_count = 0, FIRST_CALL_COUNT
    while done_count < len(copies):
        some = copies[done_count : done_count + call_count]
        request = log_pb2.CopyBatchesRequest(topic=topic, partition=ROWS, copies=some)
        try:
            call = appends.client.log.CopyBatches(request, timeout=CALL_TIMEOUT_S)
            response = await appends.client.channel.call(call)
            for one in response.copied:
                if one.HasField("status"):
                    raise error_of_status(one.status)
        except LogStoreError as error:
            logger.info("%s: the driver appends the rows, because the server does not: %s", topic, error)
            return False
        done_count += len(response.copied)
        # More would come in vain, because the server takes some mebibytes at a time.
        call_count = min(2 * len(response.copied), MAX_CALL_COUNT)
    return True


def _places(tasks: Sequence[StagedTask]) -> list[_Place]:
    """The batches of these attempts in the order of the log."""
    found: list[_Place] = []
    for task in tasks:
        assert task.places is not None, "the attempt knows where its batches lie"
        targets = [target for target, _ in task.record_counts]
        rows = zip(task.places.offsets, task.places.targets, task.places.record_counts, strict=True)
        found += (_Place(offset, targets[index], count, task.attempt) for offset, index, count in rows)
    return sorted(found)


def _copies(appends: Appends, places: Sequence[_Place]) -> Iterator[log_pb2.BatchCopy]:
    """The copies of these batches, each with its place in the sequence of its partition. The last one of a
    partition has the durability."""
    decision, durability = appends.decision, wire_durability(appends.durability)
    last_offsets = {place.target: place.offset for place in places}
    sequences: Counter[Target] = Counter()
    for place in places:
        is_last = place.offset == last_offsets[place.target]
        yield log_pb2.BatchCopy(
            offset=place.offset,
            key=place.attempt.encode(),
            topic=place.target.topic,
            topic_id=place.target.topic_id,
            partition=place.target.partition,
            producer=log_pb2.ProducerSequence(
                producer_id=decision.producer_id,
                producer_epoch=decision.producer_epoch,
                base_sequence=sequences[place.target],
            ),
            durability=durability if is_last else log_pb2.DURABILITY_UNSPECIFIED,
        )
        sequences[place.target] += place.record_count
    assert sequences == {plan.target: plan.record_count for plan in decision.plans}
