"""Settings of a consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, TypedDict, cast, get_args

from stratalog.base.errors import InvalidRequestError, LogStoreError
from stratalog.client.consuming.position_finder import OnOffline
from stratalog.client.isolation_level import IsolationLevel, IsolationLike, isolation_level
from stratalog.client.position import EARLIEST, LATEST, Places, Positions, positions_of
from stratalog.client.retry import LONG_WORK, RetryPolicy
from stratalog.client.whole_number import INT32_MAX, INT64_MAX, shown, whole_number

if TYPE_CHECKING:
    from stratalog.record.native.consumer_records import Decoder

OffsetReset = Literal["error", "earliest", "latest"]


class ConsumedRange(NamedTuple):
    """The records to consume. `of` makes it of the arguments of a caller."""

    topic: str
    start: Positions = EARLIEST
    """The first record. Partitions that a mapping does not name begin at their log start."""
    until: Positions | None = None
    """The end, exclusive, looked up once, when the consumer begins. Partitions that a mapping does not name
    are not read. None: no end but that of `follows`."""
    follows: bool = True
    """Waits for new records at the end of the log. Otherwise the end as it was when the consumer began ends
    each partition in any case, or an earlier one if the log has lost records since."""
    partitions: tuple[int, ...] | None = None
    """Sorted. None: all partitions, with those that are added while a consumer without an end follows the
    topic."""
    topic_id: str = ""
    """The topic that is meant; empty: the one that has the name when the consumer begins."""

    @classmethod
    def of(
        cls,
        topic: str,
        *,
        start: Places = "earliest",
        until: Places | None = None,
        follow: bool | None = None,
        partitions: Iterable[int] | None = None,
        topic_id: str = "",
    ) -> Self:
        """The range that the arguments mean. `follow` of None is true without `until`. Raises
        InvalidRequestError for arguments that mean nothing."""
        for name, text in (("topic", topic), ("topic_id", topic_id)):
            _require(_is(text, str), name, text, "a text")
        _require(follow is None or _is(follow, bool), "follow", follow, "True, False, None")
        end = None if until is None else positions_of(until)
        follows = end is None if follow is None else follow
        if end == LATEST:
            # That end is the one of a consumer that does not follow.
            end, follows = None, False
        return cls(
            topic=topic,
            start=positions_of(start),
            until=end,
            follows=follows,
            partitions=None if partitions is None else _partition_numbers(partitions),
            topic_id=topic_id,
        )

    @property
    def is_endless(self) -> bool:
        """The consumer follows the topic for ever, with partitions that are added."""
        return self.follows and self.until is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The way to consume. Immutable."""

    isolation: IsolationLike = IsolationLevel.READ_UNCOMMITTED
    max_records: int | None = None
    """Ends after this many records, at least 1. None: no limit."""
    auto_offset_reset: OffsetReset = "error"
    """Where to go on if the position is outside of the log, such as after its records were deleted. "error"
    raises OffsetOutOfRangeError."""
    decode_key: Decoder = None
    """Makes the key of its bytes: "utf-8", or a function. None: bytes."""
    decode_value: Decoder = None
    """Makes the value of its bytes, as `decode_key` makes the key."""
    retry: RetryPolicy = LONG_WORK
    """How long a lost server is waited for."""
    metadata_max_age_s: float = 30.0
    """The time after which a consumer that follows looks for new partitions."""
    on_broken: Callable[[LogStoreError], None] | None = None
    """Called once each time a session breaks, or cannot begin, and is retried. Where a topic has several
    owners, each has a session, and `partitions` and `server` of the error are those that wait."""
    on_offline: OnOffline | None = None
    """Called for a partition whose log is offline or fails to read; the consumer goes on without it, for
    good. Without a callback the error is raised."""

    def __post_init__(self) -> None:
        """Refuse values that mean nothing. Raises InvalidRequestError."""
        isolation_level(self.isolation)
        if self.max_records is not None:
            whole_number("max_records", self.max_records, 1, INT64_MAX)
        resets = get_args(OffsetReset)
        _require(
            self.auto_offset_reset in resets, "auto_offset_reset", self.auto_offset_reset, ", ".join(resets)
        )
        for decode in (self.decode_key, self.decode_value):
            is_known = decode is None or decode == "utf-8" or callable(decode)
            _require(is_known, "decode", decode, '"utf-8", a function, None')
        age_s = self.metadata_max_age_s
        is_age = _is(age_s, int | float) and not _is(age_s, bool) and age_s > 0
        _require(is_age, "metadata_max_age_s", age_s, "seconds, more than 0")


class ConsumerOptions(TypedDict, total=False):
    """The fields of `ConsumerSettings`, as keyword arguments."""

    isolation: IsolationLike
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


def _partition_numbers(partitions: object) -> tuple[int, ...]:
    """The numbers, sorted, each once."""
    is_many = _is(partitions, Iterable) and not _is(partitions, str | bytes)
    _require(is_many, "partitions", partitions, "numbers of partitions")
    numbers = {whole_number("partition", one, 0, INT32_MAX) for one in cast(Iterable[object], partitions)}
    return tuple(sorted(numbers))


def _is(value: object, kind: type | UnionType) -> bool:
    """`isinstance` for an argument whose annotation the caller may have ignored."""
    return isinstance(value, kind)


def _require(is_sound: bool, name: str, value: object, allowed: str) -> None:
    if not is_sound:
        raise InvalidRequestError(
            f"{name} must be one of the allowed values", **{name: shown(value)}, allowed=allowed
        )
