"""The key of a control record, which gives its type, in Kafka's format.

    version int16 = 0 | type int16

Later versions may append fields. Types 0 and 1 end a transaction (see `end_transaction_marker`). Kafka writes
the others to its own metadata log; a log of ours keeps them and gives them no meaning.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.record.record import Record

_STRUCT = struct.Struct(">hh")
_NAMES = ("abort", "commit")


class ControlKey(NamedTuple):
    """Version and type, both at least 0. `control_type` may be one that has no name yet."""

    version: int
    control_type: int

    @staticmethod
    def parse(record: Record) -> ControlKey:
        """Read the key of a control record. Raises CorruptRecordError."""
        encoded = record.key or b""
        if len(encoded) >= _STRUCT.size:
            key = ControlKey._make(_STRUCT.unpack_from(encoded))
            if key.version >= 0 and key.control_type >= 0:
                return key
        raise CorruptRecordError(
            "a control record's key has no valid version and type; find out which program wrote it",
            offset=record.offset,
        )

    @property
    def name(self) -> str:
        """Kafka's name of the type if it ends a transaction, otherwise `control_type_` and its number."""
        is_known = self.control_type < len(_NAMES)
        return _NAMES[self.control_type] if is_known else f"control_type_{self.control_type}"

    def pack(self) -> bytes:
        return _STRUCT.pack(*self)
