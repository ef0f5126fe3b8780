"""The transactions of one run: whose data was aborted, and whose is undecided.

A transaction with its marker in the run is decided. If it was aborted, the index of the slice with the marker
names it. One that is open at the end of the run is undecided: a job reads nothing behind its run, so its data
stays as it is, and another job decides once it takes the marker. `compacted_upto` ends where the oldest of
them begins.

Phase 2 walks the run in the order of offsets and notes which data stays. So it knows at each marker whether
there is data of its transaction left; `TombstoneRule` has the rule for that. A marker and the entry of its
transaction go together. An entry without its marker would hide later records of the producer from readers of
committed records, and a marker without its entry would show them aborted ones. So each abort marker is
compared with the index of its slice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stratalog.base.errors import StoreCorruptError
from stratalog.compaction.input_streams import InputStreams, index_of
from stratalog.compaction.plan.compaction_job import PartitionRun
from stratalog.record.end_transaction_marker import ControlType
from stratalog.record.header import MAX_OFFSET, BatchHeader
from stratalog.record.native.aborted_spans import AbortedSpans, ordered
from stratalog.record.native.offset_map import OpenTransactions
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.segment.indexes.transaction_index import AbortedTransaction

_WITHOUT_MARKER = "has an aborted transaction without its marker;"
_WITHOUT_ENTRY = (
    "does not have the aborted transaction of a marker; if a rebuild of a lost head has brought deleted"
    " records back, delete its records again; if not,"
)


class RunTransactions:
    """The transactions of one run. Not thread-safe: guarded by the job."""

    def __init__(self, aborted: AbortedSpans | None = None, undecided: AbortedSpans | None = None) -> None:
        """The transactions with data in the run, as spans: the aborted ones up to their markers, and the
        undecided ones without an end."""
        self.aborted = aborted or AbortedSpans()
        self._undecided = undecided or AbortedSpans()
        self.with_data = OpenTransactions()
        """Those with data before the place that phase 2 has reached, and whether it stays."""

    @staticmethod
    def of(run: PartitionRun, inputs: Mapping[str, InputStreams]) -> RunTransactions:
        """Read which transactions of the run were aborted. Raises as `index_of`."""
        if not run.slices.are_transactional:
            return RunTransactions()
        aborted = [
            (one.producer_id, one.first_offset, one.last_offset)
            for live in run.slices
            if live.entry.has_aborted
            for one in index_of(inputs, live).aborted
        ]
        opened = run.slices[-1].entry.open_transactions
        undecided = [(one.producer_id, one.first_offset, MAX_OFFSET) for one in opened]
        return RunTransactions(AbortedSpans(ordered(aborted)), AbortedSpans(ordered(undecided)))

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether the batch is data of an aborted transaction."""
        return bool(self.aborted) and self.aborted.has(header)

    def is_undecided(self, header: BatchHeader) -> bool:
        """Return whether the batch is data of a transaction whose marker is behind the run."""
        return bool(self._undecided) and self._undecided.has(header)


class SliceMarkers:
    """The abort markers of one slice, compared with the transactions in its index. Not thread-safe: guarded
    by the job."""

    def __init__(self, entry: SliceEntry, aborted: Sequence[AbortedTransaction], first_offset: int) -> None:
        """Markers below `first_offset` are not looked at. `aborted`: those of the index."""
        self._entry = entry
        self._left = iter([one for one in aborted if one.last_offset >= first_offset])
        self._next = next(self._left, None)

    def take(
        self, header: BatchHeader, control_type: ControlType, *, has_data: bool
    ) -> AbortedTransaction | None:
        """Return the entry that belongs to the next marker; None if it has none, because it commits, or there
        was no transaction to end. `has_data`: there was data of one. Raises StoreCorruptError if marker and
        index contradict each other."""
        found, is_abort = self._next, control_type is ControlType.ABORT
        if found is None or found.last_offset > header.last_offset:
            if is_abort and has_data:
                raise self._corrupt(_WITHOUT_ENTRY, header.last_offset)
            return None
        if found.last_offset < header.last_offset or not is_abort or found.producer_id != header.producer_id:
            raise self._corrupt(_WITHOUT_MARKER, found.last_offset)
        self._next = next(self._left, None)
        return found

    def end(self) -> None:
        """Raise StoreCorruptError if there are transactions left without their markers."""
        if self._next is not None:
            raise self._corrupt(_WITHOUT_MARKER, self._next.last_offset)

    def _corrupt(self, problem: str, marker_offset: int) -> StoreCorruptError:
        return StoreCorruptError(
            f"the index of a slice {problem} keep the object and find out what changed it",
            topic=self._entry.topic,
            partition=self._entry.partition,
            base_offset=self._entry.base_offset,
            marker_offset=marker_offset,
        )
