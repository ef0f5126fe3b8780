"""Makes the end of an output slice from the slices that it replaces: transactions, producers, epochs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from stratalog.compaction.input_streams import InputStreams, index_of
from stratalog.compaction.plan.compaction_job import PartitionRun
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.objects.slice_index import NO_PRODUCERS
from stratalog.remote.read.producer_chain import producers_at_end
from stratalog.segment.indexes.transaction_index import AbortedTransaction


def end_of(
    run: PartitionRun,
    last: LiveSlice,
    inputs: Mapping[str, InputStreams],
    aborted: Iterable[AbortedTransaction],
) -> SliceEnd:
    """The end of the slice that replaces the run: the open transactions and the producers of its `last`
    slice, the leader epochs of all, and the aborted transactions whose markers stay. Raises as `index_of`.

    What the producers of a slice refer to within the run is put together, because those slices go. What lies
    before the run stays, and so does the reference to it. So no batch has to stay for its producer. The index
    of a slice without producers is not decoded.
    """
    slices = run.slices
    snapshot, since = NO_PRODUCERS, None
    if not inputs[last.object_name].has_plain_index(last.entry):

        def slice_before(offset: int) -> LiveSlice | None:
            return next((live for live in slices if run.base_offset < offset <= live.end_offset), None)

        producers = producers_at_end(last, slice_before, partial(index_of, inputs))
        snapshot, since = producers.snapshot.to_bytes(), producers.since
    return SliceEnd(
        run.end_offset,
        open_transactions=last.entry.open_transactions,
        aborted=tuple(aborted),
        producer_snapshot=snapshot,
        producers_since=since,
        leader_epochs=slices.leader_epochs,
    )


def aborted_in(run: PartitionRun, inputs: Mapping[str, InputStreams]) -> Iterator[AbortedTransaction]:
    """The aborted transactions of a run, in the order of their markers. Those whose markers lie below log
    start are left out. Raises as `index_of`."""
    for live in run.slices if run.slices.are_transactional else ():
        if live.entry.has_aborted:
            first_offset = run.first_offset_of(live)
            yield from (one for one in index_of(inputs, live).aborted if one.last_offset >= first_offset)
