"""`meta.properties` as we and Kafka write it."""

from __future__ import annotations

import pytest

from stratalog.base.errors import CorruptRecordError
from stratalog.manager.directories.meta_properties import (
    format_meta_properties,
    format_siblings,
    parse_meta_properties,
    parse_siblings,
)
from tests.support.places import GOLDEN

PROPERTIES = GOLDEN / "data" / "meta.properties"


def test_what_a_broker_wrote_is_read() -> None:
    assert parse_meta_properties(PROPERTIES.read_text()) == {
        "node.id": "1",
        "directory.id": "66OiJamjSDoWdGb695vWvA",
        "version": "1",
        "cluster.id": "DSWHrlNURCuvbJyNOrbyUQ",
    }


def test_what_is_written_is_read() -> None:
    properties = {"version": "1", "directory.id": "a=b", "store.id": ""}
    assert parse_meta_properties(format_meta_properties(properties)) == properties


@pytest.mark.parametrize(
    "text",
    ["", "version=1\n", "version=2\ndirectory.id=x\n", "directory.id=x\n", "x", "version=1\ndirectory.id=\n"],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(CorruptRecordError, match="another version"):
        parse_meta_properties(text)


def test_siblings_are_read_as_they_were_written() -> None:
    siblings = {
        "id-1_=": "/a b/c,d@e=f",
        "id,2@": "/p\nq\\/\u00e4",
        "3": b"/\xff".decode(errors="surrogateescape"),
    }
    text = format_siblings(siblings)
    assert text == "id-1_%3D@/a%20b/c%2Cd%40e%3Df,id%2C2%40@/p%0Aq%5C/%C3%A4,3@/%FF"
    assert parse_siblings(text) == siblings
    assert parse_siblings("") == {}
    for damaged in ("x", "@/a", "id@", "id@/a,y"):
        with pytest.raises(CorruptRecordError, match=r"sibling\.directories"):
            parse_siblings(damaged)
