"""`meta.properties` as we and Kafka write it."""

from __future__ import annotations

import pytest

from stratalog.base.errors import CorruptRecordError
from stratalog.manager.directories.meta_properties import (
    format_meta_properties,
    parse_meta_properties,
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
    with pytest.raises(CorruptRecordError):
        parse_meta_properties(text)
