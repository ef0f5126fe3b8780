"""Deletion vectors of Delta Lake: files with the dead rows of data files.

    file      = version, { size, vector, checksum }
    version   = 1 byte: 1
    size      = 4 bytes, big-endian: bytes of the vector
    vector    = magic (4 bytes, little-endian), count of bitmaps (8 bytes), { high (4 bytes), Roaring bitmap }
    checksum  = 4 bytes, big-endian: CRC-32 of the vector

Row numbers are below 2^32 here, so there is one bitmap, with the high bits 0. A commit names a file by its
folder and a UUID, written in Z85.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from pyroaring import BitMap

from stratalog.base.errors import StoreCorruptError, UnsupportedOperationError
from stratalog.pipeline.lake.lake_table import DeadRows

_VERSION = b"\x01"
_SIZE = struct.Struct(">I")
_HEADER = struct.Struct("<IQI")
_MAGIC = 1681511377
_BASE85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_UUID_CHARACTERS = 20
FIRST_POSITION = len(_VERSION)
"""The place of the first vector in its file."""


def vector_path(directory: str, number: UUID) -> str:
    """The path of a file of vectors. The directory ends with a slash, or is empty."""
    return f"{directory}deletion_vector_{number}.bin"


def encoded_vector(dead: BitMap) -> bytes:
    """A file with one vector."""
    vector = _HEADER.pack(_MAGIC, 1, 0) + dead.serialize()
    return b"".join((_VERSION, _SIZE.pack(len(vector)), vector, _SIZE.pack(zlib.crc32(vector))))


def decoded_vector(data: bytes, fields: Mapping[str, object]) -> BitMap:
    """The dead rows of a vector between its size and its checksum. Raises StoreCorruptError with these
    fields."""
    size = len(data) - 2 * _SIZE.size
    vector = data[_SIZE.size : -_SIZE.size]
    if size < _HEADER.size or _SIZE.unpack_from(data)[0] != size:
        raise StoreCorruptError("a deletion vector has another size than the table says", **fields)
    if _SIZE.unpack_from(data, len(data) - _SIZE.size)[0] != zlib.crc32(vector):
        raise StoreCorruptError(
            "a deletion vector fails its checksum; make the table anew with --full", **fields
        )
    magic, count, high = _HEADER.unpack_from(vector)
    if magic != _MAGIC or count != 1 or high != 0:
        raise UnsupportedOperationError(
            "a deletion vector is for more rows than this software knows", **fields
        )
    return BitMap.deserialize(vector[_HEADER.size :])


def vector_descriptor(dead: DeadRows) -> dict[str, Any]:
    """The `deletionVector` of a commit."""
    directory, _, name = dead.path.rpartition("deletion_vector_")
    number = UUID(name.removesuffix(".bin"))
    encoded = base64.b85encode(number.bytes).translate(bytes.maketrans(_BASE85, _Z85)).decode()
    return {
        "storageType": "u",
        "pathOrInlineDv": directory.removesuffix("/") + encoded,
        "offset": dead.position,
        "sizeInBytes": dead.size_bytes,
        "cardinality": dead.row_count,
    }


def described_rows(descriptor: Mapping[str, Any]) -> DeadRows:
    """The place of the vector that a commit names. Raises UnsupportedOperationError if it is not in a file of
    the table."""
    text = descriptor["pathOrInlineDv"]
    if descriptor["storageType"] != "u":
        raise UnsupportedOperationError(
            "another program has written deletion vectors in its own way to the table; name another place",
            storage_type=descriptor["storageType"],
        )
    directory, encoded = text[:-_UUID_CHARACTERS], text[-_UUID_CHARACTERS:].encode()
    number = UUID(bytes=base64.b85decode(encoded.translate(bytes.maketrans(_Z85, _BASE85))))
    return DeadRows(
        path=vector_path(f"{directory}/" if directory else "", number),
        position=descriptor["offset"],
        size_bytes=descriptor["sizeInBytes"],
        row_count=descriptor["cardinality"],
    )
