"""The results of the encoders of plain records, and their refusals."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.errors import InvalidRequestError, RecordTooLargeError

NO_RECORDS = "the records are no message `Records`; send them as the contract of the call says"
NO_NAME = "a header's name is not UTF-8; send it as a value"
NEGATIVE_TIMESTAMP = "a timestamp is not negative, leave it out for the server's time"


class PlainSection(NamedTuple):
    """Plain records, encoded without compression."""

    section: bytes
    records_count: int
    base_timestamp: int
    """The timestamp of the first record, in milliseconds."""
    max_timestamp: int


class KeyPlace(NamedTuple):
    """The partition of the keys of plain records."""

    partition: int | None
    """That of the first key; None without a key."""
    other_index: int | None = None
    """The place of the first record whose key belongs to another one; None if there is none."""
    other_partition: int | None = None


def require_plain(records_count: int, section_bytes: int, max_bytes: int) -> None:
    """Raise InvalidRequestError for plain records without a record, RecordTooLargeError if they become more
    than `max_bytes`."""
    if records_count == 0:
        raise InvalidRequestError("an append of plain records needs at least one record")
    if section_bytes > max_bytes:
        raise RecordTooLargeError(
            "the records become a batch that is larger than max.message.bytes; send fewer at once or raise"
            " the topic's limit",
            records_count=records_count,
            size_bytes=section_bytes,
            max_bytes=max_bytes,
        )
