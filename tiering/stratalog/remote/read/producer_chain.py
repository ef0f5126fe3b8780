"""Puts together the producers at the end of a slice.

The index of a slice has all producers, or those that have changed since the end of an earlier slice
(`slice_producers`). Usually that one has all. After a rebuild of a head it need not: the slice of an upload
that was never committed may stand in the place of the whole one, and has changes only, too. So the references
are followed, slice by slice, to a whole snapshot. What a later slice knows of a producer counts.

Where a reference leads below all slices, or into a gap, the producers that have not written since are
forgotten: none of their records is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError, StoreCorruptError
from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.slice_index import SliceIndex

MAX_STEP_COUNT = 64
"""References that are followed. An uploader makes chains of one; each rebuild may add one."""


class ChainedProducers(NamedTuple):
    """The producers at the end of a slice. Immutable."""

    snapshot: ProducerSnapshot
    since: int | None
    """None if these are all; else those that have changed since this offset."""


def producers_at_end(
    newest: LiveSlice,
    slice_before: Callable[[int], LiveSlice | None],
    load_index: Callable[[LiveSlice], SliceIndex],
) -> ChainedProducers:
    """The producers at the end of `newest`, an index for each slice of the chain.

    `slice_before(offset)` is the slice that holds the record before an offset, the first one if that is gone;
    None if it is not to be asked. Raises StoreCorruptError if a snapshot is damaged or the chain does not
    end, and what `load_index` raises.
    """
    live, producers = newest, _read(newest, load_index)
    for _ in range(MAX_STEP_COUNT + 1):
        if producers.since is None:
            return producers
        before = slice_before(producers.since)
        # The slice that ended there, or what compaction has made of it: that may end later.
        if before is None or before.gap is not None or before.base_offset >= live.base_offset:
            return producers
        earlier = _read(before, load_index)
        producers = ChainedProducers(producers.snapshot.after(earlier.snapshot), earlier.since)
        live = before
    raise StoreCorruptError(
        "the producers of a partition refer to earlier slices again and again; keep the objects, restart its"
        " owner so that it uploads a whole snapshot, and report it",
        name=newest.object_name,
        end_offset=newest.end_offset,
        steps=MAX_STEP_COUNT,
        **newest.entry.topic_id_partition.error_fields,
    )


def _read(live: LiveSlice, load_index: Callable[[LiveSlice], SliceIndex]) -> ChainedProducers:
    index = load_index(live)
    try:
        snapshot = ProducerSnapshot.from_bytes(live.end_offset, index.producer_snapshot)
    except CorruptRecordError as error:
        raise StoreCorruptError(
            "the producer snapshot of a slice is damaged; restore the object from a copy",
            name=live.object_name,
        ) from error
    return ChainedProducers(snapshot, index.producers_since)
