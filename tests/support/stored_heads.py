"""Heads that a test writes by hand, or that earlier and newer software would have written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import crc32c

from stratalog.remote.json_document import encode_plain, format_json, stored_text

FIRST_VERSION_WITH_CHECKSUM = 5


def head_bytes(fields: Mapping[str, object]) -> bytes:
    """Bytes to store for a head of these fields. A checksum among them is left out. If the version has one,
    the right one is added, computed as other software would by the documentation.
    """
    text = format_json({name: value for name, value in fields.items() if name != "crc"}).encode()
    version = fields.get("write_version")
    if isinstance(version, int) and version >= FIRST_VERSION_WITH_CHECKSUM:
        before = text.removesuffix(b"}")
        text = before + f',"crc":{crc32c.crc32c(before)}}}'.encode()
    return encode_plain(text)


def head_fields(data: bytes) -> dict[str, Any]:
    """The fields of a stored head, the checksum included. Raises StoreCorruptError, ValueError."""
    return cast("dict[str, Any]", json.loads(stored_text(data, "head")))
