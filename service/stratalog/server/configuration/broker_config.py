"""The server's own configuration, under Kafka's names and with Kafka's defaults.

Its keys are the defaults of topics, the settings of the cleaner, and those of the log manager. The table
below has every key that this version honours, with its range and when it may change;
docs/broker_configuration.md says where and why that differs from Kafka. Any other name is refused: a setting
that is accepted and does nothing misleads.

Several keys may set one value, in units of their own: of `log.retention.ms`, `.minutes` and `.hours` the
finest unit that is set counts.
"""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

from stratalog.base.errors import InvalidConfigError
from stratalog.cleaner.cleaner_settings import CleanerSettings
from stratalog.compaction.compaction_settings import MAX_INPUTS_OF_A_REPLACE, CompactionSettings
from stratalog.log.config_key import (
    INT_MAX,
    LONG_MAX,
    ConfigKey,
    decimal_key,
    flag_key,
    number_key,
    unknown_key,
)
from stratalog.log.log_config import LogConfig, topic_key

HOUR_MS = 60 * 60 * 1000
MINUTE_MS = 60 * 1000
MIB = 1 << 20
CORDONED = "cordoned.log.dirs"
"""The only key that is altered for one machine, in the manifest of each log directory. All others lie in the
catalog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Typed values of all keys. Immutable, hence thread-safe."""

    topic_defaults: LogConfig = field(default_factory=LogConfig)
    """Values of keys that a topic does not set."""
    cleaner_settings: CleanerSettings = field(default_factory=CleanerSettings)
    """Settings of the cleaner of local logs, `log.cleaner.*`."""
    compaction: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of `CompactionSettings` that keys set, `remote.compaction.*`."""
    cordoned_log_dirs: tuple[str, ...] = ()
    """Absolute paths of log directories that take no new partitions."""
    min_free_bytes: int = 256 * MIB
    """Free space of a log directory below which the topics' `remote.copy.backlog.policy` holds; 0: never."""
    initial_task_delay_ms: int = 30_000
    """Time from the start to the first tasks on local logs."""
    flush_check_ms: int = 1_000
    """Time between looks for logs whose `flush.ms` is over. Kafka looks only if this is set."""
    recovery_point_checkpoint_ms: int = 60_000
    """Time between writes of the recovery points. Less shortens a recovery."""
    log_start_checkpoint_ms: int = 60_000
    """Time between writes of the log starts."""
    retention_check_ms: int = 300_000
    """Time between passes of retention over local logs."""
    recovery_thread_count: int = 2
    """Threads for each log directory that open logs at a start and close them at a stop."""
    producer_expiration_check_ms: int = 600_000
    """Time between looks for idle producers."""
    producer_expiration_ms: int = 24 * HOUR_MS
    """A partition forgets a producer that was idle this long and has no open transaction."""
    max_moved_bytes_per_s: int = LONG_MAX
    """Bound for the copying of all moves between log directories together."""
    copied_object_bytes: int = 64 * MIB
    """Size to which uploads fill an object."""
    copy_stall_ms: int = 10 * MINUTE_MS
    """An object that makes no progress for this long on its way to the store is given up."""
    copy_thread_count: int = 4
    """Objects of a shard that are on their way to the store at the same time."""
    max_copied_bytes_per_s: int = LONG_MAX
    """Bound for the uploads of a shard together."""
    max_copy_requests_per_s: int = LONG_MAX
    """Bound for the requests of these uploads."""
    commit_interval_ms: int = 250
    """Time between two commits of appends at `object`. Longer makes fewer requests and larger objects."""
    commit_buffer_bytes: int = 8 * MIB
    """A commit of appends at `object` comes sooner if so many bytes wait, or twice as many while another one
    is under way; its objects are at most twice as large."""
    max_committed_slices_per_s: int = 1_000
    """The interval is longer where so many partitions wait that they would make more slices in a second."""
    commit_timeout_ms: int = 30_000
    """An append at `object` fails that is not committed after this long."""

    max_fetched_bytes_per_s: int = LONG_MAX
    """Bound for the tiered data that all readers together get."""
    read_ahead_bytes: int = 32 * MIB
    """How far the server reads ahead of a sequential reader of tiered data at most; 0: not at all."""
    read_cache_bytes: int = 192 * MIB
    """Tiered data in memory, of all shards."""
    read_chunk_bytes: int = 4 * MIB
    """Size of large requests for tiered data."""
    read_disk_cache_bytes: int = 0
    """Tiered data in the directory `cache` of the data directory; 0: none."""
    read_hedge_percent: int = 5
    """Most second requests for slow ones, in percent of all requests for tiered data; 0: none."""

    @staticmethod
    def from_overrides(overrides: Mapping[str, str]) -> BrokerConfig:
        """The configuration of a server that sets these keys.

        Raises InvalidConfigError (fields name, value, allowed) for an unknown key, for a value that its key
        does not take, and for values that contradict each other.
        """
        for name, text in overrides.items():
            broker_key(name, text).key.parse(text)
        topics: dict[str, str] = {}
        cleaner: dict[str, Any] = {}
        compaction: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key in BROKER_KEYS.values():
            value = _value_of(key, overrides)
            if key.topic_key is not None:
                topics[key.topic_key] = topic_key(key.topic_key).format(value)
            elif key.cleaner_field is not None:
                cleaner[key.cleaner_field] = value
            elif key.compaction_field is not None:
                compaction |= {key.compaction_field: value} if key.name in overrides else {}
            elif key.field_name is not None:
                own[key.field_name] = value
        config = BrokerConfig(
            topic_defaults=_topic_defaults(topics),
            cleaner_settings=CleanerSettings(**cleaner),
            compaction=compaction,
            **own,
        )
        config.cleaner_settings.require_consistent()
        return config


class UpdateMode(Enum):
    """When a key may change, in Kafka's words."""

    READ_ONLY = "read-only"
    """At a start only."""
    PER_BROKER = "per-broker"
    """At any time; in a Kafka cluster each broker has its own value."""
    CLUSTER_WIDE = "cluster-wide"
    """At any time; in a Kafka cluster all brokers may share the value."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """Another key for the same value, which counts where the finer ones are not set."""

    name: str
    factor: int
    """Its unit, in units of the finest key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerKey:
    """One key of the server. Immutable, hence thread-safe."""

    key: ConfigKey[Any]
    default: str | None
    """The default as text; None if a fallback has the default, or the key may be unset."""
    update_mode: UpdateMode
    topic_key: str | None = None
    """The topic's key that has this default."""
    cleaner_field: str | None = None
    """The field of `CleanerSettings`."""
    compaction_field: str | None = None
    """The field of `CompactionSettings`."""
    field_name: str | None = None
    """The field of `BrokerConfig`."""
    fallbacks: tuple[Fallback, ...] = ()
    """Finest unit first."""

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def is_read_only(self) -> bool:
        return self.update_mode is UpdateMode.READ_ONLY

    @property
    def sources(self) -> tuple[Fallback, ...]:
        return Fallback(self.name, 1), *self.fallbacks


BROKER_KEY_OF_TOPIC_KEY: Mapping[str, str] = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.durability": "min.durability",
    "preallocate": "log.preallocate",
    "remote.copy.backlog.policy": "log.remote.copy.backlog.policy",
    "remote.copy.max.age.ms": "log.remote.copy.max.age.ms",
    "remote.copy.pause": "log.remote.copy.pause",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
}
"""The server's name for the default of each topic key."""

_FALLBACKS = {
    "log.retention.ms": (
        Fallback("log.retention.minutes", MINUTE_MS),
        Fallback("log.retention.hours", HOUR_MS),
    ),
    "log.roll.jitter.ms": (Fallback("log.roll.jitter.hours", HOUR_MS),),
    "log.roll.ms": (Fallback("log.roll.hours", HOUR_MS),),
}


def _retention_key(name: str, maximum: int = LONG_MAX) -> ConfigKey[int]:
    """Refuses 0, as Kafka does: every segment would be too old at once."""
    number = number_key(name, -1, maximum)

    def parse(text: str) -> int:
        try:
            value = number.parse(text)
        except InvalidConfigError:
            raise ValueError(text) from None
        if value == 0:
            raise ValueError(text)
        return value

    return ConfigKey(name, f"-1 (no limit) or a whole number of at least 1 and at most {maximum}", parse)


def _parse_directories(text: str) -> tuple[str, ...]:
    """Absolute, normalised paths: `/a//b/` is `/a/b`, as in the options of the command line."""
    paths = [part.strip() for part in text.split(",") if part.strip()]
    if not all(path.startswith("/") for path in paths):
        raise ValueError(text)
    return tuple(dict.fromkeys(map(posixpath.normpath, paths)))


def _topic_default(topic_name: str, name: str) -> BrokerKey:
    fallbacks = _FALLBACKS.get(name, ())
    is_retention = name == "log.retention.ms"
    return BrokerKey(
        key=_retention_key(name) if is_retention else topic_key(topic_name).renamed(name),
        default=None if fallbacks else LogConfig().as_mapping()[topic_name],
        update_mode=UpdateMode.CLUSTER_WIDE,
        topic_key=topic_name,
        fallbacks=fallbacks,
    )


def _cleaner(
    key: ConfigKey[Any], field_name: str, update_mode: UpdateMode = UpdateMode.CLUSTER_WIDE
) -> BrokerKey:
    default = key.format(getattr(CleanerSettings(), field_name))
    return BrokerKey(key=key, default=default, update_mode=update_mode, cleaner_field=field_name)


def _compaction(key: ConfigKey[Any], field_name: str) -> BrokerKey:
    defaults = {one.name: one.default for one in dataclasses.fields(CompactionSettings)}
    return BrokerKey(
        key=key,
        default=key.format(defaults[field_name]),
        update_mode=UpdateMode.CLUSTER_WIDE,
        compaction_field=field_name,
    )


def _own(key: ConfigKey[Any], field_name: str, update_mode: UpdateMode = UpdateMode.READ_ONLY) -> BrokerKey:
    default = key.format(getattr(BrokerConfig(), field_name))
    return BrokerKey(key=key, default=default, update_mode=update_mode, field_name=field_name)


def _coarser(key: ConfigKey[int], default: str | None) -> BrokerKey:
    return BrokerKey(key=key, default=default, update_mode=UpdateMode.READ_ONLY)


def _remote_keys() -> list[BrokerKey]:
    """The keys about the object store."""
    any_time = UpdateMode.CLUSTER_WIDE
    return [
        _own(number_key("remote.append.buffer.max.bytes", 1 << 16, 1 << 28), "commit_buffer_bytes", any_time),
        _own(number_key("remote.append.commit.interval.ms", 1, INT_MAX), "commit_interval_ms", any_time),
        _own(number_key("remote.append.commit.timeout.ms", 1, INT_MAX), "commit_timeout_ms", any_time),
        _own(
            number_key("remote.append.max.slices.per.second", 1, INT_MAX),
            "max_committed_slices_per_s",
            any_time,
        ),
        _own(number_key("remote.copy.max.requests.per.second", 1), "max_copy_requests_per_s", any_time),
        _own(number_key("remote.copy.object.bytes", MIB, 1 << 30), "copied_object_bytes", any_time),
        _own(number_key("remote.copy.stall.ms", 1), "copy_stall_ms", any_time),
        _own(number_key("remote.read.ahead.bytes", 0), "read_ahead_bytes"),
        _own(number_key("remote.read.cache.bytes", 0), "read_cache_bytes"),
        _own(number_key("remote.read.chunk.bytes", 64 << 10, 1 << 30), "read_chunk_bytes"),
        _own(number_key("remote.read.disk.cache.bytes", 0), "read_disk_cache_bytes"),
        _own(number_key("remote.read.hedge.percent", 0, 100), "read_hedge_percent"),
        _own(number_key("remote.log.manager.copier.thread.pool.size", 1, 64), "copy_thread_count", any_time),
        _own(
            number_key("remote.log.manager.copy.max.bytes.per.second", 1),
            "max_copied_bytes_per_s",
            any_time,
        ),
        _own(
            number_key("remote.log.manager.fetch.max.bytes.per.second", 1),
            "max_fetched_bytes_per_s",
            any_time,
        ),
    ]


def _compaction_keys() -> list[BrokerKey]:
    """The keys of the compaction of tiered data: all fields of `CompactionSettings` but the
    directory and the number of shards, which are the process' own."""
    prefix = "remote.compaction"
    return [
        _compaction(number_key(f"{prefix}.hash.part.entries", 1), "hash_part_entries"),
        _compaction(decimal_key(f"{prefix}.io.max.bytes.per.second", 1.0), "max_bytes_per_s"),
        _compaction(number_key(f"{prefix}.job.max.bytes", MIB), "max_job_bytes"),
        _compaction(number_key(f"{prefix}.job.max.inputs", 2, MAX_INPUTS_OF_A_REPLACE), "max_inputs_per_job"),
        _compaction(number_key(f"{prefix}.job.memory.bytes", 0), "job_memory_bytes"),
        _compaction(decimal_key(f"{prefix}.max.requests.per.second", 0.001), "max_requests_per_s"),
        _compaction(number_key(f"{prefix}.max.shards", 1, 64), "max_shards"),
        _compaction(number_key(f"{prefix}.merge.fanout", 3, INT_MAX), "merge_fanout"),
        _compaction(decimal_key(f"{prefix}.min.live.ratio", 0.0, 0.99), "min_live_ratio"),
        _compaction(number_key(f"{prefix}.object.bytes", MIB), "target_object_bytes"),
        _compaction(number_key(f"{prefix}.output.part.bytes", 5 * MIB, 1 << 30), "output_part_bytes"),
        _compaction(number_key(f"{prefix}.partition.max.bytes", 0), "max_partition_bytes"),
        _compaction(decimal_key(f"{prefix}.price.get", 0.0), "get_price"),
        _compaction(decimal_key(f"{prefix}.price.put", 0.0), "put_price"),
        _compaction(decimal_key(f"{prefix}.price.storage", 0.0), "storage_price"),
        _compaction(number_key(f"{prefix}.read.chunk.bytes", 64 << 10, 1 << 30), "read_chunk_bytes"),
        _compaction(number_key(f"{prefix}.retry.backoff.ms", 0), "retry_backoff_ms"),
        _compaction(number_key(f"{prefix}.scratch.max.bytes", 0), "max_scratch_bytes"),
    ]


def _table() -> Mapping[str, BrokerKey]:
    any_time, per_broker = UpdateMode.CLUSTER_WIDE, UpdateMode.PER_BROKER
    paths = ConfigKey(
        CORDONED,
        "absolute paths of log directories, with commas between them, or nothing",
        _parse_directories,
        ",".join,
    )
    keys = [
        *(_topic_default(topic_name, name) for topic_name, name in BROKER_KEY_OF_TOPIC_KEY.items()),
        _coarser(_retention_key("log.retention.minutes", INT_MAX), None),
        _coarser(_retention_key("log.retention.hours", INT_MAX), "168"),
        _coarser(number_key("log.roll.hours", 1, INT_MAX), "168"),
        _coarser(number_key("log.roll.jitter.hours", 0, INT_MAX), "0"),
        _cleaner(number_key("log.cleaner.backoff.ms", 0), "backoff_ms"),
        _cleaner(number_key("log.cleaner.dedupe.buffer.size", MIB), "map_bytes"),
        _cleaner(flag_key("log.cleaner.enable"), "is_enabled", UpdateMode.READ_ONLY),
        _cleaner(decimal_key("log.cleaner.io.buffer.load.factor", 0.1, 1.0), "map_load_factor"),
        _cleaner(number_key("log.cleaner.io.buffer.size", 0, INT_MAX), "io_buffer_bytes"),
        _cleaner(decimal_key("log.cleaner.io.max.bytes.per.second", 1.0), "max_bytes_per_s"),
        _cleaner(number_key("log.cleaner.threads", 1, 1024), "thread_count"),
        _own(number_key("log.dir.min.free.bytes", 0), "min_free_bytes", per_broker),
        _own(
            number_key("log.flush.offset.checkpoint.interval.ms", 1),
            "recovery_point_checkpoint_ms",
        ),
        _own(number_key("log.flush.scheduler.interval.ms", 1), "flush_check_ms"),
        _own(number_key("log.flush.start.offset.checkpoint.interval.ms", 1), "log_start_checkpoint_ms"),
        _own(number_key("log.initial.task.delay.ms", 0), "initial_task_delay_ms"),
        _own(number_key("log.retention.check.interval.ms", 1), "retention_check_ms"),
        _own(number_key("num.recovery.threads.per.data.dir", 1, 1024), "recovery_thread_count", any_time),
        _own(number_key("producer.id.expiration.check.interval.ms", 1), "producer_expiration_check_ms"),
        _own(number_key("producer.id.expiration.ms", 1), "producer_expiration_ms", any_time),
        _own(
            number_key("replica.alter.log.dirs.io.max.bytes.per.second", 1),
            "max_moved_bytes_per_s",
            per_broker,
        ),
        _own(paths, "cordoned_log_dirs", per_broker),
        *_compaction_keys(),
        *_remote_keys(),
    ]
    return MappingProxyType({key.name: key for key in sorted(keys, key=lambda key: key.name)})


BROKER_KEYS = _table()
"""All keys by name, sorted."""

_REFUSED = {
    "log.dir": "the directories are given by --data-dir and --log-dir",
    "log.dirs": "the directories are given by --data-dir and --log-dir",
    "log.cleaner.io.buffer.max.size": "the cleaner's buffers grow with the largest batch",
    "remote.log.storage.system.enable": "each topic has remote.storage.enable",
    "listeners": "the address is given by --listen",
    "advertised.listeners": "the address is given by --advertise",
    "num.partitions": "the number is given when a topic is created",
}


def broker_key(name: str, text: str | None = None) -> BrokerKey:
    """The key of that name. Raises InvalidConfigError, which names the reason or the right key."""
    key = BROKER_KEYS.get(name)
    if key is not None:
        return key
    if name in _REFUSED:
        reason = "is a key of Kafka that this server does not take; remove it: " + _REFUSED[name]
    elif name in BROKER_KEY_OF_TOPIC_KEY:
        right_name = BROKER_KEY_OF_TOPIC_KEY[name]
        message = f"`{name}` is a key of topics; use the key of its default, `{right_name}`"
        raise InvalidConfigError(message, name=name, value=text, near=right_name)
    else:
        remedy = "`stratalog config describe --broker` lists the keys"
        raise unknown_key(name, text, "is not a key of this server", BROKER_KEYS, remedy=remedy)
    raise InvalidConfigError(f"`{name}` {reason}", name=name, value=text)


def value_text(name: str, overrides: Mapping[str, str]) -> str | None:
    """The value of a key as text; None if it is not set and has no default. Raises InvalidConfigError."""
    key = broker_key(name)
    value = _value_of(key, overrides)
    return None if value is None else key.key.format(value)


def _value_of(key: BrokerKey, overrides: Mapping[str, str]) -> Any:
    """The value in the unit of the key; -1 (no limit) stays -1."""
    for source in key.sources:
        text = overrides.get(source.name, BROKER_KEYS[source.name].default)
        if text is not None:
            value = BROKER_KEYS[source.name].key.parse(text)
            return value if source.factor == 1 or value < 0 else value * source.factor
    return None


def _topic_defaults(defaults: Mapping[str, str]) -> LogConfig:
    """Parse the defaults of topics. Raises InvalidConfigError, which names the server's keys."""
    try:
        return LogConfig.from_overrides(defaults)
    except InvalidConfigError as refusal:
        name = BROKER_KEY_OF_TOPIC_KEY[str(refusal.fields["name"])]
        raise InvalidConfigError(
            f"{name} is no default for topics: {refusal.message}", **{**refusal.fields, "name": name}
        ) from None
