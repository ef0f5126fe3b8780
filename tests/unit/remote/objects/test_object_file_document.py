"""docs/formats/object_file.md is what the code does: its tables of fields, and the bytes of its example."""

from __future__ import annotations

import re
import struct
from uuid import UUID

import pytest

from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.objects import directory_codec, key_stream, object_format, slice_index
from stratalog.remote.objects.directory_codec import decode_directory
from stratalog.remote.objects.fixed_layout import FixedLayout
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.objects.object_format import ObjectHeader, ObjectKind, decode_footer, decode_header
from stratalog.remote.objects.object_writer import ObjectWriter, ObjectWriterSettings
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.objects.slice_entry import LeaderEpoch
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.decoded_records import decode_all
from tests.support.places import DOCS

DOCUMENT = (DOCS / "formats" / "object_file.md").read_text()
NAME = "00000000000000000007-aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
LAYOUTS: dict[str, FixedLayout] = {
    "HEADER": object_format.HEADER,
    "INPUT": object_format.INPUT,
    "HEADER_END": object_format.HEADER_END,
    "DIRECTORY_HEADER": directory_codec.DIRECTORY_HEADER,
    "ENTRY": directory_codec.ENTRY,
    "LEADER_EPOCH": directory_codec.LEADER_EPOCH,
    "OPEN_TRANSACTION": directory_codec.OPEN_TRANSACTION,
    "BLOCK_HEADER": key_stream.BLOCK_HEADER,
    "INDEX_HEADER": slice_index.INDEX_HEADER,
    "ABORTED": slice_index.ABORTED,
    "FOOTER": object_format.FOOTER,
}


def documented_fields(name: str) -> list[tuple[int, int, str]]:
    """Position, size and name of each field in the table that follows the layout's mark."""
    _, _, rest = DOCUMENT.partition(f"<!-- layout: {name} -->\n")
    table = rest.partition("\n\n")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", table, re.MULTILINE)
    return [(int(position), int(size), field) for position, size, field in rows]


def documented_example() -> bytes:
    """The bytes of the hex dumps, which must follow each other without a gap."""
    data = bytearray()
    for position, row in re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+)$", DOCUMENT, re.MULTILINE):
        assert int(position, 16) == len(data)
        data += bytes.fromhex(row)
    return bytes(data)


def written_example() -> bytes:
    """The object that the document describes in words."""
    filesystem = MemoryFileSystem()
    filesystem.make_directories("/spool")
    header = ObjectHeader(
        store_id=UUID("11111111-2222-4333-8444-555555555555"),
        shard=0,
        epoch=3,
        kind=ObjectKind.UPLOAD,
        name=NAME,
    )
    record = Record(42, 1_700_000_000_000, b"user-1", b"hello")
    with ObjectWriter(filesystem, header, ObjectWriterSettings(spool_directory="/spool")) as writer:
        topic_id = UUID("00112233-4455-4677-8899-aabbccddeeff")
        hashing = KeyHashing(bytes(range(16)))
        writer.begin_slice(topic_id, "users", 5, base_offset=42, key_hashing=hashing)
        writer.append(encode_batch([record], base_offset=42, leader_epoch=3))
        writer.end_slice(SliceEnd(43, leader_epochs=(LeaderEpoch(3, 42),)))
        return b"".join(bytes(part) for part in writer.finish().parts)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_tables_are_those_of_the_code(name: str) -> None:
    layout = LAYOUTS[name]
    expected = [
        (layout.positions[field], struct.calcsize("<" + code), field) for field, code in layout.fields
    ]
    assert documented_fields(name) == expected


def test_every_layout_of_the_format_is_documented() -> None:
    modules = (object_format, directory_codec, key_stream, slice_index)
    found = {
        name for module in modules for name, value in vars(module).items() if isinstance(value, FixedLayout)
    }
    assert found == set(LAYOUTS)


def test_the_example_is_what_is_written() -> None:
    assert written_example().hex(" ") == documented_example().hex(" ")


def test_the_example_can_be_read() -> None:
    data = documented_example()
    ref = decode_footer(data[-object_format.FOOTER.size_bytes :], NAME)
    assert ref.size_bytes == len(data)
    assert decode_header(data).name == NAME
    (entry,) = decode_directory(data[ref.directory_position :][: ref.directory_bytes])
    assert (entry.topic, entry.partition, entry.base_offset, entry.end_offset) == ("users", 5, 42, 43)
    batches = data[entry.data_position : entry.data_end_position]
    assert decode_all(batches) == [Record(42, 1_700_000_000_000, b"user-1", b"hello")]
    assert f"up to byte {entry.data_end_position}," in DOCUMENT
