"""The position of a table in its topic: the offsets that the table has, kept with the table.

A table's commit carries the position of its data, so both change together. It names the store and the topic
by their ids: a topic that was deleted and made again under its name is another one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from stratalog.base.errors import StoreCorruptError

POSITION_PROPERTY = "stratalog.position"
"""The name of the position among a table's properties."""
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePosition:
    """The records that a table is made of. Immutable."""

    refresh_id: str
    """The refresh that made this version of the table."""
    store_id: UUID
    topic: str
    topic_id: UUID
    time_ms: int
    """When the store's metadata was read, by the store's clock."""
    offsets: Mapping[int, int]
    """For each partition the offset behind the last record that was taken into account."""
    log_starts: Mapping[int, int]
    """For each partition the log start: no row lies below."""
    commits: Mapping[int, int]
    """For each shard of the topic the number of its newest commit."""
    encoding: str
    """How values were decoded; another encoding needs a full refresh."""
    delete_retention_ms: int = 0
    """How long the topic kept tombstones then; 0 in positions that do not say."""
    bad_files: tuple[str, ...] = ()
    """The files with records whose values could not be decoded."""
    bad_count: int = 0
    """Records in them."""

    def to_json(self) -> str:
        """The position as one line of JSON."""
        document = {
            **asdict(self),
            "version": _VERSION,
            "store_id": str(self.store_id),
            "topic_id": str(self.topic_id),
        }
        return json.dumps(document, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> TablePosition:
        """The position that `to_json` wrote. Raises StoreCorruptError for anything else."""
        try:
            document: dict[str, Any] = json.loads(text)
            version = document.pop("version")
            if version != _VERSION:
                raise StoreCorruptError(
                    "the position of the table has a version that this software does not know; update it",
                    version=version,
                    known_version=_VERSION,
                )
            document |= {name: UUID(document[name]) for name in ("store_id", "topic_id")}
            document |= {name: _by_number(document[name]) for name in ("offsets", "log_starts", "commits")}
            document["bad_files"] = tuple(document["bad_files"])
            return TablePosition(**document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreCorruptError(
                "the position of the table cannot be read; make the table anew with --full",
                position=text[:200],
            ) from error


def _by_number(given: Mapping[str, int]) -> dict[int, int]:
    return {int(number): int(value) for number, value in given.items()}
