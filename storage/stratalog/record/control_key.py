"""The key of a control record: what the record is about, in Kafka's format.

    version int16 = 0 | type int16

Later versions may append fields. Types 0 and 1 end a transaction, and are the only ones in the logs of topics
(see `end_transaction_marker`). The others are in Kafka's metadata log and its snapshots, several in a batch
and without a producer; what their values say is nobody's business here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.record.record import Record

_STRUCT = struct.Struct(">hh")
_NAMES = (
    "abort",
    "commit",
    "leader_change",
    "snapshot_header",
    "snapshot_footer",
    "kraft_version",
    "kraft_voters",
)


class ControlKey(NamedTuple):
    """`control_type` is 0 or above, and may be one that has no name yet."""

    version: int
    control_type: int

    @staticmethod
    def parse(record: Record) -> ControlKey:
        """Of a control record. Raises CorruptRecordError."""
        encoded = record.key or b""
        if len(encoded) >= _STRUCT.size:
            key = ControlKey._make(_STRUCT.unpack_from(encoded))
            if key.version >= 0 and key.control_type >= 0:
                return key
        raise CorruptRecordError(
            "a control record's key does not say what it is about; find out who wrote it",
            offset=record.offset,
        )

    @property
    def name(self) -> str:
        """What Kafka calls the type, or its number."""
        is_known = self.control_type < len(_NAMES)
        return _NAMES[self.control_type] if is_known else f"control_type_{self.control_type}"

    def pack(self) -> bytes:
        return _STRUCT.pack(*self)
