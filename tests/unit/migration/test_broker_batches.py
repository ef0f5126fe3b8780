"""An export changes some fields of batches, and no others."""

from __future__ import annotations

import pytest

from stratalog.base.errors import CorruptRecordError, InvalidRequestError
from stratalog.migration.broker_batches import PRODUCER_ID_RAISE, broker_batches
from stratalog.record.batch import batches, verify
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.header import HEADER_SIZE, BatchHeader
from tests.support.logs.plain_batches import batch


def of_producer(base_offset: int, producer_id: int) -> bytes:
    producer = BatchProducer(producer_id, 3, 8) if producer_id >= 0 else BatchProducer()
    return batch(3, base_offset=base_offset, leader_epoch=17, producer=producer)


def proved(data: bytes | bytearray) -> list[BatchHeader]:
    found = list(batches(data))
    for position, header in found:
        verify(data, position, header)
    return [header for _, header in found]


@pytest.mark.parametrize("keeps_producer_ids", [False, True])
def test_epochs_and_producer_ids_alone_are_changed(keeps_producer_ids: bool) -> None:
    data = of_producer(5, -1) + of_producer(8, 0) + of_producer(11, 7)
    raised = 0 if keeps_producer_ids else PRODUCER_ID_RAISE
    written = broker_batches(data, keeps_producer_ids=keeps_producer_ids)
    before, after = proved(data), proved(written)
    assert after == [
        header._replace(
            leader_epoch=0,
            producer_id=header.producer_id + (raised if header.producer_id >= 0 else 0),
            crc=changed.crc,
        )
        for header, changed in zip(before, after, strict=True)
    ]
    size = len(data) // 3
    for position in range(0, len(data), size):
        assert (
            written[position + HEADER_SIZE : position + size] == data[position + HEADER_SIZE :][: size - 61]
        )


def test_a_damaged_batch_gets_no_checksum_that_fits() -> None:
    data = bytearray(of_producer(0, 0))
    data[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        broker_batches(data, keeps_producer_ids=False)


def test_an_id_that_cannot_be_raised_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        broker_batches(of_producer(0, 2**63 - 1), keeps_producer_ids=False)
    assert (
        proved(broker_batches(of_producer(0, 2**63 - 1), keeps_producer_ids=True))[0].producer_id == 2**63 - 1
    )
