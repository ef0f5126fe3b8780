"""Records as callers of `Client.append` write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.client.errors import refusing_misfits

if TYPE_CHECKING:
    from stratalog.record.record import Record, RecordLike


class AppendRecord(NamedTuple):
    """A record to append. Text is sent as UTF-8."""

    key: str | bytes | None
    value: str | bytes | None
    """None: a tombstone."""
    headers: tuple[tuple[str, str | bytes | None], ...] = ()
    timestamp_ms: int | None = None
    """Milliseconds since 1970 UTC. None: the present time."""


def encodable(record: AppendRecord | RecordLike, now_ms: int) -> Record | RecordLike:
    """The record as encoders take it. Raises InvalidRequestError for text that is not Unicode."""
    if not isinstance(record, AppendRecord):
        return record
    from stratalog.record.record import Record

    return Record(
        offset=0,
        timestamp_ms=now_ms if record.timestamp_ms is None else record.timestamp_ms,
        key=_encoded(record.key),
        value=_encoded(record.value),
        headers=tuple((name, _encoded(value)) for name, value in record.headers),
    )


@refusing_misfits()
def _encoded(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
