"""Phase 2: copies the surviving records of a partition into the output object, batch by batch.
docs/compaction.md says which batches are copied, rebuilt or dropped; tombstones and markers follow
`TombstoneRule`, transactions `RunTransactions`.

Records outside the slice's logical range or below log start are not readable and do not stay. Neither do
batches without records, which hold a place for their producer in a local log. Producers are
those at the end of the last slice; leader epochs are those of all slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stratalog.base.errors import StoreCorruptError
from stratalog.base.filesystem import Buffer
from stratalog.compaction.input_streams import InputStreams, index_of
from stratalog.compaction.kept_records import CarriedBytes, KeptRecords, KeptTally
from stratalog.compaction.keys.merged_keys import merged_keys
from stratalog.compaction.keys.survivor_bits import bits_between, clear_bits, set_bits
from stratalog.compaction.keys.survivor_plan import SurvivorPlan
from stratalog.compaction.plan.compaction_job import PartitionRun, RunMode
from stratalog.compaction.run_end import end_of
from stratalog.compaction.run_transactions import SliceMarkers
from stratalog.compaction.slice_reader import SliceReader
from stratalog.compaction.tombstone_rule import TombstoneRule
from stratalog.record.batch import records_payload
from stratalog.record.builder import rebuild_batch, rebuilt_max_timestamp, timestamp_shift, with_horizon
from stratalog.record.end_transaction_marker import EndTransactionMarker
from stratalog.record.header import DELETE_HORIZON_BIT, BatchHeader, parse_header
from stratalog.record.keep_rules import MarkerFate
from stratalog.record.native.aborted_spans import is_aborted
from stratalog.record.native.batch_filter import BatchFilter, FilteredBatches
from stratalog.record.native.batch_kernels import filter_batches
from stratalog.record.native.kernels import clear_dropped, copy_records
from stratalog.record.records_summary import CopiedRecords
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.object_writer import ObjectWriter, SortedKeys
from stratalog.remote.objects.spool import SpoolReader
from stratalog.segment.indexes.transaction_index import AbortedTransaction

_GATHERED_BYTES = 64 << 10
"""The writer gets pieces of at least this size, except for the last of a run."""


class RewrittenPartition(NamedTuple):
    """The result of rewriting a run."""

    kept: KeptRecords | CarriedBytes
    tombstones_removed: int


class PlacedBatch(NamedTuple):
    """A whole batch at `position` of `buffer`."""

    buffer: Buffer
    position: int
    header: BatchHeader

    @property
    def end_position(self) -> int:
        return self.position + self.header.size_in_bytes


class _SliceRewrite(NamedTuple):
    """The state of one slice's rewrite."""

    survivors: bytearray
    rule: BatchFilter
    markers: SliceMarkers


class _Position(NamedTuple):
    """The place of a batch in its slice, and the offsets that count."""

    first_ordinal: int
    first_offset_delta: int
    end_offset_delta: int
    is_clipped: bool


class PartitionRewriter:
    """Rewrites one run. Not thread-safe: guarded by the job."""

    def __init__(
        self, run: PartitionRun, plan: SurvivorPlan, rule: TombstoneRule, writer: ObjectWriter
    ) -> None:
        assert run.mode is RunMode.COMPACT
        self._run = run
        self._plan = plan
        self._rule = rule
        self._writer = writer
        self._tally = KeptTally()
        self._tombstones_removed = 0
        self._inputs: Mapping[str, InputStreams] = {}
        self._aborted: list[AbortedTransaction] = []
        """The aborted transactions whose markers stay."""
        # Small pieces are joined, because the writer treats each call as a whole.
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def rewrite(self, inputs: Mapping[str, InputStreams], chunk_bytes: int) -> RewrittenPartition:
        """Read the run's slices and append one slice to the output. Raises what `SliceReader`, `SliceMarkers`
        and `ObjectWriter` raise.
        """
        run, topic = self._run, self._run.topic
        slices, read = run.slices.unpacked(), frozenset(self._plan.read_indexes(run.slices))
        self._inputs = inputs
        self._writer.begin_slice(
            topic.topic_id,
            topic.name,
            run.topic_id_partition.partition,
            base_offset=run.base_offset,
        )
        for index, live in enumerate(slices):
            copy = self._plan.copies.get(index)
            if copy is not None:
                reader = SliceReader(live.entry, SpoolReader(copy, 0, copy.size_bytes).read_some, chunk_bytes)
            elif index not in read:
                continue
            else:
                reader = inputs[live.object_name].slice_reader(live.entry)
            self._rewrite_slice(index, live, reader)
        self._flush()
        end = end_of(run, slices[-1], inputs, self._aborted)
        self._writer.end_slice(end, self._keys(slices, inputs))
        return RewrittenPartition(self._tally.result(), self._tombstones_removed)

    def _keys(self, slices: Sequence[LiveSlice], inputs: Mapping[str, InputStreams]) -> SortedKeys | None:
        """The keys of the output, once all its records are written; None if some of them have none, or are
        undecided."""
        if not self._writer.may_have_keys or slices[-1].entry.open_transactions:
            return None
        sources = self._plan.key_sources(slices, inputs)
        hashing = self._run.topic.hashing
        return SortedKeys(hashing, merged_keys(hashing, sources, self._writer.record_count))

    def _rewrite_slice(self, index: int, live: LiveSlice, reader: SliceReader) -> None:
        survivors, transactions = self._plan.survivors[index], self._plan.transactions
        rule = self._rule.batch_filter(live, self._run.log_start_offset)
        rule = rule._replace(aborted=transactions.aborted.values)
        aborted = index_of(self._inputs, live).aborted if live.entry.has_aborted else ()
        rewrite = _SliceRewrite(survivors, rule, SliceMarkers(live.entry, aborted, rule.first_offset))
        ordinal = 0
        for row in reader.rows():
            position = 0
            while position < len(row):
                filtered = filter_batches(
                    row, position, survivors, ordinal, rule, self._tally.fingerprint, transactions.with_data
                )
                if filtered.end_position > position:
                    self._append_filtered(filtered)
                    position, ordinal = filtered.end_position, filtered.next_ordinal
                    continue
                batch = PlacedBatch(row, position, parse_header(row, position))
                self._rewrite_batch(batch, ordinal, rewrite)
                position += batch.header.size_in_bytes
                ordinal += batch.header.records_count
        rewrite.markers.end()
        self._tally.keep()

    def _append_filtered(self, filtered: FilteredBatches) -> None:
        self._tombstones_removed += filtered.dropped_tombstone_count
        if filtered.records_count > 0:
            self._tally.add_proved(filtered)
            self._append(filtered.data)

    def _rewrite_batch(self, batch: PlacedBatch, ordinal: int, rewrite: _SliceRewrite) -> None:
        """The long way, for batches that the kernel does not take, and for errors."""
        header, (survivors, rule, _) = batch.header, rewrite
        if header.next_offset > rule.end_offset:
            raise StoreCorruptError(
                "a batch reaches beyond its slice; keep the object and find out what changed it",
                base_offset=header.base_offset,
                end_offset=rule.end_offset,
            )
        if header.is_control:
            self._rewrite_marker(batch, ordinal, rewrite)
            return
        is_kept = False
        if header.next_offset <= rule.first_offset:
            clear_bits(survivors, ordinal, ordinal + header.records_count)
        elif header.records_count > 0:
            is_kept = self._filter(batch, survivors, ordinal, rule)
        if header.is_transactional:
            self._plan.transactions.with_data.on_data(header.producer_id, is_kept=is_kept)

    def _rewrite_marker(self, batch: PlacedBatch, ordinal: int, rewrite: _SliceRewrite) -> None:
        """Keep, stamp or drop a control batch. Its bits tell in the end whether it is in the output."""
        header, (survivors, rule, markers) = batch.header, rewrite
        clear_bits(survivors, ordinal, ordinal + header.records_count)
        marker = EndTransactionMarker.read(batch.buffer, batch.position, header)
        fate, aborted, is_data_kept = MarkerFate.STAYS, None, None
        if marker is not None or header.records_count == 0:
            is_data_kept = self._plan.transactions.with_data.on_marker(header.producer_id)
            fate = self._rule.marker_fate(header, is_data_kept=is_data_kept)
        if header.next_offset <= rule.first_offset or header.records_count == 0:
            return
        if marker is not None:
            aborted = markers.take(header, marker.control_type, has_data=is_data_kept is not None)
        if fate is MarkerFate.GOES:
            return
        set_bits(survivors, ordinal, ordinal + header.records_count)
        if aborted is not None:
            self._aborted.append(aborted)
        if fate is MarkerFate.GETS_HORIZON and self._rule.stamp_ms is not None:
            self._stamp_marker(batch, self._rule.stamp_ms)
        else:
            self._keep(batch)

    def _stamp_marker(self, batch: PlacedBatch, horizon_ms: int) -> None:
        self._flush()
        payload = records_payload(batch.buffer, batch.position, batch.header)
        stamped = with_horizon(payload, batch.header, horizon_ms)
        self._tally.add(stamped, 0, parse_header(stamped), batch.header.records_count)
        self._writer.append(stamped)

    def _filter(self, batch: PlacedBatch, survivors: bytearray, ordinal: int, rule: BatchFilter) -> bool:
        """Returns whether a record of the batch stays."""
        header = batch.header
        first_delta = max(0, rule.first_offset - header.base_offset)
        position = _Position(ordinal, first_delta, header.last_offset_delta + 1, first_delta > 0)
        bits = bits_between(survivors, ordinal, ordinal + header.records_count)
        if bits == 0:
            return False
        if is_aborted(rule.aborted, header):
            raise StoreCorruptError(
                "the key stream of a slice has records of an aborted transaction; keep the object and find"
                " out what changed it",
                base_offset=header.base_offset,
                producer_id=header.producer_id,
            )
        keeps_all = bits.bit_count() == header.records_count and not position.is_clipped
        drops = rule.drops_tombstones(header)
        may_stamp = rule.new_horizon_ms(header, has_tombstones=rule.has_tombstones) is not None
        if keeps_all and not (drops or may_stamp):
            self._keep(batch)
            return True
        # The reader proves the checksum of the slice, which was built from proved batches.
        payload = records_payload(batch.buffer, batch.position, header)
        copied = _copied(payload, header, survivors, position, drops=drops)
        _require_planned(copied, bits.bit_count(), header, position)
        self._tombstones_removed += copied.dropped_tombstone_count
        if position.is_clipped or copied.dropped_tombstone_count:
            clear_dropped(
                payload,
                header.records_count,
                survivors,
                ordinal,
                first_offset_delta=position.first_offset_delta,
                end_offset_delta=position.end_offset_delta,
                drop_tombstones=drops,
            )
        if copied.count == 0:
            return False
        new_horizon_ms = rule.new_horizon_ms(header, has_tombstones=may_stamp and copied.tombstone_count > 0)
        if new_horizon_ms is not None:
            shift = timestamp_shift(header, new_horizon_ms)
            copied = _copied(payload, header, survivors, position, drops=drops, timestamp_shift=shift)
            self._append_rebuilt(header, copied, new_horizon_ms)
        elif drops:
            # No tombstone is left. The base timestamp stays, and with it the meaning of the deltas.
            without_horizon = header._replace(attributes=header.attributes & ~DELETE_HORIZON_BIT)
            self._append_rebuilt(without_horizon, copied, None)
        elif copied.count == header.records_count:
            self._keep(batch)
        else:
            self._append_rebuilt(header, copied, None)
        return True

    def _append_rebuilt(self, header: BatchHeader, copied: CopiedRecords, new_horizon_ms: int | None) -> None:
        self._flush()
        batch = rebuild_batch(
            header,
            copied.payload,
            records_count=copied.count,
            max_timestamp=rebuilt_max_timestamp(header, copied.max_timestamp_delta, new_horizon_ms),
            delete_horizon_ms=new_horizon_ms,
        )
        self._tally.add(batch, 0, parse_header(batch), copied.count, (copied.first_delta, copied.last_delta))
        self._writer.append(batch, payload=copied.payload)

    def _keep(self, batch: PlacedBatch) -> None:
        self._tally.add(batch.buffer, batch.position, batch.header, batch.header.records_count)
        part = memoryview(batch.buffer)[batch.position : batch.end_position]
        self._append(part)

    def _append(self, data: Buffer) -> None:
        """Give batches to the writer, now or with others."""
        if len(data) >= _GATHERED_BYTES:
            self._flush()
            self._writer.append(data)
            return
        # A copy: as a view it would keep the buffer that it lies in.
        self._waiting.append(bytes(data))
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= _GATHERED_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.append(b"".join(self._waiting))
            self._waiting, self._waiting_bytes = [], 0


def _copied(
    payload: Buffer,
    header: BatchHeader,
    survivors: bytearray,
    position: _Position,
    *,
    drops: bool,
    timestamp_shift: int = 0,
) -> CopiedRecords:
    return copy_records(
        payload,
        header.records_count,
        survivors,
        position.first_ordinal,
        first_offset_delta=position.first_offset_delta,
        end_offset_delta=position.end_offset_delta,
        drop_tombstones=drops,
        timestamp_shift=timestamp_shift,
    )


def _require_planned(
    copied: CopiedRecords, planned_count: int, header: BatchHeader, position: _Position
) -> None:
    """Require that the copied records are those of phase 1; of a clipped batch, at most those."""
    count = copied.count + copied.dropped_tombstone_count
    if count > planned_count or (count < planned_count and not position.is_clipped):
        raise StoreCorruptError(
            "the records of a batch differ from the plan; its slice and key stream contradict each other",
            base_offset=header.base_offset,
            planned_count=planned_count,
            count=count,
        )
