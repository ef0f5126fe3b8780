"""A topic's configuration, under Kafka's names and with Kafka's defaults.

A topic stores overrides (text, by name); the other keys have defaults. The table below has the keys that this
version honours. Any other name is refused, also one that only Kafka knows: a setting that was accepted and
did nothing would be a broken promise.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratalog.base.errors import InvalidConfigError
from stratalog.base.types import Durability
from stratalog.log.config_key import (
    INT_MAX,
    LONG_MAX,
    ConfigKey,
    choice_of,
    flag_key,
    number_key,
    ratio_key,
    unknown_key,
)
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import TimestampType
from stratalog.record.keep_rules import VersionRule

DELETE_POLICY = "delete"
COMPACT_POLICY = "compact"
UNLIMITED = -1
"""The value of a retention that keeps records for ever."""
AS_TOTAL = -2
"""The value of a local retention that follows the retention of the whole log."""
COMPACTED_LOCAL_RETENTION_MS = 4 * 60 * 60 * 1000
"""The longest local retention of a compacted topic that does not set one."""
MIN_SEGMENT_BYTES = 1024
DEFAULT_LZ4_LEVEL = 9
"""Kafka's name for LZ4's fast mode."""


class CompressionType(enum.Enum):
    """The values of `compression.type`, as Kafka spells them."""

    PRODUCER = "producer"
    UNCOMPRESSED = "uncompressed"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"

    def codec_for(self, source: Codec) -> Codec:
        """The codec in which the log stores a batch that came in `source`."""
        match self:
            case CompressionType.PRODUCER:
                return source
            case CompressionType.UNCOMPRESSED:
                return Codec.NONE
            case _:
                return Codec[self.name]


class CompactionStrategy(enum.Enum):
    """The values of `compaction.strategy`."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    HEADER = "header"


class BacklogPolicy(enum.Enum):
    """The values of `remote.copy.backlog.policy`."""

    BLOCK = "block"
    DROP = "drop"
    KEEP = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The configuration of a topic's logs. Immutable, hence thread-safe. The keys that Kafka has too have its
    defaults."""

    cleanup_policy: frozenset[str] = frozenset({DELETE_POLICY})
    """`delete` drops old segments by the retentions, `compact` keeps the last record of each key; both may be
    set, or neither: then nothing goes that is not deleted on purpose."""
    compaction_strategy: CompactionStrategy = CompactionStrategy.OFFSET
    """The record of a key that compaction keeps: the last (`offset`), or the one with the highest version,
    which is its `timestamp` or in a `header`; of several with this version the last."""
    compaction_strategy_header: str = ""
    """The header with the version under `compaction.strategy=header`: 8 bytes, a signed big-endian number. A
    record without loses against one with a version."""
    compression_gzip_level: int = -1
    """How hard gzip tries where `compression.type` makes the log use it; -1 is the codec's own choice."""
    compression_lz4_level: int = DEFAULT_LZ4_LEVEL
    """How hard LZ4 tries. The default is, as in Kafka, not the ninth level but LZ4's fast mode."""
    compression_type: CompressionType = CompressionType.PRODUCER
    """The codec of stored batches. Any value but `producer` costs the log the compression of every batch that
    comes in another codec, and readers the decompression."""
    compression_zstd_level: int = 3
    """How hard zstd tries. More makes smaller batches at a steeply growing cost; below 0 is faster than 1."""
    delete_retention_ms: int = 24 * 60 * 60 * 1000
    """Compaction keeps a tombstone at least this long. More where consumers may lag further behind."""
    file_delete_delay_ms: int = 60 * 1000
    """Dropped files are unlinked after this long, so that readers which have them open can finish."""
    flush_messages: int = LONG_MAX
    """So many records may wait for an fsync; the append that brings the last of them waits for it. Less loses
    less to a power loss; where nothing may be lost, `min.durability` costs less than 1."""
    flush_ms: int = LONG_MAX
    """Records wait for an fsync no longer than this, and the period of the server's look at it."""
    index_interval_bytes: int = 4096
    """About one index entry is made for so many bytes. Less: shorter scans behind a look-up, larger
    indexes."""
    local_retention_bytes: int = AS_TOTAL
    """Local disk keeps at most about so many bytes of what is in the object store; -2: the value of
    `retention.bytes`."""
    local_retention_ms: int = AS_TOTAL
    """Local disk keeps what is in the object store for this long; -2: the value of `retention.ms`, but of
    a compacted topic until the object store has compacted it, and at most four hours: local copies hide the
    compaction."""
    max_compaction_lag_ms: int = LONG_MAX
    """Records older than this are compacted even where there is little to gain; a compacted log's active
    segment is rolled no later than at this age."""
    max_message_bytes: int = 1024 * 1024 + 12
    """The largest batch that an append may hold, as it is stored."""
    message_timestamp_after_max_ms: int = 60 * 60 * 1000
    """A producer's time may be so far ahead of the log's. More only for data that is about the future."""
    message_timestamp_before_max_ms: int = LONG_MAX
    """A producer's time may be so far behind the log's; without a limit, old data may be loaded."""
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    """The time that counts: the producer's (CreateTime) or that of the append (LogAppendTime)."""
    min_cleanable_dirty_ratio: float = 0.5
    """A log that is not tiered is compacted once this part of its bytes has not been. Less saves disk
    space and copies more often."""
    min_compaction_lag_ms: int = 0
    """Records younger than this are not compacted."""
    min_durability: Durability = Durability.OS
    """Consumers see nothing, and no append is acknowledged, below this level. `object` needs
    `remote.storage.enable`, and uploads that are not disabled."""
    preallocate: bool = False
    """Each new segment has its space on the disk reserved, so that a full disk is met when one begins."""
    remote_copy_backlog_policy: BacklogPolicy = BacklogPolicy.BLOCK
    """Where the disk of a partition has little space left, `block` refuses appends, `drop` deletes the oldest
    segments that are not in the object store yet, `keep` goes on writing. In a topic that is not tiered
    `drop` is `block`."""
    remote_copy_max_age_ms: int = 5 * 60 * 1000
    """Records wait about this long for their upload, also those in the active segment, which is rolled."""
    remote_copy_pause: bool = False
    """Nothing is uploaded for the time being, and all that waits stays on the local disk."""
    remote_log_copy_disable: bool = False
    """Nothing is uploaded any more. The object store keeps its part, and local retention is that of the whole
    log."""
    remote_log_delete_on_disable: bool = False
    """The topic's data in the object store is deleted once `remote.storage.enable` is false."""
    remote_storage_enable: bool = True
    """Rolled segments are copied to the object store, and local ones may then be dropped."""
    retention_bytes: int = UNLIMITED
    """A partition is cut from its beginning to about so many bytes, all tiers together; -1 is no limit."""
    retention_ms: int = 7 * 24 * 60 * 60 * 1000
    """A segment is dropped when its newest record is older than this; -1 is never."""
    segment_bytes: int = 1024 * 1024 * 1024
    """The active segment is rolled before it grows beyond this. Smaller segments reach the object store
    sooner."""
    segment_index_bytes: int = 10 * 1024 * 1024
    """The active segment is rolled when an index has grown to this."""
    segment_jitter_ms: int = 0
    """Up to so much is taken off `segment.ms`, for each segment anew, so that not all partitions roll at
    once."""
    segment_ms: int = 7 * 24 * 60 * 60 * 1000
    """The active segment is rolled when its first record is this old and another one arrives."""

    @property
    def is_compacted(self) -> bool:
        return COMPACT_POLICY in self.cleanup_policy

    @property
    def version_rule(self) -> VersionRule | None:
        """The version of a record that decides which one of its key stays; None if the last one does."""
        match self.compaction_strategy:
            case CompactionStrategy.OFFSET:
                return None
            case CompactionStrategy.TIMESTAMP:
                return VersionRule(None)
            case CompactionStrategy.HEADER:
                return VersionRule(self.compaction_strategy_header.encode())

    @property
    def is_deleted(self) -> bool:
        """Retention by time and size applies."""
        return DELETE_POLICY in self.cleanup_policy

    def compression_level(self, codec: Codec) -> int | None:
        """The level at which batches are stored in `codec`; None for the codec's default."""
        match codec:
            case Codec.GZIP:
                return None if self.compression_gzip_level == -1 else self.compression_gzip_level
            case Codec.LZ4:
                is_fast = self.compression_lz4_level == DEFAULT_LZ4_LEVEL
                return None if is_fast else self.compression_lz4_level
            case Codec.ZSTD:
                return self.compression_zstd_level
            case Codec.NONE | Codec.SNAPPY:
                return None

    @property
    def max_segment_ms(self) -> int:
        """The age limit of the active segment. Compaction leaves that segment alone, so
        `max.compaction.lag.ms` bounds it too."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def copy_age_ms(self) -> int:
        """The wait of records for their upload, of a compacted topic no longer than that for compaction."""
        age_ms = self.remote_copy_max_age_ms
        return min(age_ms, self.max_compaction_lag_ms) if self.is_compacted else age_ms

    @property
    def reserved_bytes(self) -> int:
        """Disk space that a new segment takes at once."""
        return self.segment_bytes if self.preallocate else 0

    @property
    def is_copied(self) -> bool:
        """New records go to the object store."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def is_uploading(self) -> bool:
        """New records go to the object store, and uploads are not paused."""
        return self.is_copied and not self.remote_copy_pause

    @property
    def drops_tier(self) -> bool:
        """The topic's data in the object store is to be deleted."""
        return self.remote_log_delete_on_disable and not self.remote_storage_enable

    @property
    def effective_local_retention_ms(self) -> int:
        """The time for which a tiered log keeps on the local disk what is in the object store."""
        if self.remote_log_copy_disable:
            return self.retention_ms
        if self.local_retention_ms != AS_TOTAL:
            return self.local_retention_ms
        if not self.is_compacted:
            return self.retention_ms
        if self.retention_ms == UNLIMITED:
            return COMPACTED_LOCAL_RETENTION_MS
        return min(self.retention_ms, COMPACTED_LOCAL_RETENTION_MS)

    @property
    def drops_compacted(self) -> bool:
        """Local segments of a tiered log go once the object store has compacted all of their records. A time
        that is set for local copies holds as it is."""
        is_default = self.local_retention_ms == AS_TOTAL
        return self.is_compacted and self.is_copied and is_default

    @property
    def effective_local_retention_bytes(self) -> int:
        is_total = self.local_retention_bytes == AS_TOTAL or self.remote_log_copy_disable
        return self.retention_bytes if is_total else self.local_retention_bytes

    @staticmethod
    def from_overrides(overrides: Mapping[str, str], defaults: LogConfig | None = None) -> LogConfig:
        """The configuration of a topic that sets these keys, on a server with these defaults.

        Raises InvalidConfigError (fields name, value, allowed) for a key that is unknown or not honoured by
        this version, a value that its key does not take, and values that contradict each other.
        """
        config = _with_overrides(overrides, defaults)
        _refuse_contradictions(config, frozenset(_KEYS))
        return config

    @staticmethod
    def in_force(overrides: Mapping[str, str], defaults: LogConfig) -> LogConfig:
        """The configuration of an existing topic, whose keys were accepted under other defaults perhaps.

        As `from_overrides`, but values contradict each other only if the topic sets both, so a changed
        default never makes a topic unusable. The stronger of two such values holds: a local retention ends
        with the whole one, and compaction waits for the minimal lag.
        """
        config = _with_overrides(overrides, defaults)
        _refuse_contradictions(config, frozenset(overrides))
        return config

    def as_mapping(self) -> dict[str, str]:
        """All keys with their values as text, defaults included; `from_overrides` gives an equal
        configuration back."""
        return {key.name: key.format(getattr(self, key.field_name)) for key in _KEYS.values()}

    @staticmethod
    def names() -> tuple[str, ...]:
        """The keys that this version honours, in order."""
        return tuple(_KEYS)


def _parse_policy(text: str) -> frozenset[str]:
    if not text:
        return frozenset()
    policies = frozenset(part.strip() for part in text.split(","))
    if not policies <= {DELETE_POLICY, COMPACT_POLICY}:
        raise ValueError(text)
    return policies


_TIMESTAMP_TYPES = {"CreateTime": TimestampType.CREATE_TIME, "LogAppendTime": TimestampType.LOG_APPEND_TIME}
_DURABILITIES = {level.config_value: level for level in Durability}

_KEYS: dict[str, ConfigKey[Any]] = {
    key.name: key
    for key in (
        ConfigKey(
            "cleanup.policy",
            "delete, compact, both (delete,compact) or nothing",
            _parse_policy,
            lambda v: ",".join(sorted(v)),
        ),
        ConfigKey(
            "compaction.strategy",
            ", ".join(strategy.value for strategy in CompactionStrategy),
            CompactionStrategy,
            lambda value: value.value,
        ),
        ConfigKey("compaction.strategy.header", "the name of a header", str),
        ConfigKey(
            "compression.gzip.level",
            "-1 (the codec's choice) or a whole number from 1 to 9",
            lambda text: choice_of({str(level): level for level in (-1, *range(1, 10))}, text),
        ),
        number_key("compression.lz4.level", 1, 17),
        ConfigKey(
            "compression.type",
            ", ".join(kind.value for kind in CompressionType),
            CompressionType,
            lambda value: value.value,
        ),
        number_key("compression.zstd.level", -(1 << 17), 22),
        number_key("delete.retention.ms", 0),
        number_key("file.delete.delay.ms", 0),
        number_key("flush.messages", 1),
        number_key("flush.ms", 0),
        number_key("index.interval.bytes", 0, INT_MAX),
        number_key("local.retention.bytes", AS_TOTAL),
        number_key("local.retention.ms", AS_TOTAL),
        number_key("max.compaction.lag.ms", 1),
        number_key("max.message.bytes", 0, INT_MAX),
        number_key("message.timestamp.after.max.ms", 0),
        number_key("message.timestamp.before.max.ms", 0),
        ConfigKey(
            "message.timestamp.type",
            " or ".join(_TIMESTAMP_TYPES),
            lambda text: choice_of(_TIMESTAMP_TYPES, text),
            lambda value: next(name for name, type_ in _TIMESTAMP_TYPES.items() if type_ is value),
        ),
        ratio_key("min.cleanable.dirty.ratio"),
        number_key("min.compaction.lag.ms", 0),
        ConfigKey(
            "min.durability",
            ", ".join(_DURABILITIES),
            lambda text: choice_of(_DURABILITIES, text.lower()),
            lambda value: value.config_value,
        ),
        flag_key("preallocate"),
        ConfigKey(
            "remote.copy.backlog.policy",
            ", ".join(policy.value for policy in BacklogPolicy),
            BacklogPolicy,
            lambda value: value.value,
        ),
        number_key("remote.copy.max.age.ms", 1),
        flag_key("remote.copy.pause"),
        flag_key("remote.log.copy.disable"),
        flag_key("remote.log.delete.on.disable"),
        flag_key("remote.storage.enable"),
        number_key("retention.bytes", UNLIMITED),
        number_key("retention.ms", UNLIMITED),
        # Kafka asks for a mebibyte; here segments of many partitions share an object, so small ones are no
        # burden.
        number_key("segment.bytes", MIN_SEGMENT_BYTES, INT_MAX),
        # Room for two entries: an index that is full while it is empty would roll for ever.
        number_key("segment.index.bytes", 24, INT_MAX),
        number_key("segment.jitter.ms", 0),
        number_key("segment.ms", 1),
    )
}
assert set(LogConfig.__dataclass_fields__) == {key.field_name for key in _KEYS.values()}, "one key, one field"

_HEADER_KEYS = frozenset({"compaction.strategy", "compaction.strategy.header"})

# Kafka's other topic keys, for an error that tells "not yet" from "no such thing".
_KAFKA_KEYS = frozenset(
    {
        "errors.deadletterqueue.copy.record.enable",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "min.insync.replicas",
        "unclean.leader.election.enable",
    }
)


def _unknown_key(name: str, text: str) -> InvalidConfigError:
    if name in _KAFKA_KEYS:
        reason = "is a key of Kafka's that this version does not honour; leave it out"
        return InvalidConfigError(f"`{name}` {reason}", name=name, value=text)
    remedy = "leave it out; `stratalog topic describe --all` shows the keys"
    return unknown_key(name, text, "is not a key of topics", _KEYS, remedy=remedy)


def _with_overrides(overrides: Mapping[str, str], defaults: LogConfig | None) -> LogConfig:
    values: dict[str, Any] = {}
    for name, text in overrides.items():
        key = topic_key(name, text)
        values[key.field_name] = key.parse(text)
    return dataclasses.replace(defaults or LogConfig(), **values)


def topic_key(name: str, text: str = "") -> ConfigKey[Any]:
    """The key of that name. Raises InvalidConfigError."""
    key = _KEYS.get(name)
    if key is None:
        raise _unknown_key(name, text)
    return key


def _refuse_contradictions(config: LogConfig, names: frozenset[str]) -> None:
    """Raise InvalidConfigError if two of these keys contradict each other."""
    for local_name, total_name in (
        ("local.retention.ms", "retention.ms"),
        ("local.retention.bytes", "retention.bytes"),
    ):
        local: int = getattr(config, _KEYS[local_name].field_name)
        total: int = getattr(config, _KEYS[total_name].field_name)
        keeps_more = local == UNLIMITED or local > total
        is_other = config.remote_log_copy_disable and local not in (AS_TOTAL, total)
        if {local_name, "remote.log.copy.disable"} <= names and is_other:
            # Kafka's rule: nothing more reaches the object store, so there is one retention.
            raise _contradiction(local_name, local, f"{AS_TOTAL}, since remote.log.copy.disable is true")
        if {local_name, total_name} <= names and local != AS_TOTAL and total != UNLIMITED and keeps_more:
            raise _contradiction(local_name, local, f"at most {total_name}, which is {total}, or {AS_TOTAL}")
    _refuse_uncommitted(config, names)
    _refuse_nameless_header(config, names)
    lags = {"min.compaction.lag.ms", "max.compaction.lag.ms"}
    if lags <= names and config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        allowed = f"at most max.compaction.lag.ms, which is {config.max_compaction_lag_ms}"
        raise _contradiction("min.compaction.lag.ms", config.min_compaction_lag_ms, allowed)


def _refuse_uncommitted(config: LogConfig, names: frozenset[str]) -> None:
    """Raise InvalidConfigError if records wait for an object store that they never reach."""
    if config.min_durability is not Durability.OBJECT or "min.durability" not in names:
        return
    for name, is_reached, needed in (
        ("remote.storage.enable", config.remote_storage_enable, "true"),
        ("remote.log.copy.disable", not config.remote_log_copy_disable, "false"),
    ):
        if name in names and not is_reached:
            raise InvalidConfigError(
                f"min.durability contradicts another key; give it os or disk, or set {name} to {needed}",
                name="min.durability",
                value=config.min_durability.config_value,
                allowed="os or disk",
            )


def _refuse_nameless_header(config: LogConfig, names: frozenset[str]) -> None:
    """Raise InvalidConfigError if versions are in a header, and it is not said in which."""
    is_nameless = not config.compaction_strategy_header
    if config.compaction_strategy is CompactionStrategy.HEADER and is_nameless and names >= _HEADER_KEYS:
        raise InvalidConfigError(
            "compaction.strategy=header needs compaction.strategy.header; give it the name of the header with"
            " the versions",
            name="compaction.strategy.header",
            value="",
            allowed="the name of a header",
        )


def _contradiction(name: str, value: int, allowed: str) -> InvalidConfigError:
    message = f"{name} contradicts another key; give it {allowed}"
    return InvalidConfigError(message, name=name, value=value, allowed=allowed)
