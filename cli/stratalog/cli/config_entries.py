"""Keys of a configuration as commands print them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratalog.cli.output import print_json, print_table, value_document

if TYPE_CHECKING:
    from stratalog.client import values


def print_entries(
    entries: Sequence[values.ConfigEntry], *, as_json: bool, with_synonyms: bool = False
) -> None:
    """Print value, source and update mode of each key; `with_synonyms`: and the values behind each."""
    if as_json:
        print_json([_document(entry) for entry in entries])
        return
    rows = [(entry.name, entry.value, entry.source.name, entry.update_mode) for entry in entries]
    if not with_synonyms:
        print_table(("KEY", "VALUE", "SOURCE", "UPDATE"), rows)
        return
    chains = [
        " > ".join(f"{synonym.name}={synonym.value} ({synonym.source.name})" for synonym in entry.synonyms)
        for entry in entries
    ]
    print_table(
        ("KEY", "VALUE", "SOURCE", "UPDATE", "SYNONYMS"),
        [(*row, chain) for row, chain in zip(rows, chains, strict=True)],
    )


def _document(entry: values.ConfigEntry) -> dict[str, object]:
    """The entry as JSON, with the sources in Kafka's words."""
    synonyms = [{**value_document(one), "source": one.source.name} for one in entry.synonyms]
    return {**value_document(entry), "source": entry.source.name, "synonyms": synonyms}
