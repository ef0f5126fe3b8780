"""Rewrites batches for a topic that was just created on a broker.

The leader epoch becomes 0, the epoch of a new topic. A higher one would exceed the broker's own: its replicas
and consumers would take the broker's next batches for those of a deposed leader, and cut or skip them.

Producer ids are raised by 2^48. Every cluster hands out ids from 0 on, so a new producer may get the id of an
old one, and the broker would answer its batch as a duplicate without storing it. Batches carry the state of
producers as well as snapshots do: a replica learns it from fetched batches. No cluster hands out so many ids,
so a raised one is unique, and distinct ids stay distinct. Markers carry producer ids too, so transactions
keep their markers.

The checksum covers the producer id and not the epoch, so a batch with a producer is proved and summed anew.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from stratalog.base.errors import InvalidRequestError
from stratalog.base.filesystem import Buffer
from stratalog.record.batch import batches, require_crc, stamp
from stratalog.record.header import ATTRIBUTES_POSITION, CRC_POSITION, PRODUCER_ID_POSITION

NEW_TOPIC_EPOCH = 0
PRODUCER_ID_RAISE = 2**48
_MAX_PRODUCER_ID = 2**63 - 1
_INT64 = struct.Struct(">q")
_UINT32 = struct.Struct(">I")


def broker_batches(data: Buffer, *, keeps_producer_ids: bool) -> bytearray:
    """The batches for a new topic. `keeps_producer_ids` is for the cluster that has handed out the ids.

    Raises CorruptRecordError for bytes that are no batch, InvalidRequestError for a too high producer id.
    """
    written = bytearray(data)
    view = memoryview(written)
    for position, header in batches(data):
        stamp(written, position, base_offset=header.base_offset, leader_epoch=NEW_TOPIC_EPOCH)
        if keeps_producer_ids or header.producer_id < 0:
            continue
        require_crc(data, position, header)
        producer_id = header.producer_id + PRODUCER_ID_RAISE
        if producer_id > _MAX_PRODUCER_ID:
            raise InvalidRequestError(
                "a producer id is too high to be raised above those of another cluster; export with"
                " --keep-producer-ids",
                producer_id=header.producer_id,
                base_offset=header.base_offset,
            )
        _INT64.pack_into(written, position + PRODUCER_ID_POSITION, producer_id)
        covered = view[position + ATTRIBUTES_POSITION : position + header.size_in_bytes]
        _UINT32.pack_into(written, position + CRC_POSITION, crc32c(covered))
    return written
