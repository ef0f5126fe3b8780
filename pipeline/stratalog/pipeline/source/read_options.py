"""The options of the data source: their names, their forms and their defaults.

They are those of Spark's Kafka source where that has them. Names are case-insensitive. Light to import.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from stratalog.base.errors import InvalidConfigError
from stratalog.client.isolation_level import IsolationLevel
from stratalog.pipeline.option_names import flag_option, known_options, wrong_option
from stratalog.pipeline.service_options import SERVER, SERVICE_OPTIONS, ServiceOptions, parse_service
from stratalog.pipeline.sink.sink_options import STAGING_PREFIX
from stratalog.pipeline.source.schema import COLUMNS_BY_NAME

DEFAULT_MAX_PARTITION_BYTES = 128 << 20
DEFAULT_SNAPSHOT_LEASE_S = 3600
"""How long the objects of a snapshot stay unless the options say otherwise, where that can be had."""
DEFAULT_IDLE_POLL_MS = 1000
EARLIEST = -2
"""Kafka's number for the log start."""
LATEST = -1
"""Kafka's number for the end."""
DATA_LOSS = "failOnDataLoss"
"""The option of what becomes of a query if records are lost."""

_ISOLATION_NAMES = ("isolationLevel", "kafka.isolation.level")

OPTION_NAMES = (
    "store",
    "topic",
    "topicPattern",
    "partitions",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    DATA_LOSS,
    "includeHeaders",
    "columns",
    *_ISOLATION_NAMES,
    *SERVICE_OPTIONS,
    "snapshot",
    "lease",
    "maxPartitionBytes",
    "pushdown",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "idlePollMs",
)
"""All of them; docs/spark.md says what they mean."""

_ENDLESS = "not in a stream, which has no end"
_NOT_IN_STREAMS = {
    **dict.fromkeys(("endingOffsets", "endingTimestamp", "snapshot", "lease"), _ENDLESS),
    "pushdown": "not in a stream, which reads all records",
}
_MAX_OFFSETS, _MAX_BYTES = "maxOffsetsPerTrigger", "maxBytesPerTrigger"
_IDLE_POLL = "idlePollMs"
_NOT_IN_QUERIES = {
    **dict.fromkeys((_MAX_OFFSETS, _MAX_BYTES), "only in a stream, whose batches it bounds"),
    _IDLE_POLL: "only in a stream, which looks for new records",
}
_COLUMN_OPTIONS = ("columns", "includeHeaders")
_COMMIT = re.compile(r"(?:(\d+):)?(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetBound:
    """Where reading begins or ends in each partition. Immutable."""

    default: int
    """`EARLIEST` or `LATEST`."""
    offsets: Mapping[str, Mapping[int, int]] | None = None
    """Offsets by topic and partition; `EARLIEST` and `LATEST` may be among them."""
    timestamp_ms: int | None = None
    """The first record with this time or a later one, in each partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit of a shard, to which a scan goes back. Immutable."""

    shard: int
    seq: int

    @property
    def text(self) -> str:
        """SHARD:COMMIT, as in the options."""
        return f"{self.shard}:{self.seq}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """All options of a query or a stream. Immutable, pickled to the executors; holds no secret."""

    store_url: str
    topics: tuple[str, ...]
    """Names; empty if there is a pattern."""
    topic_pattern: str | None
    """A regular expression that a whole name must match."""
    partitions: frozenset[int] | None
    """Only these numbers, of each topic; None for all."""
    starting: OffsetBound
    ending: OffsetBound
    isolation: IsolationLevel
    service: ServiceOptions | None
    """Has the tails that are not tiered yet; None to read the objects alone."""
    snapshot: Commit | None
    """Read the state after this commit; None for the newest."""
    lease_s: int | None
    """Keep the objects of the scan for so long; None if the option is not given, 0 for a snapshot without a
    lease."""
    max_partition_bytes: int
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    idle_poll_ms: int
    """A stream that has found nothing new does not look at the store again for so long."""
    fails_on_data_loss: bool

    def selects(self, topic: str) -> bool:
        """Whether the topic is wanted by its name. A pattern does not mean the topics in which writes are
        staged: they are no rows of a user, and come and go with the writes."""
        if self.topic_pattern is None:
            return topic in self.topics
        return not topic.startswith(STAGING_PREFIX) and re.fullmatch(self.topic_pattern, topic) is not None


def parse_options(options: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """The options of a query, or of a stream. Raises InvalidConfigError for one that is missing, unknown,
    malformed or contradicts another."""
    options = known_options(options, OPTION_NAMES)
    given = _Given(options)
    topics, pattern = given.topics()
    ending = given.bound("ending", LATEST)
    for name, allowed in (_NOT_IN_STREAMS if is_stream else _NOT_IN_QUERIES).items():
        if given.has(name):
            raise wrong_option(name, options[name], allowed)
    if all(given.has(name) for name in _COLUMN_OPTIONS):
        raise wrong_option(
            "includeHeaders", options["includeHeaders"], "not with columns: name headers there"
        )
    if given.has(SERVER) and given.has("snapshot"):
        raise wrong_option(
            SERVER, options[SERVER], "not with snapshot: no server has the tail of that moment"
        )
    starting = given.bound("starting", LATEST if is_stream else EARLIEST)
    if not is_stream:
        given.require_numbers("startingOffsets", starting, LATEST)
    given.require_numbers("endingOffsets", ending, EARLIEST)
    return ReadOptions(
        store_url=given.required("store", "the store's URL, s3://bucket/prefix or file:///dir"),
        topics=topics,
        topic_pattern=pattern,
        partitions=given.partitions(),
        starting=starting,
        ending=ending,
        isolation=given.isolation(),
        service=parse_service(options),
        snapshot=given.commit(),
        lease_s=given.lease_s(),
        max_partition_bytes=given.number("maxPartitionBytes", "a number of bytes")
        or DEFAULT_MAX_PARTITION_BYTES,
        max_offsets_per_trigger=given.number(_MAX_OFFSETS, "a number of offsets"),
        max_bytes_per_trigger=given.number(_MAX_BYTES, "a number of bytes"),
        idle_poll_ms=given.idle_poll_ms(),
        fails_on_data_loss=flag_option(options, DATA_LOSS, default=True),
    )


def wanted_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of a query without a schema of its own. Raises InvalidConfigError."""
    has_headers = flag_option(options, "includeHeaders", default=False)
    text = options.get("columns")
    if text is None:
        return tuple(name for name in COLUMNS_BY_NAME if has_headers or name != "headers")
    names = tuple(name.strip() for name in text.split(","))
    if not set(names) <= COLUMNS_BY_NAME.keys() or len(set(names)) < len(names):
        raise wrong_option("columns", text, f"different ones of {', '.join(COLUMNS_BY_NAME)}")
    return names


def require_schema_alone(options: Mapping[str, str], names: tuple[str, ...]) -> None:
    """Raise InvalidConfigError if an option asks for other columns than the schema of the query has, whose
    names these are."""
    for name in _COLUMN_OPTIONS:
        if name in options and wanted_columns(options) != names:
            raise wrong_option(name, options[name], f"not with a schema, which has {', '.join(names)}")


def is_pushdown_wanted(options: Mapping[str, str]) -> bool:
    """Whether filters are pushed to slices and indexes. Raises InvalidConfigError."""
    return flag_option(options, "pushdown", default=False)


def limits_of(options: ReadOptions) -> tuple[str, ...]:
    """The names of the options that bound the batches of a stream, as far as they are given."""
    given = {_MAX_OFFSETS: options.max_offsets_per_trigger, _MAX_BYTES: options.max_bytes_per_trigger}
    return tuple(name for name, value in given.items() if value is not None)


class _Given:
    """The texts that a query gives. Immutable."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def has(self, *names: str) -> bool:
        """Whether any of these options is given."""
        return any(name in self._options for name in names)

    def required(self, name: str, meaning: str) -> str:
        value = self._options.get(name)
        if not value:
            raise InvalidConfigError(f"set .option({name!r}, ...): {meaning}", name=name)
        return value

    def topics(self) -> tuple[tuple[str, ...], str | None]:
        """The names, or the pattern."""
        pattern = self._options.get("topicPattern")
        if pattern is None:
            text = self.required("topic", "the topic's name, or several with commas between them")
            return tuple(dict.fromkeys(name.strip() for name in text.split(","))), None
        if "topic" in self._options:
            raise wrong_option("topicPattern", pattern, "either topic or topicPattern")
        try:
            re.compile(pattern)
        except re.error as error:
            raise wrong_option("topicPattern", pattern, f"a regular expression ({error})") from error
        return (), pattern

    def partitions(self) -> frozenset[int] | None:
        text = self._options.get("partitions")
        if text is None:
            return None
        numbers = [part.strip() for part in text.split(",")]
        if not all(number.isdecimal() for number in numbers):
            raise wrong_option("partitions", text, "numbers with commas between them")
        return frozenset(map(int, numbers))

    def number(self, name: str, meaning: str) -> int | None:
        """A number above 0; None if it is not given."""
        text = self._options.get(name)
        if text is None:
            return None
        if not text.isdecimal() or int(text) == 0:
            raise wrong_option(name, text, f"{meaning}, 1 or more")
        return int(text)

    def lease_s(self) -> int | None:
        if self.has("snapshot") and self._options.get("lease", "").strip() == "0":
            return 0
        return self.number("lease", "a number of seconds")

    def idle_poll_ms(self) -> int:
        if self._options.get(_IDLE_POLL, "").strip() == "0":
            return 0
        return self.number(_IDLE_POLL, "a number of milliseconds") or DEFAULT_IDLE_POLL_MS

    def isolation(self) -> IsolationLevel:
        levels = {level.value: level for level in IsolationLevel}
        given = {self._options[name] for name in _ISOLATION_NAMES if name in self._options}
        if len(given) > 1 or not given <= levels.keys():
            raise InvalidConfigError(
                f"{' or '.join(_ISOLATION_NAMES)} is one of Kafka's isolation levels; choose one",
                name=_ISOLATION_NAMES[0],
                value=", ".join(sorted(given)),
                allowed=", ".join(levels),
            )
        return levels[given.pop()] if given else IsolationLevel.READ_UNCOMMITTED

    def commit(self) -> Commit | None:
        text = self._options.get("snapshot")
        if text is None:
            return None
        found = _COMMIT.fullmatch(text.strip())
        if found is None:
            raise wrong_option("snapshot", text, "the number of a commit, or SHARD:COMMIT")
        return Commit(shard=int(found[1] or 0), seq=int(found[2]))

    def bound(self, which: str, default: int) -> OffsetBound:
        """The starting or ending bound."""
        offsets, time = f"{which}Offsets", f"{which}Timestamp"
        if self.has(offsets) and self.has(time):
            raise wrong_option(time, self._options[time], f"either {offsets} or {time}")
        if self.has(time):
            text = self._options[time]
            if not text.isdecimal():
                raise wrong_option(time, text, "milliseconds since 1970")
            return OffsetBound(default=default, timestamp_ms=int(text))
        if not self.has(offsets):
            return OffsetBound(default=default)
        given = self._options[offsets]
        named = {"earliest": EARLIEST, "latest": LATEST}.get(given.strip().lower())
        if named is not None:
            return OffsetBound(default=named)
        return OffsetBound(default=default, offsets=_parse_offsets(offsets, given))

    def require_numbers(self, name: str, bound: OffsetBound, refused: int) -> None:
        """Raise InvalidConfigError if a bound has the end that makes no sense there."""
        found = {bound.default, *(one for of in (bound.offsets or {}).values() for one in of.values())}
        if refused in found:
            word = "latest" if refused == LATEST else "earliest"
            raise wrong_option(
                name, self._options[name], f"not {word} ({refused}), where nothing could be read"
            )


def _parse_offsets(name: str, text: str) -> dict[str, dict[int, int]]:
    """Offsets by topic and partition from Kafka's JSON, `{"topic": {"0": 5, "1": -2}}`."""
    try:
        parsed = json.loads(text)
        offsets = {
            topic: {int(partition): _offset(offset) for partition, offset in each.items()}
            for topic, each in parsed.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise wrong_option(
            name, text, 'earliest, latest, or JSON such as {"topic": {"0": 5, "1": -2}}'
        ) from error
    return offsets


def _offset(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise ValueError("no offset")
    return value
