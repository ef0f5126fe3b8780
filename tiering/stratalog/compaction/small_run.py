"""Compacts a small run of plain slices with one kernel call, where a partition costs more than its bytes.

The long way (`partition_rewriter`) takes a slice in rows, and the writer describes them row by row: some
hundred steps in Python for each partition, whatever its size. Here one call takes the slices with survivors,
and returns the output slice with its statistics, index and key stream, the same to the byte. It refuses every
run with anything out of the ordinary, and damaged ones: the long way takes those from the same bytes, and has
the rules and the errors.
"""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.compaction.input_streams import InputStreams
from stratalog.compaction.kept_records import KeptRecords
from stratalog.compaction.keys.survivor_plan import SurvivorPlan
from stratalog.compaction.partition_rewriter import RewrittenPartition
from stratalog.compaction.plan.compaction_job import PartitionRun
from stratalog.compaction.run_end import end_of
from stratalog.compaction.tombstone_rule import TombstoneRule
from stratalog.record.codecs.compression import Codec
from stratalog.record.native.batch_filter import SliceInput
from stratalog.record.native.batch_kernels import compact_slices
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.object_writer import ObjectWriter
from stratalog.remote.objects.slice_builder import SliceStart

MAX_RUN_BYTES = 1 << 20
"""The most data of slices with survivors: a call holds them in memory. Larger runs cost more by their bytes
than by their steps."""
_PLAIN = 1 << Codec.NONE


def compact_small_run(
    run: PartitionRun,
    plan: SurvivorPlan,
    rule: TombstoneRule,
    writer: ObjectWriter,
    inputs: Mapping[str, InputStreams],
) -> RewrittenPartition | None:
    """Append one slice to the output; None for a run that the long way must take, and then nothing is read
    that it cannot read again. Raises StoreCorruptError and what the store raises.
    """
    kept = _kept_slices(run, plan)
    if kept is None:
        return None
    slices = [_input_of(live, survivors, rule, run, inputs) for live, survivors in kept]
    compacted = compact_slices(slices, run.base_offset, writer.index_interval_bytes)
    if compacted is None:
        return None
    for live, _ in kept:
        inputs[live.object_name].let_go()
    topic = run.topic
    start = SliceStart(
        topic.topic_id, topic.name, run.topic_id_partition.partition, run.base_offset, topic.hashing
    )
    last = run.slices[-1] if not kept or kept[-1][0].end_offset < run.end_offset else kept[-1][0]
    writer.append_compacted(start, compacted, end_of(run, last, inputs, ()))
    records = KeptRecords(
        compacted.records_count, compacted.first_offset, compacted.last_offset, compacted.fingerprint
    )
    return RewrittenPartition(records, compacted.dropped_tombstone_count)


def _kept_slices(run: PartitionRun, plan: SurvivorPlan) -> list[tuple[LiveSlice, bytearray]] | None:
    """The slices with survivors, with their bits; None if the run is not small and plain by its entries."""
    slices = run.slices
    if not plan.has_whole_streams or slices.are_transactional:
        return None
    left_bytes = MAX_RUN_BYTES
    kept: list[tuple[LiveSlice, bytearray]] = []
    for index, survivors in enumerate(plan.survivors):
        if any(survivors):
            live = slices[index]
            left_bytes -= live.entry.data_bytes
            if live.entry.codec_mask != _PLAIN or left_bytes < 0:
                return None
            kept.append((live, survivors))
    return kept


def _input_of(
    live: LiveSlice,
    survivors: bytearray,
    rule: TombstoneRule,
    run: PartitionRun,
    inputs: Mapping[str, InputStreams],
) -> SliceInput:
    entry, streams = live.entry, inputs[live.object_name]
    assert entry.key_stream is not None, "its survivors are known"
    keys = streams.proved_key_stream(entry.key_stream)
    assert keys is not None, "its key stream is small"
    data, batch_filter = streams.whole_slice(entry), rule.batch_filter(live, run.log_start_offset)
    # The long way needs the bits as they are.
    return data, entry.data_crc, entry.record_count, keys, bytearray(survivors), batch_filter
