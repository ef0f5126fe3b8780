"""The files of the cache on disk: one for each range of an object.

    NAME   the object's key with ~ for /, then ~START~END: twenty digits each, the range in the object
    FILE   magic (8 bytes), CRC-32C of the name and the data (u32), zero (u32), data (END - START bytes)

The CRC covers the name, so a file that was renamed, copied from elsewhere, cut off or changed is not taken
for the range.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from stratalog.remote.objects.fixed_layout import FixedLayout
from stratalog.remote.objects.object_format import crc_of

MAGIC = b"SLrange1"
HEADER = FixedLayout(("magic", "8s"), ("crc", "I"), ("reserved", "I"))
_NAME = re.compile(r"(?P<key>[^~]+(?:~[^~]+)*)~(?P<start>[0-9]{20})~(?P<end>[0-9]{20})")


class FileRange(NamedTuple):
    """Bytes [start, end) of the object with this key, in a file."""

    key: str
    start: int
    end: int

    @property
    def file_name(self) -> str:
        return f"{self.key.replace('/', '~')}~{self.start:020}~{self.end:020}"

    @property
    def file_bytes(self) -> int:
        return HEADER.size_bytes + self.end - self.start

    @staticmethod
    def of_file_name(name: str) -> FileRange | None:
        """The range that a name tells; None for any other name."""
        found = _NAME.fullmatch(name)
        if found is None or int(found["start"]) >= int(found["end"]):
            return None
        return FileRange(found["key"].replace("~", "/"), int(found["start"]), int(found["end"]))


def encode_header(one: FileRange, data: bytes) -> bytes:
    """The bytes of the file before `data`."""
    return HEADER.pack(MAGIC, crc_of(data, crc_of(one.file_name.encode())), 0)


def decode_file(one: FileRange, contents: bytes) -> bytes | None:
    """The data in a file; None if it is not what was written for this range."""
    if len(contents) != one.file_bytes:
        return None
    data = contents[HEADER.size_bytes :]
    return data if contents[: HEADER.size_bytes] == encode_header(one, data) else None
