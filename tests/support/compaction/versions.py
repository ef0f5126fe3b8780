"""An oracle of `compaction.strategy`, in plain Python: the version of a record, and the records that win."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from stratalog.record.record import Record

HEADER = "version"
STRATEGIES = ("offset", "timestamp", "header")
Place = tuple[int, int, int]
"""Records are compared by these: whether there is a version, the version, the offset."""


def random_versions(random: Random) -> tuple[tuple[str, bytes | None], ...]:
    """The headers of a record: mostly one with a version, some with none, with several or with others."""
    values: tuple[bytes | None, ...] = (None, b"", b"1234567", b"123456789")
    count = random.choice((0, 1, 1, 1, 1, 2))
    return tuple(
        (
            random.choice((HEADER, HEADER, HEADER, "versio", "versions")),
            random.choice(values)
            if random.random() < 0.15
            else random.choice((-(2**63) + 1, -1, 0, 1, 2, 255, 256, 2**63 - 1)).to_bytes(
                8, "big", signed=True
            ),
        )
        for _ in range(count)
    )


def place_of(record: Record, strategy: str) -> Place:
    """The place of a record among those of its key."""
    match strategy:
        case "timestamp":
            return 1, record.timestamp_ms, record.offset
        case "header":
            values = [value for name, value in record.headers if name == HEADER]
            if values and values[-1] is not None and len(values[-1]) == 8:
                return 1, int.from_bytes(values[-1], "big", signed=True), record.offset
            return 0, 0, record.offset
        case _:
            return 0, 0, record.offset


def winners(records: Iterable[Record], strategy: str) -> list[Record]:
    """The records that stay, in the order of their offsets; they all have keys."""
    best: dict[bytes | None, Record] = {}
    for record in records:
        rival = best.get(record.key, record)
        best[record.key] = max(rival, record, key=lambda one: place_of(one, strategy))
    return sorted(best.values(), key=lambda one: one.offset)
