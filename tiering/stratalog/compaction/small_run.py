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
from stratalog.remote.objects.object_writer import ObjectWriter

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
    kept = _kept_slices(run, plan, rule, inputs)
    if kept is None:
        return None
    compacted = compact_slices(kept, run.base_offset, writer.index_interval_bytes)
    if compacted is None:
        return None
    for live in run.slices:
        inputs[live.object_name].let_go()
    topic = run.topic
    writer.begin_slice(
        topic.topic_id, topic.name, run.topic_id_partition.partition, base_offset=run.base_offset
    )
    writer.end_compacted(compacted, end_of(run, inputs, ()), topic.hashing)
    return RewrittenPartition(
        KeptRecords(
            compacted.records_count, compacted.first_offset, compacted.last_offset, compacted.fingerprint
        ),
        run.record_count,
        compacted.dropped_tombstone_count,
    )


def _kept_slices(
    run: PartitionRun, plan: SurvivorPlan, rule: TombstoneRule, inputs: Mapping[str, InputStreams]
) -> list[SliceInput] | None:
    """The slices with survivors; None if the run is not small and plain by its entries."""
    if not plan.has_whole_streams:
        return None
    left_bytes = MAX_RUN_BYTES
    indexes: list[int] = []
    for index, live in enumerate(run.slices):
        entry = live.entry
        if entry.marker_count or entry.has_aborted or entry.open_transactions:
            return None
        if any(plan.survivors[index]):
            left_bytes -= entry.data_bytes
            if entry.codec_mask != _PLAIN or left_bytes < 0:
                return None
            indexes.append(index)
    kept: list[SliceInput] = []
    for index in indexes:
        live = run.slices[index]
        entry, streams = live.entry, inputs[live.object_name]
        assert entry.key_stream is not None, "its survivors are known"
        keys = streams.proved_key_stream(entry.key_stream)
        assert keys is not None, "its key stream is small"
        kept.append(
            (
                streams.whole_slice(entry),
                entry.data_crc,
                entry.record_count,
                keys,
                # The long way needs the bits as they are.
                bytearray(plan.survivors[index]),
                rule.batch_filter(live, run.log_start_offset),
            )
        )
    return kept
