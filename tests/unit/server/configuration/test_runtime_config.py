"""What is altered at run time: checked first, durable, and told to whom it concerns."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from stratalog.base.errors import DataDirectoryError, InvalidConfigError
from stratalog.server.configuration.broker_config import BrokerConfig
from stratalog.server.configuration.broker_config_file import (
    BROKER_CONFIG_FILE,
    StoredConfig,
    format_broker_config,
)
from stratalog.server.configuration.config_entry import ConfigChange
from stratalog.server.configuration.runtime_config import RuntimeConfig
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival

PATH = f"/data/{BROKER_CONFIG_FILE}"
MAX_REQUEST_BYTES = 1 << 25


class Noted:
    """Notes what it is told, and refuses or fails where a test says so."""

    def __init__(self) -> None:
        self.applied: list[BrokerConfig] = []
        self.refusal: InvalidConfigError | None = None
        self.failure: DataDirectoryError | None = None

    def require_applicable(self, config: BrokerConfig) -> None:
        if self.refusal is not None:
            raise self.refusal

    def apply(self, config: BrokerConfig) -> None:
        self.applied.append(config)
        if self.failure is not None:
            raise self.failure


def disk_with(text: str | None = None) -> MemoryFileSystem:
    disk = MemoryFileSystem()
    disk.make_directories("/data")
    if text is not None:
        file = disk.open_append(PATH)
        file.append([text.encode()])
        file.close()
    return disk


def opened(disk: MemoryFileSystem, **static: str) -> RuntimeConfig:
    keys = {name.replace("_", "."): value for name, value in static.items()}
    return RuntimeConfig.open(disk, ("/data",), keys, MAX_REQUEST_BYTES)


def set_to(**values: str) -> tuple[ConfigChange, ...]:
    return tuple(ConfigChange(name.replace("_", "."), value) for name, value in values.items())


def test_what_is_altered_holds_at_once_and_after_a_restart() -> None:
    disk = disk_with()
    runtime, noted = opened(disk, log_retention_ms="9"), Noted()
    runtime.add(noted)
    runtime.alter(set_to(log_retention_ms="-1", log_segment_bytes="4096"))
    assert [config.topic_defaults.retention_ms for config in noted.applied] == [-1]
    assert runtime.topic_defaults.segment_bytes == 4096
    again = opened(disk, log_retention_ms="9")
    assert again.current == runtime.current
    again.alter((ConfigChange("log.retention.ms", None), ConfigChange("log.roll.ms", None)))
    assert opened(disk, log_retention_ms="9").topic_defaults.retention_ms == 9
    assert opened(disk).topic_defaults.segment_bytes == 4096


def test_what_changes_nothing_is_not_told() -> None:
    runtime, noted = opened(disk_with()), Noted()
    runtime.add(noted)
    runtime.alter((ConfigChange("log.segment.bytes", None),))
    runtime.alter(set_to(log_segment_bytes="4096"), validate_only=True)
    assert (noted.applied, runtime.current) == ([], BrokerConfig.of({}))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (set_to(log_retention_ms="5", log_segment_bytes="1"), "log.segment.bytes"),
        (set_to(log_retention_ms="5", retention_ms="5"), "retention.ms"),
        (set_to(log_retention_ms="5", log_retention_hours="5"), "log.retention.hours"),
        (set_to(log_retention_ms="5", message_max_bytes=str(MAX_REQUEST_BYTES + 1)), "message.max.bytes"),
        ((ConfigChange("no.such.key", None),), "no.such.key"),
    ],
)
def test_what_is_refused_changes_nothing(changes: tuple[ConfigChange, ...], name: str) -> None:
    disk = disk_with()
    runtime, noted = opened(disk), Noted()
    runtime.add(noted)
    with pytest.raises(InvalidConfigError) as refusal:
        runtime.alter(changes)
    assert refusal.value.fields["name"] == name
    assert (noted.applied, runtime.current, disk.exists(PATH)) == ([], BrokerConfig.of({}), False)


def test_whoever_cannot_go_by_it_refuses_it_for_all() -> None:
    disk = disk_with()
    runtime, noted = opened(disk), Noted()
    runtime.add(noted)
    noted.refusal = InvalidConfigError("no", name="log.cleaner.threads", value=2, allowed="1")
    with pytest.raises(InvalidConfigError):
        runtime.alter(set_to(log_cleaner_threads="2"))
    assert (noted.applied, disk.exists(PATH)) == ([], False)


def test_what_cannot_be_applied_everywhere_stands_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    runtime, failing, other = opened(disk_with()), Noted(), Noted()
    failing.failure = DataDirectoryError("a disk failed", path="/data/t-0")
    runtime.add(failing)
    runtime.add(other)
    with caplog.at_level(logging.WARNING):
        runtime.alter(set_to(log_retention_ms="5"))
    assert runtime.topic_defaults.retention_ms == 5
    assert len(other.applied) == 1
    assert "a disk failed" in caplog.text


def altered_with(fault: Callable[[FaultyFileSystem, int], None], operation: int) -> FaultyFileSystem | None:
    """The disk after an alteration from 7 to -1 that met a fault at this of its operations; None where it has
    fewer."""
    disk = FaultyFileSystem()
    disk.make_directories("/data")
    disk.sync_directory("/")
    first = RuntimeConfig.open(disk, ("/data",), {}, MAX_REQUEST_BYTES)
    first.alter(set_to(log_retention_ms="7"))
    runtime = RuntimeConfig.open(disk, ("/data",), {}, MAX_REQUEST_BYTES)
    fault(disk, disk.operation_count + operation)
    try:
        runtime.alter(set_to(log_retention_ms="-1"))
    except (SimulatedCrash, DataDirectoryError):
        assert runtime.topic_defaults.retention_ms == 7
        return disk
    return None


@pytest.mark.parametrize("survival", [Survival(Kept.NONE, names) for names in (Kept.NONE, Kept.ALL)])
@pytest.mark.parametrize("fault", [FaultyFileSystem.crash_at, FaultyFileSystem.fail_at])
def test_a_crash_and_an_error_leave_the_old_configuration_or_the_new_one(
    fault: Callable[[FaultyFileSystem, int], None], survival: Survival
) -> None:
    found: set[int] = set()
    operation = 1
    while (disk := altered_with(fault, operation)) is not None:
        after = RuntimeConfig.open(disk.reopened(survival), ("/data",), {}, MAX_REQUEST_BYTES)
        found.add(after.topic_defaults.retention_ms)
        operation += 1
    assert operation > 5, "opens, truncates, appends, syncs, renames, syncs the directory"
    assert found <= {7, -1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "version is None"),
        ("version=2\n", "version is 2"),
        ("version=0\nlog.retention.ms\n", "is not KEY=VALUE"),
        ("version=0\nlog.roll.ms=1\nlog.roll.ms=2\n", "is there twice"),
        (format_broker_config(StoredConfig({"log.retention.ms": "-1"}, 3)).replace("=-1", "=-3"), "checksum"),
        (
            format_broker_config(StoredConfig({"log.retention.ms": "-1"}, 3)).replace(
                "log.retention.ms=-1\n", ""
            ),
            "checksum",
        ),
    ],
)
def test_a_damaged_file_stops_the_start_and_says_what_to_do(text: str, reason: str) -> None:
    with pytest.raises(DataDirectoryError, match="or remove it") as damage:
        opened(disk_with(text))
    assert damage.value.fields["path"] == PATH
    assert reason in str(damage.value.fields["reason"])


def test_bytes_that_are_no_text_are_damage() -> None:
    disk = disk_with()
    file = disk.open_append(PATH)
    file.append([b"\xff\xfe"])
    file.close()
    with pytest.raises(DataDirectoryError, match="damaged"):
        opened(disk)


def test_a_file_that_a_human_wrote_counts() -> None:
    text = "version=0\n\n# kept for the audit\n log.retention.ms = -1 \n"
    assert opened(disk_with(text)).topic_defaults.retention_ms == -1


@pytest.mark.parametrize(
    "line",
    ["key.of.the.future=1", "log.retention.hours=1", "log.retention.ms=week", "message.max.bytes=99999999"],
)
def test_a_key_in_the_file_that_is_not_taken_stops_the_start(line: str) -> None:
    with pytest.raises(InvalidConfigError) as refusal:
        opened(disk_with(f"version=0\n{line}\n"))
    assert refusal.value.fields["name"] == line.partition("=")[0]
