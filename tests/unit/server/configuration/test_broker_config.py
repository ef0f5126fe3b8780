"""The server's own configuration: Kafka's names and defaults, and the strongest source."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from stratalog.base.errors import InvalidConfigError
from stratalog.cleaner.cleaner_settings import CleanerSettings
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.log.log_config import LogConfig
from stratalog.server.configuration.broker_config import (
    BROKER_KEY_OF_TOPIC_KEY,
    BROKER_KEYS,
    BrokerConfig,
    UpdateMode,
)
from stratalog.server.configuration.config_entry import ConfigLayers, ConfigSource
from stratalog.server.engine.component_settings import compaction_settings

# Kafka's documentation of the broker configuration, 4.x; None is null.
KAFKA_DEFAULTS = {
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "cordoned.log.dirs": "",
    "log.cleaner.backoff.ms": "15000",
    "log.cleaner.dedupe.buffer.size": "134217728",
    "log.cleaner.delete.retention.ms": "86400000",
    "log.cleaner.enable": "true",
    "log.cleaner.io.buffer.load.factor": "0.9",
    "log.cleaner.io.buffer.size": "524288",
    "log.cleaner.io.max.bytes.per.second": "1.7976931348623157e+308",
    "log.cleaner.max.compaction.lag.ms": "9223372036854775807",
    "log.cleaner.min.cleanable.ratio": "0.5",
    "log.cleaner.min.compaction.lag.ms": "0",
    "log.cleaner.threads": "1",
    "log.cleanup.policy": "delete",
    "log.flush.interval.messages": "9223372036854775807",
    "log.flush.offset.checkpoint.interval.ms": "60000",
    "log.flush.start.offset.checkpoint.interval.ms": "60000",
    "log.index.interval.bytes": "4096",
    "log.index.size.max.bytes": "10485760",
    "log.initial.task.delay.ms": "30000",
    "log.local.retention.bytes": "-2",
    "log.local.retention.ms": "-2",
    "log.message.timestamp.after.max.ms": "3600000",
    "log.message.timestamp.before.max.ms": "9223372036854775807",
    "log.message.timestamp.type": "CreateTime",
    "log.preallocate": "false",
    "log.retention.bytes": "-1",
    "log.retention.check.interval.ms": "300000",
    "log.retention.hours": "168",
    "log.retention.minutes": None,
    "log.retention.ms": None,
    "log.roll.hours": "168",
    "log.roll.jitter.hours": "0",
    "log.roll.jitter.ms": None,
    "log.roll.ms": None,
    "log.segment.bytes": "1073741824",
    "log.segment.delete.delay.ms": "60000",
    "message.max.bytes": "1048588",
    "num.recovery.threads.per.data.dir": "2",
    "producer.id.expiration.check.interval.ms": "600000",
    "producer.id.expiration.ms": "86400000",
    "remote.log.manager.copy.max.bytes.per.second": "9223372036854775807",
    "remote.log.manager.fetch.max.bytes.per.second": "9223372036854775807",
    "replica.alter.log.dirs.io.max.bytes.per.second": "9223372036854775807",
}
OURS = {
    "log.dir.min.free.bytes": "268435456",
    "log.flush.interval.ms": str(2**63 - 1),
    "log.flush.scheduler.interval.ms": "1000",
    "log.remote.copy.backlog.policy": "block",
    "log.remote.copy.max.age.ms": "300000",
    "log.remote.copy.pause": "false",
    "min.durability": "os",
    "remote.append.buffer.max.bytes": "8388608",
    "remote.append.commit.interval.ms": "250",
    "remote.append.commit.timeout.ms": "30000",
    "remote.append.max.slices.per.second": "1000",
    "remote.compaction.hash.part.entries": "1048576",
    "remote.compaction.io.max.bytes.per.second": "1.7976931348623157e+308",
    "remote.compaction.job.max.bytes": "1073741824",
    "remote.compaction.job.max.inputs": "64",
    "remote.compaction.job.memory.bytes": "100663296",
    "remote.compaction.max.requests.per.second": "1.7976931348623157e+308",
    "remote.compaction.max.shards": "2",
    "remote.compaction.merge.fanout": "4",
    "remote.compaction.min.live.ratio": "0.5",
    "remote.compaction.object.bytes": "268435456",
    "remote.compaction.output.part.bytes": "16777216",
    "remote.compaction.partition.max.bytes": "0",
    "remote.compaction.price.get": "0.0004",
    "remote.compaction.price.put": "0.005",
    "remote.compaction.price.storage": "0.023",
    "remote.compaction.read.chunk.bytes": "4194304",
    "remote.compaction.retry.backoff.ms": "300000",
    "remote.compaction.scratch.max.bytes": str(2**63 - 1),
    "remote.copy.max.requests.per.second": str(2**63 - 1),
    "remote.copy.object.bytes": "67108864",
    "remote.copy.stall.ms": "600000",
    "remote.log.manager.copier.thread.pool.size": "4",
    "remote.read.ahead.bytes": "33554432",
    "remote.read.cache.bytes": "201326592",
    "remote.read.chunk.bytes": "4194304",
    "remote.read.disk.cache.bytes": "0",
    "remote.read.hedge.percent": "5",
}
KAFKA_READ_ONLY = {
    "log.cleaner.enable",
    "log.flush.offset.checkpoint.interval.ms",
    "log.flush.scheduler.interval.ms",
    "log.flush.start.offset.checkpoint.interval.ms",
    "log.initial.task.delay.ms",
    "log.retention.check.interval.ms",
    "log.retention.hours",
    "log.retention.minutes",
    "log.roll.hours",
    "log.roll.jitter.hours",
    "producer.id.expiration.check.interval.ms",
}


def test_defaults_are_kafkas() -> None:
    assert {name: key.default for name, key in BROKER_KEYS.items()} == KAFKA_DEFAULTS | OURS
    assert BrokerConfig.from_overrides({}) == BrokerConfig()
    assert BrokerConfig().topic_defaults == LogConfig()


def test_the_same_keys_may_change_as_in_kafka() -> None:
    read_only = {name for name, key in BROKER_KEYS.items() if key.update_mode is UpdateMode.READ_ONLY}
    assert read_only == KAFKA_READ_ONLY | {name for name in OURS if name.startswith("remote.read.")}


def test_every_topic_key_but_tiering_and_strategy_has_a_default_of_the_server() -> None:
    """Another strategy deletes other records, so only a topic says so itself."""
    assert set(LogConfig.names()) - set(BROKER_KEY_OF_TOPIC_KEY) == {
        "compaction.strategy",
        "compaction.strategy.header",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
    }


@pytest.mark.parametrize(("name", "broker_name"), BROKER_KEY_OF_TOPIC_KEY.items())
def test_a_default_of_the_server_reaches_the_topic(name: str, broker_name: str) -> None:
    default = LogConfig().as_mapping()[name]
    others = ("2", "2048", "0.25", "true", "compact", "gzip", "LogAppendTime", "disk", "keep")
    value = next(text for text in others if text != default and is_taken(broker_name, text))
    config = BrokerConfig.from_overrides({broker_name: value})
    assert config.topic_defaults.as_mapping() == LogConfig().as_mapping() | {name: value}


def is_taken(name: str, text: str) -> bool:
    try:
        BrokerConfig.from_overrides({name: text})
    except InvalidConfigError:
        return False
    return True


def test_the_strongest_source_wins_and_all_are_described() -> None:
    layers = ConfigLayers({"log.segment.bytes": "2048"}, {"log.segment.bytes": "4096"})
    config = layers.resolve()
    assert config.topic_defaults.segment_bytes == 4096
    entry = layers.entry("log.segment.bytes")
    assert (entry.value, entry.source) == ("4096", ConfigSource.DYNAMIC_BROKER)
    assert [(one.value, one.source) for one in entry.synonyms] == [
        ("4096", ConfigSource.DYNAMIC_BROKER),
        ("2048", ConfigSource.STATIC_BROKER),
        ("1073741824", ConfigSource.DEFAULT),
    ]
    overrides = {"segment.bytes": "8192"}
    entries = layers.topic_entries(overrides, LogConfig.from_overrides(overrides, config.topic_defaults))
    [topic_entry] = [one for one in entries if one.name == "segment.bytes"]
    assert (topic_entry.value, topic_entry.source) == ("8192", ConfigSource.TOPIC)
    assert [one.name for one in topic_entry.synonyms] == ["segment.bytes"] + ["log.segment.bytes"] * 3
    [untouched] = [one for one in entries if one.name == "remote.storage.enable"]
    assert (untouched.value, untouched.source) == ("true", ConfigSource.DEFAULT)


@pytest.mark.parametrize(
    ("static", "dynamic", "retention_ms", "source"),
    [
        ({}, {}, 168 * 3_600_000, ConfigSource.DEFAULT),
        ({"log.retention.hours": "2"}, {}, 7_200_000, ConfigSource.STATIC_BROKER),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, {}, 180_000, ConfigSource.STATIC_BROKER),
        ({"log.retention.minutes": "3", "log.retention.ms": "4"}, {}, 4, ConfigSource.STATIC_BROKER),
        ({"log.retention.ms": "4"}, {"log.retention.ms": "5"}, 5, ConfigSource.DYNAMIC_BROKER),
        ({"log.retention.minutes": "3"}, {"log.retention.ms": "-1"}, -1, ConfigSource.DYNAMIC_BROKER),
        ({"log.retention.hours": "-1"}, {}, -1, ConfigSource.STATIC_BROKER),
    ],
)
def test_the_finest_unit_of_a_retention_counts(
    static: dict[str, str], dynamic: dict[str, str], retention_ms: int, source: ConfigSource
) -> None:
    layers = ConfigLayers(static, dynamic)
    assert layers.resolve().topic_defaults.retention_ms == retention_ms
    entry = layers.entry("log.retention.ms")
    assert (entry.value, entry.source) == (str(retention_ms), source)
    assert entry.synonyms[-1] == ("log.retention.hours", "168", ConfigSource.DEFAULT)


def test_rolls_have_hours_and_milliseconds() -> None:
    config = BrokerConfig.from_overrides(
        {"log.roll.hours": "1", "log.roll.jitter.hours": "2", "log.roll.jitter.ms": "3"}
    )
    assert (config.topic_defaults.segment_ms, config.topic_defaults.segment_jitter_ms) == (3_600_000, 3)


def test_a_key_without_setting_and_default_has_no_value() -> None:
    entry = ConfigLayers({}, {}).entry("log.retention.minutes")
    assert (entry.value, entry.synonyms, entry.source) == (None, (), ConfigSource.DEFAULT)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.retention.ms", "0"),
        ("log.retention.ms", "-2"),
        ("log.retention.hours", str(2**31)),
        ("log.roll.hours", "0"),
        ("log.cleaner.threads", "0"),
        ("log.cleaner.threads", "1025"),
        ("log.cleaner.dedupe.buffer.size", "1048575"),
        ("log.cleaner.io.buffer.load.factor", "1.1"),
        ("log.cleaner.io.buffer.load.factor", "0"),
        ("log.cleaner.io.max.bytes.per.second", "0.5"),
        ("log.cleaner.io.max.bytes.per.second", "1e999"),
        ("log.cleaner.min.cleanable.ratio", "nan"),
        ("log.cleanup.policy", "shred"),
        ("log.flush.scheduler.interval.ms", "0"),
        ("num.recovery.threads.per.data.dir", "0"),
        ("producer.id.expiration.ms", "0"),
        ("remote.compaction.job.max.inputs", "1"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(name: str, text: str) -> None:
    with pytest.raises(InvalidConfigError) as failure:
        BrokerConfig.from_overrides({name: text})
    assert (failure.value.fields["name"], failure.value.fields["value"]) == (name, text)
    assert failure.value.fields["allowed"]


def test_a_read_only_key_is_not_altered_at_run_time() -> None:
    with pytest.raises(InvalidConfigError) as refusal:
        ConfigLayers({}, {"log.retention.hours": "1"}).resolve()
    assert refusal.value.fields == {"name": "log.retention.hours", "value": "1", "allowed": "at a start only"}


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("retention.ms", "`log.retention.ms`"),
        ("log.dirs", "--log-dir"),
        ("num.partitions", "`num.partitions`"),
        ("queued.max.requests", "`stratalog config describe --broker`"),
    ],
)
def test_a_key_that_is_not_honoured_is_refused_with_the_right_name(name: str, named: str) -> None:
    with pytest.raises(InvalidConfigError, match=named) as failure:
        BrokerConfig.from_overrides({name: "1"})
    assert failure.value.fields["name"] == name


def test_a_mistyped_key_is_refused_with_the_near_ones() -> None:
    with pytest.raises(InvalidConfigError) as failure:
        BrokerConfig.from_overrides({"log.retention.mss": "1"})
    assert str(failure.value.fields["near"]).split(",")[0] == "log.retention.ms"


def test_values_that_contradict_each_other_are_refused_by_the_servers_names() -> None:
    with pytest.raises(InvalidConfigError) as failure:
        BrokerConfig.from_overrides({"log.local.retention.ms": "2", "log.retention.ms": "1"})
    assert failure.value.fields["name"] == "log.local.retention.ms"
    with pytest.raises(InvalidConfigError) as failure:
        BrokerConfig.from_overrides({"log.cleaner.threads": "200"})
    assert failure.value.fields["name"] == "log.cleaner.dedupe.buffer.size"


OTHER_VALUES = {
    "cordoned.log.dirs": "/a",
    "log.cleaner.enable": "false",
    "log.cleaner.io.buffer.load.factor": "0.5",
    "log.cleaner.io.max.bytes.per.second": "7000000.0",
    "log.cleaner.threads": "2",
    "num.recovery.threads.per.data.dir": "7",
    "remote.compaction.io.max.bytes.per.second": "7000000.0",
    "remote.compaction.job.max.inputs": "7",
    "remote.compaction.max.requests.per.second": "7.0",
    "remote.compaction.max.shards": "7",
    "remote.compaction.price.get": "0.3",
    "remote.compaction.price.put": "0.4",
    "remote.compaction.price.storage": "0.5",
    "remote.compaction.min.live.ratio": "0.7",
    "remote.log.manager.copier.thread.pool.size": "7",
    "remote.read.hedge.percent": "7",
}
FIELDS = {
    name: key
    for name, key in BROKER_KEYS.items()
    if key.field_name or key.cleaner_field or key.compaction_field
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_key_changes_its_own_field_and_no_other(name: str) -> None:
    text, key = OTHER_VALUES.get(name, "7000000"), FIELDS[name]
    config, default = BrokerConfig.from_overrides({name: text}), BrokerConfig()
    if key.field_name is not None:
        changed = {key.field_name: getattr(config, key.field_name)}
        expected = dataclasses.replace(default, **changed)
    elif key.compaction_field is not None:
        settings = compaction_settings(config, "/spool")
        changed = {key.compaction_field: getattr(settings, key.compaction_field)}
        assert settings == dataclasses.replace(CompactionSettings(spool_directory="/spool"), **changed)
        expected = dataclasses.replace(default, compaction=changed)
    else:
        assert key.cleaner_field is not None
        changed = {key.cleaner_field: getattr(config.cleaner_settings, key.cleaner_field)}
        expected = dataclasses.replace(
            default, cleaner_settings=dataclasses.replace(default.cleaner_settings, **changed)
        )
    assert key.key.format(*changed.values()) == text
    assert config == expected


def test_every_field_has_one_key() -> None:
    fields = [key.field_name for key in FIELDS.values() if key.field_name]
    assert sorted([*fields, "topic_defaults", "cleaner_settings", "compaction"]) == sorted(
        BrokerConfig.__dataclass_fields__
    )
    cleaner_fields = [key.cleaner_field for key in FIELDS.values() if key.cleaner_field]
    assert sorted(cleaner_fields) == sorted(CleanerSettings.__dataclass_fields__)
    compaction_fields = [key.compaction_field for key in FIELDS.values() if key.compaction_field]
    of_the_process = ["spool_directory", "shard_count"]
    assert sorted([*compaction_fields, *of_the_process]) == sorted(CompactionSettings.__dataclass_fields__)


def test_a_value_is_shown_as_it_is_understood() -> None:
    static = {"log.cleaner.enable": "FALSE", "cordoned.log.dirs": "/a//b/, /c", "log.roll.ms": " 5 "}
    values = {entry.name: entry.value for entry in ConfigLayers(static, {}).entries()}
    assert list(values) == list(BROKER_KEYS)
    assert [values[name] for name in static] == ["false", "/a/b,/c", "5"]
    assert values["log.cleaner.io.max.bytes.per.second"] == str(sys.float_info.max)
