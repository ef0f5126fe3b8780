"""Header and footer of the object file: slices of many partitions in one immutable object.

docs/formats/object_file.md has the layout of the whole file, the reasons for its order, the rules for
versions and a worked example; tests compare it with this code. `directory_codec`, `key_stream` and
`slice_index` have the parts between header and footer.

Header and footer each have a CRC-32C over their preceding bytes. The directory's is in the footer and in the
commit; those of slices, key streams and indexes are in the directory; a batch has its own. Only the padding
before the directory is not covered.

Pure functions of bytes; everything here is immutable and thread-safe.
"""

from __future__ import annotations

import dataclasses
import enum
from uuid import UUID

from stratalog.base.errors import StoreCorruptError, StoreNotUsableError
from stratalog.record.native.kernels import crc32c
from stratalog.remote.objects.fixed_layout import ALIGNMENT_BYTES, Buffer, FixedLayout
from stratalog.remote.objects.object_ref import ObjectRef, birth_of, format_object_name

FORMAT_VERSION = 1
READER_VERSION = 1

HEADER_MAGIC = b"\x89STRATA\n"
"""Not text, and damaged by tools that convert text."""
FOOTER_MAGIC = HEADER_MAGIC[::-1]

HEADER = FixedLayout(
    ("magic", "8s"),
    ("format_version", "H"),
    ("reader_version", "H"),
    ("header_bytes", "I"),
    ("store_id", "16s"),
    ("object_uuid", "16s"),
    ("birth", "Q"),
    ("epoch", "q"),
    ("shard", "I"),
    ("kind", "I"),
    ("flags", "I"),
    ("input_count", "I"),
)
INPUT = FixedLayout(("birth", "Q"), ("uuid", "16s"))
HEADER_END = FixedLayout(("reserved", "I"), ("header_crc", "I"))
FOOTER = FixedLayout(
    ("directory_position", "Q"),
    ("directory_bytes", "Q"),
    ("key_streams_end", "Q"),
    ("data_position", "Q"),
    ("object_bytes", "Q"),
    ("directory_crc", "I"),
    ("format_version", "H"),
    ("reader_version", "H"),
    ("flags", "I"),
    ("footer_crc", "I"),
    ("magic", "8s"),
)

_FOOTER_CRC_POSITION = FOOTER.positions["footer_crc"]


class ObjectKind(enum.IntEnum):
    """The kinds of objects, by their writer. The numbers are those of the file."""

    UPLOAD = 1
    REPLACEMENT = 2


_KINDS = frozenset(ObjectKind)
_CRC_BYTES = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ObjectHeader:
    """The writer of an object; with the directory, enough to rebuild the bucket's metadata."""

    store_id: UUID
    shard: int
    epoch: int
    """The writer's epoch; 0 if it had none."""
    kind: ObjectKind
    name: str
    """`BIRTH-UUID`; it identifies a copy under another key."""
    inputs: tuple[str, ...] = ()
    """Names of the objects that a replacement was made from; none for an upload."""


def crc_of(data: Buffer, crc: int = 0) -> int:
    """CRC-32C of `data`, continued from `crc`."""
    return crc32c(data, crc)


def header_size_bytes(input_count: int) -> int:
    """The size of a header with `input_count` inputs; slice data begin behind it."""
    return HEADER.size_bytes + input_count * INPUT.size_bytes + HEADER_END.size_bytes


def encode_header(header: ObjectHeader) -> bytes:
    """The first bytes of an object."""
    # An upload is made from local segments, a replacement from objects.
    assert (header.kind is ObjectKind.REPLACEMENT) == bool(header.inputs)
    size_bytes = header_size_bytes(len(header.inputs))
    assert size_bytes % ALIGNMENT_BYTES == 0
    fixed = HEADER.pack(
        HEADER_MAGIC,
        FORMAT_VERSION,
        READER_VERSION,
        size_bytes,
        header.store_id.bytes,
        _uuid_of(header.name).bytes,
        birth_of(header.name),
        header.epoch,
        header.shard,
        header.kind,
        0,
        len(header.inputs),
    )
    covered = fixed + b"".join(INPUT.pack(birth_of(name), _uuid_of(name).bytes) for name in header.inputs)
    covered += HEADER_END.pack(0, 0)[: HEADER_END.positions["header_crc"]]
    return covered + crc_of(covered).to_bytes(4, "little")


def decode_header(data: Buffer) -> ObjectHeader:
    """The header at the start of `data`.

    Raises StoreCorruptError, StoreNotUsableError (a newer format).
    """
    if len(data) < header_size_bytes(0):
        raise _corrupt("the header of an object is cut off", size_bytes=len(data))
    magic, _, reader_version, size_bytes, store_id, uuid, birth, epoch, shard, kind, flags, count = (
        HEADER.unpack(data)
    )
    if magic != HEADER_MAGIC:
        raise _corrupt("this is not an object file: its magic bytes are wrong", found=magic.hex())
    if reader_version > FORMAT_VERSION or flags != 0:
        raise StoreNotUsableError(
            "this object file has a newer format; use a newer version of the software",
            reader_version=reader_version,
            known_version=FORMAT_VERSION,
            flags=flags,
        )
    view = memoryview(data)[:size_bytes]
    is_sound = (
        len(view) == size_bytes == header_size_bytes(count)
        and crc_of(view[:-_CRC_BYTES]) == int.from_bytes(view[-_CRC_BYTES:], "little")
        and kind in _KINDS
        and (kind == ObjectKind.REPLACEMENT) == bool(count)
    )
    if not is_sound:
        raise _corrupt("the header of an object fails its checksum", size_bytes=size_bytes)
    positions = range(HEADER.size_bytes, size_bytes - HEADER_END.size_bytes, INPUT.size_bytes)
    inputs = [INPUT.unpack(view, position) for position in positions]
    return ObjectHeader(
        store_id=UUID(bytes=store_id),
        shard=shard,
        epoch=epoch,
        kind=ObjectKind(kind),
        name=format_object_name(birth, UUID(bytes=uuid)),
        inputs=tuple(format_object_name(birth, UUID(bytes=uuid)) for birth, uuid in inputs),
    )


def encode_footer(ref: ObjectRef) -> bytes:
    """The last bytes of an object."""
    covered = FOOTER.pack(
        ref.directory_position,
        ref.directory_bytes,
        ref.key_streams_end,
        ref.data_position,
        ref.size_bytes,
        ref.directory_crc,
        FORMAT_VERSION,
        READER_VERSION,
        0,
        0,
        FOOTER_MAGIC,
    )[:_FOOTER_CRC_POSITION]
    return covered + crc_of(covered).to_bytes(4, "little") + FOOTER_MAGIC


def decode_footer(data: Buffer, name: str) -> ObjectRef:
    """The reference of the object `name`, from its last `FOOTER.size_bytes` bytes.

    Raises StoreCorruptError, StoreNotUsableError (a newer format).
    """
    if len(data) != FOOTER.size_bytes:
        raise _corrupt("the footer of an object is cut off", name=name)
    (
        directory_position,
        directory_bytes,
        key_streams_end,
        data_position,
        object_bytes,
        directory_crc,
        _,
        reader_version,
        flags,
        footer_crc,
        magic,
    ) = FOOTER.unpack(data)
    if magic != FOOTER_MAGIC:
        raise _corrupt("this is not an object file: its magic bytes are wrong", found=magic.hex())
    if crc_of(memoryview(data)[:_FOOTER_CRC_POSITION]) != footer_crc:
        raise _corrupt("the footer of an object fails its checksum", name=name)
    if reader_version > FORMAT_VERSION or flags != 0:
        raise StoreNotUsableError(
            "this object file has a newer format; use a newer version of the software",
            reader_version=reader_version,
            known_version=FORMAT_VERSION,
            flags=flags,
        )
    directory_end = directory_position + directory_bytes
    places = (
        0,
        data_position,
        directory_position,
        directory_end,
        key_streams_end,
        object_bytes - FOOTER.size_bytes,
    )
    if sorted(places) != list(places) or directory_position % ALIGNMENT_BYTES != 0:
        raise _corrupt("the footer of an object gives places out of order", name=name)
    return ObjectRef(
        name=name,
        size_bytes=object_bytes,
        data_position=data_position,
        directory_position=directory_position,
        directory_bytes=directory_bytes,
        key_streams_end=key_streams_end,
        directory_crc=directory_crc,
    )


def _uuid_of(name: str) -> UUID:
    return UUID(name.partition("-")[2])


def _corrupt(message: str, **fields: object) -> StoreCorruptError:
    return StoreCorruptError(message + "; keep the object and find out what changed it", **fields)
