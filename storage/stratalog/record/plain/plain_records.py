"""Plain records from a client's message to the records section of a batch, compiled if possible.

A protobuf message makes an object of each record, which takes hundreds of times the memory and the time of a
small record. So the messages `Records` of ``log.proto`` never become objects: these functions walk their
bytes, as protobuf would, and copy keys, values and headers once.

The functions come from the compiled module or from their twins, as ``kernels`` says. Both are safe on any
bytes: neither time nor memory exceeds a small multiple of the input and `max_bytes`.

encode_plain(message, now_ms, max_bytes) -> PlainSection
    The records with the offset deltas 0, 1, 2 and so on; those without a time get `now_ms`. Raises
    InvalidRequestError for another message, for no record and for a time before 1970, RecordTooLargeError if
    the section has more than `max_bytes`, before it is made.
place_plain(message, partition_count) -> KeyPlace
    The partition of the keys, by the rule of Kafka's clients (``key_partition``). Raises InvalidRequestError
    for another message; what follows a key of another partition is not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.record.native.kernels import NATIVE
from stratalog.record.plain.plain_section import KeyPlace, PlainSection

__all__ = ("KeyPlace", "PlainSection", "encode_plain", "place_plain")

if TYPE_CHECKING or not NATIVE:
    from stratalog.record.plain.pure_plain_records import encode_plain, place_plain
else:
    from stratalog.record.native._kernels import encode_plain, place_plain
