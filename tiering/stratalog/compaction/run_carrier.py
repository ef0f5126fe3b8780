"""Moves the slices of a partition into the output object as one slice, byte for byte.

The checksum of a slice proves its bytes, so no record is decoded: what the directory and the indexes say of
the slices is joined. Transactions move along, decided or not. A slice that begins below the log start, or
that a commit has clipped, loses the whole batches there; the writer proves the others, to count them anew.
Key streams are merged; where one is missing, the output has none until its keys are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from stratalog.base.filesystem import Buffer
from stratalog.compaction.input_streams import InputStreams, index_of
from stratalog.compaction.kept_records import CarriedTally
from stratalog.compaction.keys.merged_keys import KeySource, merged_keys
from stratalog.compaction.keys.survivor_bits import clear_bits, new_bitmap
from stratalog.compaction.partition_rewriter import RewrittenPartition
from stratalog.compaction.plan.compaction_job import PartitionRun, RunMode
from stratalog.compaction.run_end import aborted_in, end_of
from stratalog.compaction.slice_reader import SliceReader
from stratalog.record.batch import batches
from stratalog.record.native.batch_kernels import whole_batches
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.key_stream import SMALL_STREAM_BYTES, verify_key_stream
from stratalog.remote.objects.object_writer import ObjectWriter, SortedKeys


class RunCarrier:
    """Carries one run. Not thread-safe: guarded by the job."""

    def __init__(self, run: PartitionRun, writer: ObjectWriter, inputs: Mapping[str, InputStreams]) -> None:
        assert run.mode is RunMode.CARRY
        self._run = run
        self._slices = run.slices.unpacked()
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
        survivors: list[bytearray | None] = []
        for live in self._slices:
            reader = self._inputs[live.object_name].slice_reader(live.entry)
            if run.first_offset_of(live) > live.entry.base_offset:
                survivors.append(self._carry_rest(live, reader))
            else:
                survivors.append(None)
                self._carry_whole(live, reader)
        end = end_of(run, self._slices[-1], self._inputs, aborted_in(run, self._inputs))
        writer.end_slice(end, self._keys(survivors))
        return RewrittenPartition(self._tally.result(), 0)

    def _carry_whole(self, live: LiveSlice, reader: SliceReader) -> None:
        self._writer.carry(live.entry, index_of(self._inputs, live))
        self._tally.add_slice(live.entry)
        for row in reader.rows():
            self._writer.append_carried(row)

    def _carry_rest(self, live: LiveSlice, reader: SliceReader) -> bytearray:
        """Returns a bit for each record of the slice, whether it was carried."""
        first_offset = self._run.first_offset_of(live)
        survivors = new_bitmap(live.entry.record_count, survives=True)
        ordinal = 0
        for row in reader.rows():
            position, dropped_count = _batches_below(row, first_offset)
            clear_bits(survivors, ordinal, ordinal + dropped_count)
            ordinal += whole_batches(row)[1]
            rest = memoryview(row)[position:]
            self._tally.add(rest)
            self._writer.append(rest)
        return survivors

    def _keys(self, survivors: Sequence[bytearray | None]) -> SortedKeys | None:
        """The keys of the output, if the inputs have key streams for all records, and none is undecided."""
        run, slices = self._run, self._slices
        if not run.topic.is_compacted or not all(map(run.has_keys, slices)):
            return None
        if slices[-1].entry.open_transactions:
            return None
        streams = [live.entry.key_stream for live in slices]
        hashing = run.topic.hashing
        is_small = not hashing.has_versions and all(
            stream is None or stream.size_bytes <= SMALL_STREAM_BYTES for stream in streams
        )
        sources = [
            self._source(live, bits, is_small=is_small) for live, bits in zip(slices, survivors, strict=True)
        ]
        return SortedKeys(hashing, merged_keys(hashing, sources, self._writer.record_count))

    def _source(self, live: LiveSlice, survivors: bytearray | None, *, is_small: bool) -> KeySource:
        """The keys of a slice. `is_small`: the key streams of all slices are, and have no versions."""
        entry, streams = live.entry, self._inputs[live.object_name]
        if entry.key_stream is None:
            return KeySource(survivors, entry.record_count, None, ())
        if not is_small:
            return KeySource(survivors, entry.record_count, None, (partial(streams.key_blocks, entry),))
        whole = streams.small_key_stream(entry.key_stream)
        assert whole is not None
        verify_key_stream(lambda _: whole, entry.key_stream, entry.record_count)
        return KeySource(survivors, entry.record_count, whole, ())


def _batches_below(row: Buffer, offset: int) -> tuple[int, int]:
    """The size of the batches at the beginning of the row that end at or below the offset, and the number of
    their records."""
    size_bytes = records_count = 0
    for position, header in batches(row):
        if header.next_offset > offset:
            break
        size_bytes = position + header.size_in_bytes
        records_count += header.records_count
    return size_bytes, records_count
