"""Batches as a broker can have them whose topic was just created: what an export changes in them.

The leader epoch becomes 0, that of a topic that was just created. A higher one would be above the broker's
own: its replicas and consumers would take its next batches for a leader's that was deposed, and cut or skip.

Producer ids are raised by 2^48. A cluster hands them out from 0 on, so those of another one come again; a
producer that got one would be taken for the old one, and a batch of its answered as one that came before,
without being stored. The state of producers is in batches and not only in snapshots: a replica learns it from
what it fetches. Nobody hands out so many, so what was raised meets nothing; and as all are raised by as much,
no two become one. Transactions keep their markers, because these have producer ids as well.

The checksum covers the producer id and not the epoch. What has a producer is proved, and summed anew.
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
    """The same batches for a topic that was just created. `keeps_producer_ids`: in the cluster that has
    handed them out.

    Raises CorruptRecordError where one is none, InvalidRequestError for a producer id that is too high.
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
