"""Both ways to clean transactions, against an oracle that knows what was written."""

from __future__ import annotations

from array import array
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.record.batch import batches, decode
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch, rebuild_batch
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import DELETE_HORIZON_BIT, HEADER_SIZE, parse_header
from stratalog.record.native import pure_clean_kernels
from stratalog.record.native.aborted_spans import ordered
from stratalog.record.native.cleaned_batches import CleanRule
from stratalog.record.record import Record
from stratalog.segment.indexes.transaction_index import AbortedTransaction, TransactionIndex
from tests.support.cleaner.clean_ways import WAYS, native

both_ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
SEEDS = st.integers(0, 2**32)
END = 2**63 - 1


class Transaction(NamedTuple):
    """A transaction as a producer writes it: batches with a record each, and the marker, which may have a
    horizon."""

    offsets: list[int]
    marker_offset: int
    is_aborted: bool
    horizon_ms: int | None
    producer: tuple[int, int]
    """Its id and the marker's epoch."""


def some_transactions(random: Random) -> tuple[bytes, dict[int, list[Transaction]]]:
    """Transactions of some producers beside each other; the ends of transactions whose data is gone are among
    them."""
    parts: list[bytes] = []
    all_of: dict[int, list[Transaction]] = {producer_id: [] for producer_id in range(random.randrange(1, 40))}
    begun: dict[int, list[int]] = {producer_id: [] for producer_id in all_of}
    for offset in range(random.randrange(1, 200)):
        producer_id = random.choice(list(all_of))
        if random.random() < 0.6:
            record = Record(offset, 5, b"%d" % random.randrange(20), b"v")
            producer = BatchProducer(producer_id, 0, offset, is_transactional=True)
            parts.append(encode_batch([record], base_offset=offset, producer=producer))
            begun[producer_id].append(offset)
            continue
        kind, horizon_ms = random.choice(list(ControlType)), random.choice((None, 500, 5000))
        epoch = random.choice((0, 1, 2**15 - 1))
        marker = EndTransactionMarker(kind, 0).to_batch(producer_id, epoch, 5, base_offset=offset)
        if horizon_ms is not None:
            header = parse_header(marker)._replace(base_timestamp=horizon_ms)
            header = header._replace(attributes=header.attributes | DELETE_HORIZON_BIT)
            marker = rebuild_batch(header, marker[HEADER_SIZE:], records_count=1, max_timestamp=5)
        parts.append(marker)
        is_aborted = kind is ControlType.ABORT
        ended = Transaction(begun[producer_id], offset, is_aborted, horizon_ms, (producer_id, epoch))
        all_of[producer_id].append(ended)
        begun[producer_id] = []
    return b"".join(parts), all_of


@both_ways
@given(seed=SEEDS)
def test_transactions_go_as_a_whole_and_their_markers_behind_them(way: Any, seed: int) -> None:
    random = Random(seed)
    data, all_of = some_transactions(random)
    aborted = {
        (producer_id, one.offsets[0], one.marker_offset): one.offsets
        for producer_id, transactions in all_of.items()
        for one in transactions
        if one.is_aborted and one.offsets
    }
    gone = {offset for offsets in aborted.values() for offset in offsets}
    offset_map, transactions = way.new_map(), way.transactions()
    spans = ordered(aborted)
    assert way.put(offset_map, data, 0, END, spans) == len(data)
    told = {one.producer for ended in all_of.values() for one in ended if random.random() < 0.2}
    flat = [number for producer in sorted(told | {(3, 7)}) for number in producer]
    rule = CleanRule(1000, 9000, aborted=spans, kept_epochs=random.choice((flat, array("q", flat))))
    cleaned = way.clean(data, offset_map, rule, transactions)
    assert cleaned.end_position == len(data)

    kept = {header.base_offset: header for _, header in batches(cleaned.data)}
    newest: dict[bytes, int] = {}
    for position, header in batches(data):
        if not header.is_control and header.base_offset not in gone:
            newest[decode(data, position)[0].key or b""] = header.base_offset
    markers = {one.marker_offset: one for transactions in all_of.values() for one in transactions}
    assert {offset for offset in kept if offset not in markers} == set(newest.values())
    for offset, one in markers.items():
        horizon_ms = kept[offset].delete_horizon_ms if offset in kept else -1
        wanted_ms = 9000 if one.horizon_ms is None else one.horizon_ms if one.horizon_ms > 1000 else -1
        assert horizon_ms == (one.horizon_ms if one.offsets or one.producer in told else wanted_ms)
    dropped = [offset for offset in sorted(markers) if offset not in kept]
    assert cleaned.dropped_marker_count == len(dropped)
    assert cleaned.dropped_aborts == tuple(offset for offset in dropped if markers[offset].is_aborted)
    assert cleaned.aborted_count == len(gone)
    assert cleaned.has_waiting_marker == any(
        one.offsets and not set(one.offsets) & set(kept) and one.producer not in told
        for one in markers.values()
    )
    assert len(transactions) == sum(
        any(
            offset > max((one.marker_offset for one in ended), default=-1)
            for offset in data_of(data, producer)
        )
        for producer, ended in all_of.items()
    )


def data_of(data: bytes, producer_id: int) -> list[int]:
    return [
        header.base_offset
        for _, header in batches(data)
        if header.producer_id == producer_id and not header.is_control
    ]


@pytest.mark.parametrize("kernels", [pure_clean_kernels, *([native] if native else [])])
@given(
    entries=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 40)), max_size=40),
    start=st.integers(0, 90),
    size=st.integers(1, 90),
)
def test_spans_in_a_range_are_those_of_transactions_with_data_there(
    kernels: Any, entries: list[tuple[int, int, int]], start: int, size: int
) -> None:
    index = TransactionIndex(0)
    for producer_id, first_offset, length in sorted(entries, key=lambda entry: entry[1] + entry[2]):
        last_offset = first_offset + length
        if index.last is None or last_offset > index.last.last_offset:
            index.append(AbortedTransaction(producer_id, first_offset, last_offset, last_offset + 1))
    spans = kernels.aborted_spans_in(index.to_bytes(), start, start + size)
    assert spans == ordered(
        entry[:3]
        for entry in index
        if any(entry.first_offset <= at <= entry.last_offset for at in range(start, start + size))
    )
