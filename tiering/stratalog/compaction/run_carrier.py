"""Moves the slices of a partition into the output object as one slice, byte for byte.

The checksum of a slice proves its bytes, so no record is decoded: what the directory and the indexes say of
the slices is joined. Transactions move along, decided or not. A slice that begins below the log start, or
that a commit has clipped, loses the whole batches there; the writer proves the others, to count them anew.
"""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.base.filesystem import Buffer
from stratalog.compaction.input_streams import InputStreams
from stratalog.compaction.kept_records import CarriedTally
from stratalog.compaction.partition_rewriter import RewrittenPartition
from stratalog.compaction.plan.compaction_job import PartitionRun, RunMode
from stratalog.compaction.run_end import end_of
from stratalog.compaction.slice_reader import SliceReader
from stratalog.record.batch import batches
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.object_writer import ObjectWriter
from stratalog.remote.objects.slice_index import SliceIndex


class RunCarrier:
    """Carries one run. Not thread-safe: guarded by the job."""

    def __init__(self, run: PartitionRun, writer: ObjectWriter, inputs: Mapping[str, InputStreams]) -> None:
        assert run.mode is RunMode.CARRY
        self._run = run
        self._writer = writer
        self._inputs = inputs
        self._tally = CarriedTally()

    def carry(self) -> RewrittenPartition:
        """Read the run's slices and append one slice to the output. Raises what `SliceReader` and
        `ObjectWriter` raise."""
        run, writer = self._run, self._writer
        writer.begin_slice(
            run.topic.topic_id,
            run.topic.name,
            run.topic_id_partition.partition,
            base_offset=run.base_offset,
        )
        for live in run.slices:
            reader = self._inputs[live.object_name].slice_reader(live.entry)
            if max(live.base_offset, run.log_start_offset) > live.entry.base_offset:
                self._carry_rest(live, reader)
            else:
                self._carry_whole(live, reader)
        writer.end_slice(end_of(run, self._index_of))
        records_in = sum(live.entry.record_count for live in run.slices)
        return RewrittenPartition(self._tally.result(), records_in, 0)

    def _index_of(self, live: LiveSlice) -> SliceIndex:
        return self._inputs[live.object_name].slice_index(live.entry)

    def _carry_whole(self, live: LiveSlice, reader: SliceReader) -> None:
        self._writer.carry(live.entry, self._index_of(live))
        for row in reader.rows():
            self._tally.add(row)
            self._writer.append_carried(row)

    def _carry_rest(self, live: LiveSlice, reader: SliceReader) -> None:
        first_offset = max(live.base_offset, self._run.log_start_offset)
        for row in reader.rows():
            rest = _from_offset(row, first_offset)
            self._tally.add(rest)
            self._writer.append(rest)


def _from_offset(row: Buffer, first_offset: int) -> Buffer:
    """The batches of the row from the first on that ends at or above the offset."""
    for position, header in batches(row):
        if header.next_offset > first_offset:
            return memoryview(row)[position:]
    return b""
