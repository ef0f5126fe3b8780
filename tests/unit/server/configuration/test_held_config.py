"""Where nobody knows what was altered nothing goes by the server's own keys; what is known still counts."""

from __future__ import annotations

import errno
import itertools
import logging
import re
from collections.abc import Container, Mapping

import pytest

from stratalog.base.errors import DataDirectoryError, InvalidConfigError
from stratalog.base.filesystem import FileSystem
from stratalog.log.config_key import LONG_MAX
from stratalog.log.log_config import LogConfig
from stratalog.server.configuration.broker_config import BrokerConfig
from stratalog.server.configuration.broker_config_copies import BrokerConfigCopies
from stratalog.server.configuration.broker_config_file import (
    BROKER_CONFIG_FILE,
    BrokerConfigFile,
    StoredConfig,
    format_broker_config,
    parse_broker_config,
)
from stratalog.server.configuration.config_entry import ConfigChange
from stratalog.server.configuration.held_config import HELD_CONFIG, still_held, tell_of_held
from stratalog.server.configuration.runtime_config import RuntimeConfig
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.memory_filesystem import Kept, Survival

NEW, TRUE = "/new", "/true"
HELD = dict(HELD_CONFIG)
KEEP = {"log.retention.ms": "99"}
DROP = {"log.retention.ms": "5"}
STAND_IN = StoredConfig(HELD, 1, is_stand_in=True)


def disk_with(stored: Mapping[str, StoredConfig]) -> FaultyFileSystem:
    disk = FaultyFileSystem()
    for directory in (NEW, TRUE):
        disk.make_directories(directory)
    disk.sync_directory("/")
    for directory, one in stored.items():
        BrokerConfigFile(disk, directory).write(one)
    return disk


def started(
    disk: FileSystem, *directories: str, is_unknown: bool = False, current: Container[str] = (NEW, TRUE)
) -> BrokerConfigCopies:
    """`current`: directories since whose last use nobody else has owned the store."""
    copies = BrokerConfigCopies(disk, directories)
    copies.read()
    copies.settle(disk, lambda: directories, is_unknown=is_unknown, is_current=lambda path: path in current)
    return copies


def in_each(disk: FileSystem, *directories: str) -> list[StoredConfig | None]:
    return [BrokerConfigFile(disk, directory).read() for directory in directories]


@pytest.mark.parametrize(
    "static",
    [
        {},
        {"log.retention.ms": "5", "log.retention.bytes": "5"},
        {"log.retention.minutes": "1", "log.retention.hours": "1"},
        {"log.local.retention.ms": "5", "log.local.retention.bytes": "5", "log.retention.ms": "9"},
        {"log.cleanup.policy": "compact", "log.cleaner.max.compaction.lag.ms": "5"},
        {"log.cleanup.policy": "compact,delete", "log.cleaner.delete.retention.ms": "0"},
    ],
)
def test_whatever_the_start_is_given_nothing_goes_by_the_servers_own_keys(static: Mapping[str, str]) -> None:
    defaults = BrokerConfig.of(static, HELD).topic_defaults
    assert (defaults.retention_ms, defaults.retention_bytes) == (-1, -1)
    assert (defaults.min_compaction_lag_ms, defaults.delete_retention_ms) == (LONG_MAX, LONG_MAX)
    # What a topic sets for one policy does nothing before it is known which one it had.
    bare = LogConfig.in_force({"retention.ms": "7", "min.compaction.lag.ms": "0"}, defaults)
    assert (bare.is_deleted, bare.is_compacted) == (False, False)
    # What a topic sets holds all the same, and none is refused because of what is held.
    sets = {
        "retention.ms": "7",
        "retention.bytes": "8",
        "local.retention.ms": "7",
        "cleanup.policy": "delete",
    }
    own = LogConfig.in_force({**sets, "max.compaction.lag.ms": "9"}, defaults)
    assert (own.retention_ms, own.retention_bytes, own.max_compaction_lag_ms) == (7, 8, 9)
    assert (own.is_deleted, own.is_compacted) == (True, False)


def test_a_stand_in_is_written_as_one_and_read_as_one() -> None:
    for overrides, replaces_older in itertools.product((HELD, {}, KEEP), (False, True)):
        stored = StoredConfig(overrides, 3, is_stand_in=True, replaces_older=replaces_older)
        text = format_broker_config(stored)
        assert parse_broker_config(text) == stored
        edited = re.sub("checksum=.*\n", "", text)
        assert parse_broker_config(edited) == stored._replace(is_edited=True)
        genuine = re.sub("stand_in=.*\n", "", edited)
        assert parse_broker_config(genuine) == StoredConfig(overrides, 3, is_edited=True)
        for damaged in (re.sub("stand_in=.*\n", "", text), re.sub("(stand_in)=.*", r"\1=no", edited)):
            with pytest.raises(ValueError, match=r"checksum|stand_in"):
                parse_broker_config(damaged)


def test_it_is_begun_in_each_directory_and_goes_on_as_one_whatever_is_altered() -> None:
    disk = disk_with({})
    copies = started(disk, NEW, TRUE, is_unknown=True)
    assert copies.overrides == copies.held == HELD
    assert in_each(disk, NEW, TRUE) == [STAND_IN] * 2
    less = {name: text for name, text in HELD.items() if name != "log.retention.ms"}
    copies.write(less)
    again = started(disk, NEW, TRUE, is_unknown=True)
    assert again.overrides == again.held == less
    again.write({**less, **KEEP})
    assert again.held == less
    again.write({})
    assert again.held == {}
    assert in_each(disk, NEW, TRUE) == [StoredConfig({}, 4, is_stand_in=True)] * 2
    assert started(disk, NEW, is_unknown=True).overrides == {}


@pytest.mark.parametrize(("is_unknown", "found"), [(False, None), (True, KEEP), (True, {})])
def test_it_is_begun_only_where_nobody_knows(is_unknown: bool, found: Mapping[str, str] | None) -> None:
    stored = StoredConfig(dict(found or {}), 0)
    disk = disk_with({} if found is None else {NEW: stored})
    copies = started(disk, NEW, is_unknown=is_unknown)
    assert (copies.overrides, copies.held) == (found or {}, {})
    assert in_each(disk, NEW) == [stored]


@pytest.mark.parametrize("operation", range(1, 7))
def test_where_it_cannot_be_written_there_is_no_start(operation: int) -> None:
    disk = disk_with({})
    copies = BrokerConfigCopies(disk, (NEW, TRUE))
    copies.read()
    # The last ones are of the second directory.
    disk.fail_at(disk.operation_count + 2 + 2 * operation, number=errno.ENOSPC)
    with pytest.raises(DataDirectoryError, match="is to keep records"):
        copies.settle(disk, lambda: (NEW, TRUE), is_unknown=True)
    assert started(disk, NEW, TRUE, is_unknown=True).overrides == HELD
    assert in_each(disk, NEW, TRUE) == [STAND_IN] * 2


@pytest.mark.parametrize("generation", [0, 1, 2, 7])
@pytest.mark.parametrize("stand_in_generation", [1, 5])
@pytest.mark.parametrize("known", [KEEP, DROP, {}])
def test_what_is_known_after_all_counts_whatever_the_generations_are(
    generation: int, stand_in_generation: int, known: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    true = StoredConfig(known, generation)
    for directories in ((NEW, TRUE), (TRUE, NEW)):
        disk = disk_with({NEW: STAND_IN._replace(generation=stand_in_generation), TRUE: true})
        caplog.clear()
        copies = started(disk, *directories)
        assert (copies.overrides, copies.held) == (known, {})
        assert in_each(disk, NEW, TRUE) == [true] * 2
        assert "log.cleaner.min.compaction.lag.ms" in caplog.text
        copies.write(DROP)
        assert in_each(disk, NEW, TRUE) == [StoredConfig(DROP, generation + 1)] * 2
    # Alone each says its own.
    disk = disk_with({NEW: STAND_IN, TRUE: true})
    assert started(disk, TRUE).overrides == known
    assert started(disk, NEW).overrides == HELD


@pytest.mark.parametrize("generation", [1, 9])
@pytest.mark.parametrize("altered", [{}, DROP, {**HELD, "log.roll.ms": "7"}])
def test_one_that_was_altered_does_not_give_way_by_itself_and_never_wins(
    generation: int, altered: dict[str, str]
) -> None:
    stored = {NEW: StoredConfig(altered, 4, is_stand_in=True), TRUE: StoredConfig(KEEP, generation)}
    for directories in ((NEW, TRUE), (TRUE, NEW)):
        disk = disk_with(stored)
        with pytest.raises(DataDirectoryError, match="remove the wrong one") as failure:
            started(disk, *directories)
        assert failure.value.fields["path"] == f"{NEW}/{BROKER_CONFIG_FILE}"
        assert failure.value.fields["other_path"] == f"{TRUE}/{BROKER_CONFIG_FILE}"
        assert in_each(disk, NEW, TRUE) == [*stored.values()]
        # As the error says, either of them may be the wrong one.
        for wrong, right in ((NEW, KEEP), (TRUE, altered)):
            disk = disk_with(stored)
            disk.unlink(f"{wrong}/{BROKER_CONFIG_FILE}")
            assert started(disk, *directories).overrides == right
    # Or a human says which one goes on.
    disk = disk_with({TRUE: stored[TRUE]})
    text = format_broker_config(StoredConfig(altered, generation + 1))
    disk.open_append(f"{NEW}/{BROKER_CONFIG_FILE}").append([re.sub("checksum=.*\n", "", text).encode()])
    assert started(disk, NEW, TRUE).overrides == altered
    assert started(disk, TRUE).overrides == altered
    # Where both say the same nobody has to choose.
    disk = disk_with({NEW: StoredConfig(KEEP, 9, is_stand_in=True), TRUE: StoredConfig(KEEP, 2)})
    assert started(disk, NEW, TRUE).overrides == KEEP
    assert in_each(disk, NEW, TRUE) == [StoredConfig(KEEP, 2)] * 2


def test_damage_that_may_have_been_what_is_known_stops_the_start() -> None:
    disk = disk_with({NEW: STAND_IN._replace(generation=9), TRUE: StoredConfig(KEEP, 3)})
    text = disk.read_file(f"{TRUE}/{BROKER_CONFIG_FILE}").replace(b"=99", b"=98")
    disk.unlink(f"{TRUE}/{BROKER_CONFIG_FILE}")
    disk.open_append(f"{TRUE}/{BROKER_CONFIG_FILE}").append([text])
    for directories in ((NEW, TRUE), (TRUE, NEW)):
        with pytest.raises(DataDirectoryError, match="is damaged"):
            started(disk, *directories)


@pytest.mark.parametrize("survival", [Survival(Kept.NONE, names) for names in (Kept.NONE, Kept.ALL)])
def test_a_crash_while_it_gives_way_leaves_what_is_known(survival: Survival) -> None:
    for operation in itertools.count(1):
        disk = disk_with({NEW: STAND_IN._replace(generation=9), TRUE: StoredConfig(KEEP, 3)})
        disk.crash_at(disk.operation_count + operation)
        try:
            started(disk, NEW, TRUE)
        except SimulatedCrash:
            disk = disk.reopened(survival)
            assert started(disk, NEW, TRUE).overrides == KEEP
            assert started(disk, TRUE).overrides == KEEP
        else:
            assert operation > 6
            return


def restarted(disk: FileSystem, caplog: pytest.LogCaptureFixture) -> tuple[RuntimeConfig, list[str]]:
    """A server that is given five milliseconds of retention, and its warnings."""
    runtime = RuntimeConfig.open(disk, (NEW,), {"log.retention.ms": "5"}, 1 << 25)
    runtime.settle(disk, lambda: (NEW,), is_unknown=True)
    caplog.clear()
    tell_of_held(runtime.held, (NEW,), "s3://bucket")
    assert {record.levelno for record in caplog.records} <= {logging.WARNING}
    return runtime, caplog.messages


def test_it_is_in_force_at_once_is_told_and_is_taken_back_as_the_log_says(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = disk_with({})
    first, said = restarted(disk, caplog)
    runtime, said_again = restarted(disk, caplog)
    assert (first.topic_defaults.retention_ms, runtime.topic_defaults.retention_ms) == (-1, -1)
    assert (first.topic_defaults.is_deleted, runtime.topic_defaults.is_deleted) == (False, False)
    assert said == said_again
    [message] = said
    assert f"path=`{NEW}` store=`s3://bucket`" in message
    assert all(f"{name}={text}" in message for name, text in HELD.items())
    [arguments] = re.findall("`stratalog config alter --broker (.*)` take the rest", message)
    names = re.findall("--delete ([^ ]+)", arguments)
    runtime.alter(tuple(ConfigChange(name, None) for name in names))
    assert runtime.topic_defaults.retention_ms == 5
    assert runtime.topic_defaults.is_deleted
    assert still_held(runtime.current.dynamic) == {}
    runtime, said = restarted(disk, caplog)
    assert (runtime.topic_defaults.retention_ms, said) == (5, [])


def test_what_is_refused_for_what_is_held_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """And what is refused without anything held does not."""
    disk = disk_with({})
    runtime, _ = restarted(disk, caplog)
    lag = ConfigChange("log.cleaner.max.compaction.lag.ms", "1000")
    with pytest.raises(InvalidConfigError, match=r"contradicts another key.*held until you") as refused:
        runtime.alter((lag,))
    assert refused.value.fields["name"] == "log.cleaner.min.compaction.lag.ms"
    assert "log.cleaner.min.compaction.lag.ms" in str(refused.value.fields["held"])
    assert lag.name not in str(refused.value.fields["held"])
    with pytest.raises(InvalidConfigError) as refused:
        runtime.alter((ConfigChange("num.recovery.threads.per.data.dir", "0"),))
    assert "held" not in refused.value.fields
    runtime.alter((lag, ConfigChange("log.cleaner.min.compaction.lag.ms", "900")))
    runtime.alter(tuple(ConfigChange(name, None) for name in HELD if name != lag.name))
    with pytest.raises(InvalidConfigError) as refused:
        runtime.alter((ConfigChange("log.cleaner.min.compaction.lag.ms", "2000"),))
    assert "held" not in refused.value.fields
    assert "held" not in refused.value.message


@pytest.mark.parametrize("found", [StoredConfig({**DROP, "log.roll.ms": "7"}, 4), StoredConfig({}, 0)])
def test_what_is_out_of_date_is_held_beside_what_else_was_altered_and_does_not_come_back(
    found: StoredConfig, caplog: pytest.LogCaptureFixture
) -> None:
    disk = disk_with({NEW: found, TRUE: found})
    wanted = StoredConfig(
        {**found.overrides, **HELD}, found.generation + 1, is_stand_in=True, replaces_older=True
    )
    # The other one is away, and again and again the machine dies before it has claimed the store.
    copies = started(disk, NEW, current=())
    for _ in range(2):
        copies = started(disk, NEW, current=())
        assert (copies.overrides, copies.held) == (wanted.overrides, HELD)
        assert in_each(disk, NEW, TRUE) == [wanted, found]
    said = [message for message in caplog.messages if "others have owned the store since" in message]
    assert len(said) == 1
    assert ("said log.retention.ms=5, path" in said[0]) is bool(found.overrides)
    assert "log.roll.ms" not in said[0]
    # What it still has is out of date, whoever is named first, and whatever was altered since.
    copies.write(KEEP)
    for directories in ((NEW, TRUE), (TRUE, NEW)):
        copies = started(disk, *directories)
        assert (copies.overrides, copies.held) == (KEEP, {})
    assert in_each(disk, NEW, TRUE) == [wanted._replace(overrides=KEEP, generation=wanted.generation + 1)] * 2
    # Others have the store again: what was said before counts no more.
    copies = started(disk, NEW, TRUE, current=())
    assert copies.held == HELD
    assert (
        in_each(disk, NEW, TRUE)
        == [wanted._replace(overrides={**KEEP, **HELD}, generation=wanted.generation + 2)] * 2
    )


def test_only_the_directories_that_have_what_counts_must_be_current() -> None:
    newer, older = StoredConfig(KEEP, 4), StoredConfig(DROP, 3)
    for current, is_held in (((TRUE,), False), ((NEW,), True), ((NEW, TRUE), False)):
        disk = disk_with({NEW: older, TRUE: newer})
        assert bool(started(disk, NEW, TRUE, current=current).held) is is_held
    disk = disk_with({NEW: newer, TRUE: newer})
    assert not started(disk, NEW, TRUE, current=(NEW,)).held
    # Where no copy is left any of them will do.
    assert not started(disk_with({}), NEW, TRUE, current=(TRUE,)).held
    disk = disk_with({})
    assert started(disk, NEW, TRUE, current=()).held == HELD
    # It stands in for what is found after all, as where all are new.
    assert in_each(disk, NEW, TRUE) == [STAND_IN] * 2


@pytest.mark.parametrize("generation", [5, 9])
def test_a_copy_that_is_newer_than_what_was_out_of_date_is_for_a_human(generation: int) -> None:
    """It was altered in the one directory while the other one was held without it."""
    held = StoredConfig(HELD, 5, is_stand_in=True, replaces_older=True)
    for directories in ((NEW, TRUE), (TRUE, NEW)):
        disk = disk_with({NEW: held, TRUE: StoredConfig(DROP, generation)})
        with pytest.raises(DataDirectoryError, match="remove the wrong one"):
            started(disk, *directories)
        disk = disk_with({NEW: held, TRUE: StoredConfig(DROP, 7, is_stand_in=True)})
        with pytest.raises(DataDirectoryError, match="remove the wrong one"):
            started(disk, *directories)
        # One that was begun before it was held is as old as any other.
        disk = disk_with({NEW: held, TRUE: StoredConfig(DROP, 4, is_stand_in=True)})
        assert started(disk, *directories).held == HELD


def test_what_is_out_of_date_and_damaged_is_replaced() -> None:
    disk = disk_with({NEW: StoredConfig(HELD, 5, is_stand_in=True, replaces_older=True)})
    text = format_broker_config(StoredConfig(DROP, 4)).replace("=5", "=6")
    disk.open_append(f"{TRUE}/{BROKER_CONFIG_FILE}").append([text.encode()])
    assert started(disk, NEW, TRUE).held == HELD
