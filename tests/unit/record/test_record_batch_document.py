"""docs/formats/record_batch.md is what the code does: its table of fields, and the bytes of its example."""

from __future__ import annotations

import re

from stratalog.record import header
from stratalog.record.batch import decode, verify
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from tests.support.places import DOCS

DOCUMENT = (DOCS / "formats" / "record_batch.md").read_text()
RECORDS = [
    Record(42, 1_700_000_000_000, b"k1", b"v1", (("h", b"x"),)),
    Record(43, 1_700_000_000_001, b"k1", None),
]


def example() -> bytes:
    rows = re.findall(r"^    ([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+)$", DOCUMENT, re.MULTILINE)
    data = b"".join(bytes.fromhex(row) for _, row in rows)
    assert [int(position, 16) for position, _ in rows] == list(range(0, len(data), 16))
    return data


def test_the_example_is_what_is_written_and_read() -> None:
    assert encode_batch(RECORDS, base_offset=42, leader_epoch=3) == example()
    assert decode(example()) == RECORDS
    verify(example(), 0, header.parse_header(example()))


def test_the_example_is_explained_byte_by_byte() -> None:
    rows = re.findall(r"^\| (\d+) \| `((?:[0-9a-f]{2} ?)+)` \|", DOCUMENT, re.MULTILINE)
    explained = b""
    for position, row in rows:
        assert int(position) == len(explained)
        explained += bytes.fromhex(row)
    assert explained == example()


def test_the_fields_lie_where_the_table_says() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", DOCUMENT, re.MULTILINE)
    fields = [(int(position), int(size), name) for position, size, name in rows]
    assert [name for _, _, name in fields] == list(header.BatchHeader._fields)
    constants = [getattr(header, f"{name.upper()}_POSITION") for _, _, name in fields]
    assert [position for position, _, _ in fields] == constants
    assert [position + size for position, size, _ in fields] == [*constants[1:], header.HEADER_SIZE]


def test_the_codecs_have_the_numbers_of_the_table() -> None:
    listed = ", ".join(f"{codec.value} {codec.name.lower()}" for codec in Codec)
    assert f"codec of the records section: {listed} |" in DOCUMENT
