"""A topic's configuration: Kafka's names and defaults, and nothing that is accepted without being
honoured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import pytest

from stratalog.base.errors import InvalidConfigError, InvalidRequestError
from stratalog.base.types import Durability
from stratalog.log.config_key import MAX_VALUE_LENGTH
from stratalog.log.log_config import LogConfig
from stratalog.record.codecs.compression import Codec, require_level
from stratalog.record.header import TimestampType
from stratalog.record.keep_rules import VersionRule

# Kafka's documentation of the topic configuration, 4.x; keys that are ours alone are left out.
KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "index.interval.bytes": "4096",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
}


def test_defaults_are_kafkas() -> None:
    ours = LogConfig().as_mapping()
    assert {name: ours[name] for name in KAFKA_DEFAULTS} == KAFKA_DEFAULTS
    assert {name: text for name, text in ours.items() if name not in KAFKA_DEFAULTS} == {
        "compaction.strategy": "offset",
        "compaction.strategy.header": "",
        "min.durability": "os",
        "remote.copy.backlog.policy": "block",
        "remote.copy.max.age.ms": "300000",
        "remote.copy.pause": "false",
        "remote.storage.enable": "true",
    }


def test_overrides_reach_their_fields() -> None:
    config = LogConfig.from_overrides(
        {
            "cleanup.policy": " compact , delete ",
            "segment.bytes": "65536",
            "min.durability": "disk",
            "remote.storage.enable": "FALSE",
            "message.timestamp.type": "LogAppendTime",
            "local.retention.ms": "1000",
            "retention.bytes": "5000",
        }
    )
    assert config.cleanup_policy == {"compact", "delete"}
    assert config.is_compacted
    assert config.is_deleted
    assert config.segment_bytes == 65536
    assert config.min_durability is Durability.DISK
    assert not config.remote_storage_enable
    assert config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    assert config.effective_local_retention_ms == 1000
    assert config.effective_local_retention_bytes == 5000
    assert LogConfig.from_overrides(config.as_mapping()) == config


@pytest.mark.parametrize("text", ["", " "])
def test_neither_policy_is_one_too(text: str) -> None:
    config = LogConfig.from_overrides({"cleanup.policy": text})
    assert (config.is_compacted, config.is_deleted) == (False, False)
    assert config.as_mapping()["cleanup.policy"] == ""
    assert LogConfig.from_overrides(config.as_mapping()) == config


def test_versions_are_in_timestamps_or_in_a_header() -> None:
    header = {"compaction.strategy.header": "é"}
    assert LogConfig.from_overrides(header).version_rule is None
    by_time = LogConfig.from_overrides({**header, "compaction.strategy": "timestamp"})
    assert by_time.version_rule == VersionRule(None)
    by_header = LogConfig.from_overrides({**header, "compaction.strategy": "header"})
    assert by_header.version_rule == VersionRule("é".encode())
    assert LogConfig.from_overrides(by_header.as_mapping()) == by_header


def test_versions_in_a_header_need_its_name() -> None:
    for named in ({}, {"compaction.strategy.header": " "}):
        with pytest.raises(InvalidConfigError) as refused:
            LogConfig.from_overrides({"compaction.strategy": "header", **named})
        assert refused.value.fields["name"] == "compaction.strategy.header"
    # A topic whose name came from a default that is gone stays usable: no record has a version.
    config = LogConfig.in_force({"compaction.strategy": "header"}, LogConfig())
    assert config.version_rule == VersionRule(b"")


def test_every_field_is_documented_and_immutable() -> None:
    config = LogConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, "segment_bytes", 1)  # noqa: B010 - the type checker would not let it be written plainly
    assert sorted(LogConfig.names()) == list(LogConfig.names())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("compaction.strategy", "newest"),
        ("compaction.strategy", ""),
        ("cleanup.policy", "shred"),
        ("cleanup.policy", ","),
        ("cleanup.policy", "delete,"),
        ("compression.type", "none"),
        ("compression.type", "ZSTD"),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("compression.gzip.level", "-2"),
        ("compression.lz4.level", "0"),
        ("compression.lz4.level", "18"),
        ("compression.zstd.level", "23"),
        ("compression.zstd.level", "-131073"),
        ("message.timestamp.after.max.ms", "-1"),
        ("message.timestamp.before.max.ms", "-1"),
        ("retention.ms", "-2"),
        ("retention.ms", "week"),
        ("retention.ms", "1_000"),
        ("retention.ms", "٣"),
        ("retention.ms", str(2**63)),
        ("segment.bytes", "100"),
        ("segment.bytes", str(2**31)),
        ("flush.messages", "0"),
        ("flush.ms", "-1"),
        ("segment.jitter.ms", "-1"),
        ("segment.ms", "0"),
        ("segment.index.bytes", "12"),
        ("local.retention.ms", "-3"),
        ("max.compaction.lag.ms", "0"),
        ("min.cleanable.dirty.ratio", "1.01"),
        ("min.cleanable.dirty.ratio", "-0.1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "0_1"),
        ("min.cleanable.dirty.ratio", "half"),
        ("message.timestamp.type", "createtime"),
        ("min.durability", "bucket"),
        ("preallocate", "1"),
        ("remote.storage.enable", "yes"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(name: str, text: str) -> None:
    with pytest.raises(InvalidConfigError) as failure:
        LogConfig.from_overrides({name: text})
    assert failure.value.fields["name"] == name
    assert failure.value.fields["value"] == text
    assert failure.value.fields["allowed"]


@pytest.mark.parametrize("name", ["unclean.leader.election.enable", "min.insync.replicas"])
def test_kafkas_other_keys_are_refused_as_not_yet_honoured(name: str) -> None:
    with pytest.raises(InvalidConfigError) as failure:
        LogConfig.from_overrides({name: "1"})
    assert "not honour" in failure.value.message
    assert failure.value.fields == {"name": name, "value": "1"}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("retention.mss", "retention.ms"),
        ("cleanup.polcy", "cleanup.policy"),
        ("segmnt.bytes", "segment.bytes"),
    ],
)
def test_an_unknown_key_is_refused_with_the_near_ones(name: str, near: str) -> None:
    with pytest.raises(InvalidConfigError) as failure:
        LogConfig.from_overrides({name: "1"})
    assert str(failure.value.fields["near"]).split(",")[0] == near


def test_an_unknown_key_without_a_near_one_is_refused() -> None:
    with pytest.raises(InvalidConfigError) as failure:
        LogConfig.from_overrides({"x": "1"})
    assert failure.value.fields == {"name": "x", "value": "1"}


@pytest.mark.parametrize(
    "overrides",
    [
        {"local.retention.ms": "2", "retention.ms": "1"},
        {"local.retention.ms": "-1", "retention.ms": "1"},
        {"local.retention.bytes": "2", "retention.bytes": "1"},
        {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"},
        {"min.durability": "object", "remote.storage.enable": "false"},
        {"min.durability": "object", "remote.log.copy.disable": "true"},
    ],
)
def test_keys_that_contradict_each_other_are_refused(overrides: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigError) as failure:
        LogConfig.from_overrides(overrides)
    assert failure.value.fields["name"] in overrides


def test_what_a_topic_does_not_set_is_the_servers_default() -> None:
    defaults = LogConfig(retention_ms=5, segment_bytes=4096, min_cleanable_dirty_ratio=0.25)
    config = LogConfig.from_overrides({"segment.bytes": "2048"}, defaults)
    assert (config.retention_ms, config.segment_bytes) == (5, 2048)
    assert config.as_mapping()["min.cleanable.dirty.ratio"] == "0.25"
    assert LogConfig.from_overrides(config.as_mapping()) == config


def test_a_topic_that_was_accepted_stays_usable_when_the_servers_defaults_are_altered() -> None:
    overrides, defaults = {"local.retention.ms": "2"}, LogConfig(retention_ms=1)
    with pytest.raises(InvalidConfigError) as failure:
        LogConfig.from_overrides(overrides, defaults)
    assert failure.value.fields["name"] == "local.retention.ms"
    assert LogConfig.in_force(overrides, defaults).effective_local_retention_ms == 2
    with pytest.raises(InvalidConfigError):
        LogConfig.in_force({"local.retention.ms": "2", "retention.ms": "1"}, LogConfig())


def test_local_retention_may_be_unlimited_where_the_total_is() -> None:
    LogConfig.from_overrides(
        {"local.retention.ms": "-1", "retention.ms": "-1", "local.retention.bytes": "77"}
    )


@pytest.mark.parametrize(
    ("text", "codecs"),
    [
        ("producer", list(Codec)),
        ("uncompressed", [Codec.NONE] * 5),
        ("gzip", [Codec.GZIP] * 5),
        ("snappy", [Codec.SNAPPY] * 5),
        ("lz4", [Codec.LZ4] * 5),
        ("zstd", [Codec.ZSTD] * 5),
    ],
)
def test_the_compression_type_says_what_a_batch_is_stored_in(text: str, codecs: list[Codec]) -> None:
    config = LogConfig.from_overrides({"compression.type": text})
    assert [config.compression_type.codec_for(source) for source in Codec] == codecs
    assert config.as_mapping()["compression.type"] == text


def test_a_level_is_that_of_its_codec_and_kafkas_defaults_are_the_codecs_own() -> None:
    defaults = LogConfig()
    assert [defaults.compression_level(codec) for codec in Codec] == [None, None, None, None, 3]
    config = LogConfig.from_overrides(
        {"compression.gzip.level": "1", "compression.lz4.level": "17", "compression.zstd.level": "-5"}
    )
    assert [config.compression_level(codec) for codec in Codec] == [None, 1, None, 17, -5]
    for codec in Codec:
        require_level(codec, config.compression_level(codec))
        require_level(codec, defaults.compression_level(codec))


@pytest.mark.parametrize(
    ("codec", "name", "levels"),
    [
        (Codec.GZIP, "compression.gzip.level", range(-3, 13)),
        (Codec.LZ4, "compression.lz4.level", range(-3, 20)),
        (Codec.ZSTD, "compression.zstd.level", [-(2**17) - 1, -(2**17), -1, 0, 1, 22, 23]),
    ],
)
def test_the_levels_that_a_topic_takes_are_those_that_the_codec_takes(
    codec: Codec, name: str, levels: Iterable[int]
) -> None:
    for level in levels:
        if codec is Codec.GZIP and level == -1:
            continue
        assert is_refused(LogConfig.from_overrides, {name: str(level)}) == is_refused(
            require_level, codec, level
        ), level


def is_refused(call: Callable[..., object], *args: object) -> bool:
    try:
        call(*args)
    except InvalidRequestError:
        return True
    return False


@pytest.mark.parametrize(("name", "most"), [("retention.ms", 2**63 - 1), ("segment.bytes", 2**31 - 1)])
def test_an_error_about_too_much_names_the_bound(name: str, most: int) -> None:
    LogConfig.from_overrides({name: str(most)})
    with pytest.raises(InvalidConfigError) as failure:
        LogConfig.from_overrides({name: str(most + 1)})
    assert str(failure.value.fields["allowed"]).endswith(f"and at most {most}")


@pytest.mark.parametrize("name", ["retention.ms", "min.cleanable.dirty.ratio", "compaction.strategy.header"])
def test_a_value_has_a_longest_text(name: str) -> None:
    """Spaces around a value and zeros before it are taken, and stay in the catalog."""
    LogConfig.from_overrides({"retention.ms": " " * (MAX_VALUE_LENGTH - 1) + "1"})
    with pytest.raises(InvalidConfigError) as refusal:
        LogConfig.from_overrides({name: "1".rjust(MAX_VALUE_LENGTH + 1)})
    assert refusal.value.fields["name"] == name
    assert len(str(refusal.value)) < 1_000


def test_no_near_key_is_looked_for_behind_a_long_name() -> None:
    with pytest.raises(InvalidConfigError) as refusal:
        LogConfig.from_overrides({"retention.ms" + "s" * 1_000: "1"})
    assert "near" not in refusal.value.fields
