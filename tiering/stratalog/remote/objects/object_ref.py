"""The reference to an object in a commit: enough to read its directory or either half of it with one ranged
GET.

A commit never lists slices; the object's own directory does. So the reference is as small for 5,000
partitions as for one. Positions are byte positions in the object, in file order:

    0 <= data_position <= directory_position
    directory_position + directory_bytes <= key_streams_end <= size_bytes
"""

from __future__ import annotations

import re
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import StoreCorruptError

_NAME = re.compile(r"\A[0-9]{20}-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
_BIRTH_DIGITS = 20


class ObjectRef(NamedTuple):
    """An object file as commits and checkpoints refer to it. Immutable."""

    name: str
    """`BIRTH-UUID`, without the prefix of its shard."""
    size_bytes: int
    data_position: int
    directory_position: int
    directory_bytes: int
    key_streams_end: int
    """Exclusive end of the key streams, which begin where the directory ends."""
    directory_crc: int
    """CRC-32C of the directory's bytes."""

    @property
    def birth(self) -> int:
        """The newest commit number that the writer knew when it began the object."""
        return birth_of(self.name)


def format_object_name(birth: int, uuid: UUID) -> str:
    """`BIRTH-UUID`: names sort by birth. `uuid` must never have been used before."""
    assert birth >= 0, "a birth is a commit number"
    return f"{birth:0{_BIRTH_DIGITS}d}-{uuid}"


def birth_of(name: str) -> int:
    """The birth in an object's name. Raises StoreCorruptError for any other name."""
    if not _NAME.match(name):
        raise StoreCorruptError(
            "this is not the name of an object file; keep the object and find out who wrote it", name=name
        )
    return int(name[:_BIRTH_DIGITS])
