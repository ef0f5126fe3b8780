"""Reads the fields of any document in a store."""

from __future__ import annotations

import json

from stratalog.remote.json_document import JsonFields, stored_text


def stored_fields(data: bytes, what: str) -> JsonFields:
    """The fields of a stored document, whatever its format. Raises StoreCorruptError, ValueError."""
    return JsonFields.of(json.loads(stored_text(data, what)), what)
