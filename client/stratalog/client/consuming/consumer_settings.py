"""Settings of a consumer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict

from stratalog.base.errors import InvalidRequestError, LogStoreError
from stratalog.client.consuming.position_finder import OnOffline
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.position import Places
from stratalog.client.retry import RetryPolicy

if TYPE_CHECKING:
    from stratalog.record.native.consumer_records import Decoder

OffsetReset = Literal["error", "earliest", "latest"]


class ConsumedRange(NamedTuple):
    """The records to consume."""

    topic: str
    start: Places = "earliest"
    """The first record. Partitions that a mapping does not name begin at their log start."""
    until: Places | None = None
    """The end, exclusive, looked up once. Partitions that a mapping does not name are not read. None: no end.
    """
    partitions: Sequence[int] | None = None
    """None: all partitions, with those that are added while a consumer without an end follows the topic."""
    topic_id: str = ""
    """The topic that is meant; empty: the one that has the name when the consumer begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The way to consume. Immutable."""

    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    max_records: int | None = None
    """Ends after this many records, at least 1. None: no limit."""
    auto_offset_reset: OffsetReset = "error"
    """Where to go on if the position is outside of the log, such as after its records were deleted. "error"
    raises OffsetOutOfRangeError."""
    decode_key: Decoder = None
    """Makes the key of its bytes: "utf-8", or a function. None: bytes."""
    decode_value: Decoder = None
    """Makes the value of its bytes, as `decode_key` makes the key."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """How long a lost server is waited for."""
    metadata_max_age_s: float = 30.0
    """The time after which a consumer that follows looks for new partitions."""
    on_broken: Callable[[LogStoreError], None] | None = None
    """Called once each time the session breaks and is retried."""
    on_offline: OnOffline | None = None
    """Called for a partition whose log is offline or fails to read; the consumer goes on without it, for
    good. Without a callback the error is raised."""

    def __post_init__(self) -> None:
        for decode in (self.decode_key, self.decode_value):
            if isinstance(decode, str) and decode != "utf-8":
                raise InvalidRequestError('give "utf-8" or a function to decode', decode=decode)
        if self.max_records is not None and self.max_records < 1:
            raise InvalidRequestError("max_records must be at least 1", max_records=self.max_records)
        if self.auto_offset_reset not in ("error", "earliest", "latest"):
            raise InvalidRequestError(
                "auto_offset_reset is unknown",
                auto_offset_reset=self.auto_offset_reset,
                allowed="error, earliest, latest",
            )


class ConsumerOptions(TypedDict, total=False):
    """The fields of `ConsumerSettings`, as keyword arguments."""

    isolation: IsolationLevel
    max_records: int | None
    auto_offset_reset: OffsetReset
    decode_key: Decoder
    decode_value: Decoder
    retry: RetryPolicy
    metadata_max_age_s: float
    on_broken: Callable[[LogStoreError], None] | None
    on_offline: OnOffline | None


def consumer_settings(retry: RetryPolicy, decode: Decoder, options: ConsumerOptions) -> ConsumerSettings:
    """The settings of these options, with defaults for the retry policy and both decoders. Raises
    InvalidRequestError."""
    chosen: ConsumerOptions = {"retry": retry, "decode_key": decode, "decode_value": decode, **options}
    return ConsumerSettings(**chosen)
