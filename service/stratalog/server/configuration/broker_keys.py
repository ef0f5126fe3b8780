"""Every key of the server's own configuration that this version honours, under Kafka's names.

Two kinds: defaults of topics' keys, and what the log manager and the cleaner go by. Names, defaults, ranges
and what may change at run time are Kafka's; docs/broker_configuration.md says where and why one is not. What
is not in the table is refused: a setting that is accepted and does nothing is a promise that nobody keeps.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from types import MappingProxyType

from stratalog.base.errors import InvalidConfigError
from stratalog.log.config_key import INT_MAX, LONG_MAX, ConfigKey, decimal_key, flag_key, number_key
from stratalog.log.log_config import LogConfig, topic_key
from stratalog.server.configuration.broker_key import BrokerKey, Fallback, UpdateMode

HOUR_MS = 60 * 60 * 1000
MINUTE_MS = 60 * 1000
MIB = 1 << 20

_TOPIC_DEFAULTS = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
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
    "retention.bytes": "log.retention.bytes",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
}
"""The broker's name of each topic key whose default is a value of its own."""


def _topic_default(name: str, broker_name: str) -> BrokerKey:
    return BrokerKey(
        key=topic_key(name).renamed(broker_name),
        default=LogConfig().as_mapping()[name],
        update_mode=UpdateMode.CLUSTER_WIDE,
        topic_key=name,
    )


def _retention_key(name: str, maximum: int = LONG_MAX) -> ConfigKey[int]:
    """Kafka takes no 0 here: every segment would be too old at once."""
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
    """Each as the server's own options are understood: `/a//b/` is `/a/b`."""
    paths = [part.strip() for part in text.split(",") if part.strip()]
    if not all(path.startswith("/") for path in paths):
        raise ValueError(text)
    return tuple(dict.fromkeys(map(posixpath.normpath, paths)))


def _read_only(key: ConfigKey[int] | ConfigKey[bool], default: str | None) -> BrokerKey:
    return BrokerKey(key=key, default=default, update_mode=UpdateMode.READ_ONLY)


def _cluster_wide(key: ConfigKey[int] | ConfigKey[float], default: str) -> BrokerKey:
    return BrokerKey(key=key, default=default, update_mode=UpdateMode.CLUSTER_WIDE)


def _time_default(
    key: ConfigKey[int], topic_name: str, *fallbacks: Fallback, default: str | None = None
) -> BrokerKey:
    return BrokerKey(
        key=key,
        default=default,
        update_mode=UpdateMode.CLUSTER_WIDE,
        topic_key=topic_name,
        fallbacks=fallbacks,
    )


def _table() -> Mapping[str, BrokerKey]:
    keys = [
        *(_topic_default(name, broker_name) for name, broker_name in _TOPIC_DEFAULTS.items()),
        # Times that have several names: the finest unit that is set counts.
        _time_default(
            _retention_key("log.retention.ms"),
            "retention.ms",
            Fallback("log.retention.minutes", MINUTE_MS),
            Fallback("log.retention.hours", HOUR_MS),
        ),
        _read_only(_retention_key("log.retention.minutes", INT_MAX), None),
        _read_only(_retention_key("log.retention.hours", INT_MAX), "168"),
        _time_default(number_key("log.roll.ms", 1), "segment.ms", Fallback("log.roll.hours", HOUR_MS)),
        _read_only(number_key("log.roll.hours", 1, INT_MAX), "168"),
        _time_default(
            number_key("log.roll.jitter.ms", 0),
            "segment.jitter.ms",
            Fallback("log.roll.jitter.hours", HOUR_MS),
        ),
        _read_only(number_key("log.roll.jitter.hours", 0, INT_MAX), "0"),
        _time_default(number_key("log.flush.interval.ms", 0), "flush.ms", default=str(LONG_MAX)),
        # The cleaner.
        _cluster_wide(number_key("log.cleaner.backoff.ms", 0), "15000"),
        _cluster_wide(number_key("log.cleaner.dedupe.buffer.size", MIB), str(128 * MIB)),
        _read_only(flag_key("log.cleaner.enable"), "true"),
        _cluster_wide(decimal_key("log.cleaner.io.buffer.load.factor", 0.1, 1.0), "0.9"),
        _cluster_wide(number_key("log.cleaner.io.buffer.size", 0, INT_MAX), str(512 * 1024)),
        _cluster_wide(decimal_key("log.cleaner.io.max.bytes.per.second", 1.0), "1.7976931348623157e+308"),
        _cluster_wide(number_key("log.cleaner.threads", 1, 1024), "1"),
        # The log manager.
        _read_only(number_key("log.flush.offset.checkpoint.interval.ms", 1), "60000"),
        _read_only(number_key("log.flush.scheduler.interval.ms", 1), "1000"),
        _read_only(number_key("log.flush.start.offset.checkpoint.interval.ms", 1), "60000"),
        _read_only(number_key("log.initial.task.delay.ms", 0), "30000"),
        _read_only(number_key("log.retention.check.interval.ms", 1), "300000"),
        _cluster_wide(number_key("num.recovery.threads.per.data.dir", 1, 1024), "2"),
        _read_only(number_key("producer.id.expiration.check.interval.ms", 1), "600000"),
        _cluster_wide(number_key("producer.id.expiration.ms", 1), str(24 * HOUR_MS)),
        BrokerKey(
            key=number_key("replica.alter.log.dirs.io.max.bytes.per.second", 1),
            default=str(LONG_MAX),
            update_mode=UpdateMode.PER_BROKER,
        ),
        BrokerKey(
            key=ConfigKey(
                "cordoned.log.dirs",
                "absolute paths of log directories, with commas between them, or nothing",
                _parse_directories,
                ",".join,
            ),
            default="",
            update_mode=UpdateMode.PER_BROKER,
        ),
    ]
    return MappingProxyType({key.name: key for key in sorted(keys, key=lambda key: key.name)})


BROKER_KEYS = _table()
"""By name, in order."""

BROKER_KEY_OF_TOPIC_KEY = MappingProxyType(
    {key.topic_key: name for name, key in BROKER_KEYS.items() if key.topic_key is not None}
)
"""Where a topic key has a default that the server can be told, its name there."""

_REFUSED = {
    "log.dir": "the directories are given by --data-dir and --log-dir",
    "log.dirs": "the directories are given by --data-dir and --log-dir",
    "log.cleaner.io.buffer.max.size": "the cleaner's buffers grow with the largest batch",
    "remote.log.storage.system.enable": "each topic has remote.storage.enable",
    "listeners": "the address is given by --listen",
    "num.partitions": "the number is given when a topic is created",
}


def broker_key(name: str, text: str | None = None) -> BrokerKey:
    """The key of that name. Raises InvalidConfigError, with the reason or the name that was meant."""
    key = BROKER_KEYS.get(name)
    if key is not None:
        return key
    if name in _REFUSED:
        reason = "is a key of Kafka's that this server does not take: " + _REFUSED[name]
    elif name in BROKER_KEY_OF_TOPIC_KEY:
        reason = f"is a key of topics; its default is `{BROKER_KEY_OF_TOPIC_KEY[name]}`"
    else:
        reason = "is not a key that this server honours; `stratalog config describe --broker` lists those"
    raise InvalidConfigError(f"`{name}` {reason}", name=name, value=text, allowed="the keys of the server")
