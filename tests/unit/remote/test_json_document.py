"""Documents: round trips, and garbage that ends in StoreCorruptError and nothing else."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import StoreCorruptError
from stratalog.remote.json_document import (
    COMPRESSED_ABOVE_BYTES,
    JsonFields,
    decode_document,
    encode_document,
    to_text,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSON), st.integers(0, 6000))
def test_round_trip(document: dict[str, object], padding: int) -> None:
    document |= {"padding": "x" * padding, "format": "test", "read_version": 1}
    data = encode_document(document)
    assert decode_document(data, "test", format_name="test").values == document


def test_long_documents_are_zstd_and_short_ones_are_text() -> None:
    short = encode_document({"a": "x" * (COMPRESSED_ABOVE_BYTES - len('{"a":""}'))})
    assert json.loads(short)["a"][0] == "x"
    long = encode_document({"a": "x" * COMPRESSED_ABOVE_BYTES})
    assert json.loads(zstandard.ZstdDecompressor().decompress(long))["a"][0] == "x"


@given(st.binary(max_size=200))
def test_garbage(data: bytes) -> None:
    for candidate in (data, b"\x28\xb5\x2f\xfd" + data, zstandard.ZstdCompressor().compress(data)):
        try:
            decode_document(candidate, "test", format_name="test")
        except StoreCorruptError:
            pass


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"{}x",
        b"\xff",
        b"[" * 100_000,
        zstandard.ZstdCompressor(write_content_size=False).compress(b"{}"),
        zstandard.ZstdCompressor().compress(b"{}") + b"trailing",
    ],
)
def test_what_is_no_document(data: bytes) -> None:
    with pytest.raises(StoreCorruptError):
        decode_document(data, "test", format_name="test")


def test_a_bomb_is_not_unpacked() -> None:
    """A frame header that claims two GiB is refused before anything is unpacked."""
    claim = b"\x28\xb5\x2f\xfd\xe0" + (2 << 30).to_bytes(8, "little")
    with pytest.raises(StoreCorruptError):
        decode_document(claim, "test", format_name="test")


FIELDS = JsonFields(
    {
        "n": 5,
        "big": 1 << 63,
        "no": -1,
        "yes": True,
        "text": "t",
        "list": [1],
        "none": None,
        "float": 1.5,
        "uuid": "aaaaaaaa-0000-4000-8000-000000000001",
        "UUID": "AAAAAAAA-0000-4000-8000-000000000001",
    },
    "test",
)


def test_values_of_the_right_type() -> None:
    assert FIELDS.integer("n") == 5
    assert FIELDS.integer("no", minimum=-1) == -1
    assert FIELDS.flag("yes") is True
    assert FIELDS.text("text") == "t"
    assert FIELDS.items("list") == [1]
    assert FIELDS.uuid("uuid") == UUID("aaaaaaaa-0000-4000-8000-000000000001")
    assert FIELDS.optional_integer("none") is None
    assert FIELDS.optional_integer("missing") is None
    assert FIELDS.optional_fields("none") is None
    assert FIELDS.each("missing", to_text) == ()
    assert FIELDS.unknown({"n", "big"}).keys() == FIELDS.values.keys() - {"n", "big"}


@pytest.mark.parametrize("name", ["big", "no", "yes", "text", "list", "none", "float", "missing"])
def test_what_is_no_integer(name: str) -> None:
    with pytest.raises(StoreCorruptError) as caught:
        FIELDS.integer(name)
    assert str(caught.value.fields["what"]).endswith(f": {name}")


@pytest.mark.parametrize("name", ["n", "none", "list", "missing", "UUID", "text"])
def test_what_is_no_uuid(name: str) -> None:
    with pytest.raises(StoreCorruptError) as caught:
        FIELDS.uuid(name)
    assert str(caught.value.fields["what"]).endswith(f": {name}")


def test_what_is_of_another_type() -> None:
    for ask in (FIELDS.text, FIELDS.flag, FIELDS.items, FIELDS.fields):
        with pytest.raises(StoreCorruptError):
            ask("n")
    with pytest.raises(StoreCorruptError):
        FIELDS.each("n", to_text)


def test_a_message_shows_only_the_beginning_of_a_value() -> None:
    with pytest.raises(StoreCorruptError) as caught:
        JsonFields({"a": "x" * 10_000}, "test").integer("a")
    assert len(str(caught.value)) < 300
