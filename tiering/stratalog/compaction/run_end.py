"""Makes the end of an output slice from the slices that it replaces: transactions, producers, epochs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stratalog.compaction.plan.compaction_job import PartitionRun
from stratalog.compaction.run_transactions import LoadIndex
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.objects.slice_entry import joined_epochs
from stratalog.remote.read.producer_chain import producers_at_end
from stratalog.segment.indexes.transaction_index import AbortedTransaction


def end_of(run: PartitionRun, load_index: LoadIndex, aborted: Iterable[AbortedTransaction]) -> SliceEnd:
    """The end of the slice that replaces the run: the open transactions and the producers of the last slice,
    the leader epochs of all, and the aborted transactions whose markers stay. Raises as `load_index`.

    What the producers of a slice refer to within the run is put together, because those slices go. What lies
    before the run stays, and so does the reference to it. So no batch has to stay for its producer.
    """

    def slice_before(offset: int) -> LiveSlice | None:
        return next((live for live in run.slices if run.base_offset < offset <= live.end_offset), None)

    last = run.slices[-1]
    producers = producers_at_end(last, slice_before, load_index)
    return SliceEnd(
        run.end_offset,
        open_transactions=last.entry.open_transactions,
        aborted=tuple(aborted),
        producer_snapshot=producers.snapshot.to_bytes(),
        producers_since=producers.since,
        leader_epochs=joined_epochs(live.entry for live in run.slices),
    )


def aborted_in(run: PartitionRun, load_index: LoadIndex) -> Iterator[AbortedTransaction]:
    """The aborted transactions of a run, in the order of their markers. Those whose markers lie below log
    start are left out. Raises as `load_index`."""
    for live in run.slices:
        if live.entry.has_aborted:
            first_offset = max(live.base_offset, run.log_start_offset)
            yield from (one for one in load_index(live).aborted if one.last_offset >= first_offset)
