"""Keys of a configuration as commands print them."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.cli.output import enum_word, kafka_word, message_document, print_json, print_table
from stratalog.v1 import admin_pb2


def print_entries(
    entries: Sequence[admin_pb2.ConfigEntry], *, as_json: bool, with_synonyms: bool = False
) -> None:
    """Print value, source and update mode of each key; `with_synonyms`: and the values behind each."""
    if as_json:
        print_json([_document(entry) for entry in entries])
        return
    rows = [
        (
            entry.name,
            entry.value if entry.HasField("value") else None,
            _source(entry.source),
            _update_mode(entry),
        )
        for entry in entries
    ]
    if not with_synonyms:
        print_table(("KEY", "VALUE", "SOURCE", "UPDATE"), rows)
        return
    chains = [
        " > ".join(
            f"{synonym.name}={synonym.value} ({_source(synonym.source)})" for synonym in entry.synonyms
        )
        for entry in entries
    ]
    print_table(
        ("KEY", "VALUE", "SOURCE", "UPDATE", "SYNONYMS"),
        [(*row, chain) for row, chain in zip(rows, chains, strict=True)],
    )


def _update_mode(entry: admin_pb2.ConfigEntry) -> str:
    return enum_word(admin_pb2.ConfigUpdateMode.DESCRIPTOR, entry.update_mode)


def _source(source: admin_pb2.ConfigSource.ValueType) -> str:
    return kafka_word(admin_pb2.ConfigSource.DESCRIPTOR, source)


def _document(entry: admin_pb2.ConfigEntry) -> dict[str, object]:
    """The entry as JSON, with the sources in Kafka's words."""
    document = message_document(entry)
    document["value"] = entry.value if entry.HasField("value") else None
    document["source"] = _source(entry.source)
    document["synonyms"] = [
        {
            "name": synonym.name,
            "value": synonym.value,
            "source": _source(synonym.source),
        }
        for synonym in entry.synonyms
    ]
    return document
