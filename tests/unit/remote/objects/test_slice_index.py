"""An index without producers and transactions is known by its bytes."""

from __future__ import annotations

import pytest

from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.log.producers.producer_state_entry import BatchMetadata, ProducerStateEntry
from stratalog.remote.objects.slice_index import SliceIndex, encode_slice_index, is_plain_index
from stratalog.segment.indexes.transaction_index import AbortedTransaction

PLAIN = SliceIndex(300, (0, 100), (7, 9), (1000, 2000))


def producers() -> bytes:
    entry = ProducerStateEntry(producer_id=1, epoch=0, batches=(BatchMetadata(5, 9, 2, 1000),))
    return ProducerSnapshot(10, (entry,)).to_bytes()


@pytest.mark.parametrize("index", [PLAIN, SliceIndex(0, (), (), ())])
def test_an_index_without_producers_and_transactions_is_plain(index: SliceIndex) -> None:
    assert is_plain_index(encode_slice_index(index))


@pytest.mark.parametrize(
    "index",
    [
        SliceIndex(300, (0,), (7,), (1000,), producer_snapshot=producers()),
        SliceIndex(300, (0,), (7,), (1000,), producers_since=3),
        SliceIndex(300, (0,), (7,), (1000,), aborted=(AbortedTransaction(1, 2, 3, 4),)),
    ],
)
def test_any_other_index_is_not_plain(index: SliceIndex) -> None:
    assert not is_plain_index(encode_slice_index(index))


def test_bytes_that_contradict_themselves_are_not_plain() -> None:
    data = encode_slice_index(PLAIN)
    for size in range(len(data)):
        assert not is_plain_index(data[:size])
    for position in (0, 4, 8, 12, len(data) - 16, len(data) - 1):
        changed = bytearray(data)
        changed[position] ^= 1
        assert not is_plain_index(bytes(changed)), position
