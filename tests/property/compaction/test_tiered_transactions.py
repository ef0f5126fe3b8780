"""Transactions in the object store: what a reader of committed records gets from there, whatever lies in
which slice, against a history that was only written down. Slices are also carried into others, as a merge of
small objects does.

The reader leaves out what `aborted_transactions` says by the rule that Kafka's consumer goes by; the history
knows of each record how its transaction ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.record.batch import batches, decode
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.object_directory import read_slice_index
from stratalog.remote.objects.slice_entry import joined_epochs
from stratalog.remote.read.object_reads import RemoteReaderSettings
from stratalog.remote.read.remote_reader import RemoteReader
from tests.support.compaction.carried_slices import carry
from tests.support.compaction.key_streams import require_key_streams
from tests.support.logs.sampling import examples_of
from tests.support.tiered.inline_reads import inline_reads
from tests.support.tiered.tiered_site import TieredSite
from tests.support.tiered.transaction_history import PRODUCERS, STEPS, Step, TransactionHistory

SMALL = RemoteReaderSettings(
    first_bytes=64, chunk_bytes=128, read_ahead_bytes=256, data_cache_bytes=512, index_cache_bytes=2048
)


def consumed(data: FetchData, offset: int) -> list[int]:
    """Offsets that Kafka's consumer hands out of a fetch at `read_committed`."""
    waiting = sorted(data.aborted_transactions, key=lambda one: one.first_offset)
    aborted: set[int] = set()
    found: list[int] = []
    for position, header in batches(data.batches):
        while waiting and waiting[0].first_offset <= header.last_offset:
            aborted.add(waiting.pop(0).producer_id)
        if header.is_control:
            aborted.discard(header.producer_id)
            continue
        if header.is_transactional and header.producer_id in aborted:
            continue
        records = decode(data.batches, position)
        found += [record.offset for record in records if record.offset >= offset]
        assert all(record.value == b"%d" % record.offset for record in records)
    return found


def check_reads(
    reader: RemoteReader, history: TransactionHistory, max_bytes: int, first_offset: int = 0
) -> None:
    end_offset = history.log.offsets.tiered_end_offset
    for isolation, end in (
        (Isolation.HIGH_WATERMARK, end_offset),
        (Isolation.TXN_COMMITTED, history.stable_end(end_offset)),
    ):
        is_committed = isolation is Isolation.TXN_COMMITTED
        for offset in range(first_offset, end_offset + 1):
            data = reader.read(history.tip, offset, max_bytes, isolation)
            assert data.next_offset <= max(end, offset)
            assert data.next_offset > offset or offset >= end
            assert consumed(data, offset) == history.readable(
                offset, data.next_offset, is_committed=is_committed
            )


def check_slices(history: TransactionHistory, log_start: int = 0) -> None:
    """Every slice says what the history says of its range, and of its end. What it says of markers below log
    start does not count."""
    logs = history.logs
    for live in logs.metadata.state().partition(history.tip).slices:
        entry = live.entry
        opened = {(one.producer_id, one.first_offset) for one in history.open_at(live.end_offset)}
        assert set(entry.open_transactions) == opened
        assert entry.stable_end_offset == history.stable_end(live.end_offset)
        aborted = [
            (one.producer_id, one.first_offset, one.marker_offset, history.stable_end(one.marker_offset + 1))
            for one in sorted(history.transactions, key=lambda one: one.marker_offset)
            if one.is_aborted and max(live.base_offset, log_start) <= one.marker_offset < live.end_offset
        ]
        index = read_slice_index(logs.store, logs.metadata.layout, live.object_name, entry)
        assert [one for one in index.aborted if one.last_offset >= log_start] == aborted
        assert entry.has_aborted == bool(index.aborted)


@settings(max_examples=examples_of(2))
@given(
    STEPS,
    st.integers(150, 1000),
    st.sampled_from([0, 200, 1 << 20]),
    st.sampled_from([SMALL, RemoteReaderSettings()]),
    st.booleans(),
    st.integers(0, 1),
)
def test_committed_records_are_read_from_the_store_as_they_were_written(
    steps: list[Step],
    max_object_bytes: int,
    max_bytes: int,
    reader_settings: RemoteReaderSettings,
    loses_transaction_index: bool,
    stays_open: int,
) -> None:
    site = TieredSite(max_object_bytes=max_object_bytes)
    history = TransactionHistory(site.start())
    logs, log = history.logs, history.log
    history.play(steps)
    for producer_id in range(PRODUCERS - stays_open):
        history.end(producer_id, committed=producer_id == 1)
    logs.seal()
    if loses_transaction_index:
        # What is tiered outlives the disk: its damage must not become the truth.
        for name in site.disk.list_directory(log.local_log.directory):
            if name.endswith(".txnindex"):
                site.disk.unlink(f"{log.local_log.directory}/{name}")
    end_offset = history.upload()
    stable_end_offset = logs.metadata.state().partition(history.tip).stable_end_offset
    assert stable_end_offset == history.stable_end(end_offset)
    check_slices(history)
    log.retention.delete_local_segments(ignore_retention=True)
    check_reads(RemoteReader(inline_reads(logs.store, reader_settings), logs.metadata), history, max_bytes)


def data_of(history: TransactionHistory, slices: Sequence[LiveSlice]) -> bytes:
    """The bytes of slices, one behind the other."""
    logs = history.logs
    return b"".join(
        logs.store.get_range(
            logs.metadata.layout.data_key(live.object_name), live.entry.data_position, live.entry.data_bytes
        )
        for live in slices
        if live.entry.data_bytes
    )


def facts_of(slices: Sequence[LiveSlice]) -> list[object]:
    """The facts about all records of the slices, from their entries."""
    entries = [live.entry for live in slices]
    timed = [entry for entry in entries if entry.record_count]
    newest = max(timed, key=lambda entry: entry.max_timestamp)
    return [
        sum(entry.record_count for entry in entries),
        sum(entry.marker_count for entry in entries),
        sum(entry.tombstone_count for entry in entries),
        min(entry.min_timestamp for entry in timed),
        (newest.max_timestamp, newest.max_timestamp_offset),
        joined_epochs(entries),
        next(entry.last_batch for entry in reversed(entries) if entry.data_bytes),
        entries[-1].open_transactions,
    ]


@settings(max_examples=examples_of(2))
@given(
    STEPS,
    st.booleans(),
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.integers(0, 40),
    st.integers(0, 100),
)
def test_slices_with_transactions_are_carried_byte_for_byte(
    steps: list[Step], is_compacted: bool, counts: list[int], log_start: int, seed: int
) -> None:
    config = {"cleanup.policy": "compact"} if is_compacted else {}
    site = TieredSite(max_object_bytes=300)
    history = TransactionHistory(site.start(), is_unstable=True, config=config)
    logs = history.logs
    history.play(steps)
    end_offset = history.upload()
    log_start %= history.stable_end(end_offset) + 1
    history.log.retention.delete_local_segments(ignore_retention=True)
    logs.metadata.advance_log_start({history.tip: log_start}, epoch=logs.claimed.epoch, catalog_seq=None)
    random = Random(seed)
    for count in counts:
        slices = logs.metadata.state().partition(history.tip).slices
        first = random.randrange(len(slices)) if slices else 0
        taken = tuple(slices[first : first + count])
        if not taken:
            continue
        data, facts = data_of(history, taken), facts_of(taken)
        carry(logs, history.tip, taken, site.ids)
        (output,) = logs.metadata.state().partition(history.tip).slices[first : first + 1]
        assert (output.base_offset, output.end_offset) == (taken[0].base_offset, taken[-1].end_offset)
        if log_start <= taken[0].entry.base_offset:
            assert data_of(history, [output]) == data
            assert facts_of([output]) == facts
        else:
            assert data.endswith(data_of(history, [output])), "only batches below log start go"
        if any(live.entry.open_transactions or live.entry.marker_count for live in taken):
            assert output.entry.key_stream is None
        check_slices(history, log_start)
        require_key_streams(logs.store, logs.metadata, logs.catalog)
    reader = RemoteReader(inline_reads(logs.store, SMALL), logs.metadata)
    check_reads(reader, history, 200, log_start)
