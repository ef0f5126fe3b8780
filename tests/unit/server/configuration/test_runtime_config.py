"""Keys of the server that are altered at run time: checked, committed, put in force, followed."""

from __future__ import annotations

import errno
import logging
import threading
from random import Random

import pytest

from stratalog.base.errors import (
    DataDirectoryError,
    InvalidConfigError,
    LogStoreError,
    StoreUnavailableError,
)
from stratalog.log.log_config import LogConfig
from stratalog.server.configuration.broker_config import CORDONED, BrokerConfig
from stratalog.server.configuration.config_entry import ConfigChange
from stratalog.server.configuration.runtime_config import RuntimeConfig
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Fault, Operation
from tests.support.logs.log_machine import LogMachine
from tests.support.tiered.metadata_harness import MetadataHarness

MAX_REQUEST_BYTES = 1 << 25
DATA_DIRS = ("/data", "/b", "/c")


class Noted:
    """A component that notes what it applies, and refuses or fails where a test says so."""

    def __init__(self) -> None:
        self.applied: list[BrokerConfig] = []
        self.refusal: InvalidConfigError | None = None
        self.failure: LogStoreError | None = None

    def require_applicable(self, config: BrokerConfig) -> None:
        if self.refusal is not None:
            raise self.refusal

    def apply(self, config: BrokerConfig) -> None:
        self.applied.append(config)
        if self.failure is not None:
            raise self.failure


class Machine:
    """A store's catalog, and the disk of one server."""

    def __init__(self) -> None:
        self.harness = MetadataHarness()
        self.catalog = self.harness.catalog()
        self.disk = FaultyFileSystem()
        self.ids = SequentialIds()
        self.logs: LogMachine | None = None
        self.noted = Noted()

    def opened(self, **static: str) -> RuntimeConfig:
        """A server that starts with these keys."""
        self.catalog.refresh()
        if self.logs is not None:
            self.logs.stop()
        paths = static.get("cordoned_log_dirs", "").split(",")
        cordoned = tuple(path for path in DATA_DIRS if path in paths)
        self.logs = LogMachine(self.disk, data_dirs=DATA_DIRS, cordoned_dirs=cordoned, ids=self.ids)
        runtime = RuntimeConfig(self.catalog, self.logs.open(), named(static), MAX_REQUEST_BYTES)
        runtime.add(self.noted)
        return runtime

    def stored(self) -> dict[str, str]:
        """The keys and values in the catalog."""
        return dict(self.harness.catalog(read_only=True).state().server_config)

    def alter_elsewhere(self, **keys: str) -> None:
        """Another process replaces the configuration; the server has read that."""
        self.harness.catalog().alter_server_config(lambda _: named(keys))
        self.catalog.refresh()


def named(keys: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in keys.items()}


def set_to(**values: str) -> tuple[ConfigChange, ...]:
    return tuple(ConfigChange(name, value) for name, value in named(values).items())


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_an_alteration_is_in_force_at_once_and_after_a_restart(machine: Machine) -> None:
    runtime = machine.opened(log_retention_ms="9")
    runtime.alter(set_to(log_retention_ms="-1", log_segment_bytes="4096"))
    assert [config.topic_defaults.retention_ms for config in machine.noted.applied] == [-1]
    assert runtime.topic_defaults.segment_bytes == 4096
    assert machine.stored() == {"log.retention.ms": "-1", "log.segment.bytes": "4096"}
    again = machine.opened(log_retention_ms="9")
    assert (again.current, again.layers) == (runtime.current, runtime.layers)
    again.alter((ConfigChange("log.retention.ms", None), ConfigChange("log.roll.ms", None)))
    assert machine.opened(log_retention_ms="9").topic_defaults.retention_ms == 9
    assert machine.opened().topic_defaults.segment_bytes == 4096


def test_an_alteration_without_a_change_commits_and_applies_nothing(machine: Machine) -> None:
    runtime, seq = machine.opened(), machine.catalog.seq
    runtime.alter((ConfigChange("log.segment.bytes", None),))
    runtime.alter(set_to(log_segment_bytes="4096"), validate_only=True)
    runtime.alter((ConfigChange(CORDONED, "/b"),), validate_only=True)
    assert (machine.noted.applied, runtime.current, machine.catalog.seq) == ([], BrokerConfig(), seq)


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (set_to(log_retention_ms="5", log_segment_bytes="1"), "log.segment.bytes"),
        (set_to(log_retention_ms="5", retention_ms="5"), "retention.ms"),
        (set_to(log_retention_ms="5", log_retention_hours="5"), "log.retention.hours"),
        (set_to(log_retention_ms="5", message_max_bytes=str(MAX_REQUEST_BYTES + 1)), "message.max.bytes"),
        (set_to(log_retention_ms="5", cordoned_log_dirs="/b"), CORDONED),
        (set_to(cordoned_log_dirs="b"), CORDONED),
        ((ConfigChange("no.such.key", None),), "no.such.key"),
    ],
)
def test_a_refused_alteration_changes_nothing(
    machine: Machine, changes: tuple[ConfigChange, ...], name: str, *, validate_only: bool
) -> None:
    runtime = machine.opened()
    with pytest.raises(InvalidConfigError) as refusal:
        runtime.alter(changes, validate_only=validate_only)
    assert refusal.value.fields["name"] == name
    assert (machine.noted.applied, runtime.current, machine.stored()) == ([], BrokerConfig(), {})
    assert machine.opened().current == BrokerConfig()


def test_one_component_refuses_an_alteration_for_all(machine: Machine) -> None:
    runtime = machine.opened()
    machine.noted.refusal = InvalidConfigError("no", name="log.cleaner.threads", value=2, allowed="1")
    with pytest.raises(InvalidConfigError):
        runtime.alter(set_to(log_cleaner_threads="2"))
    assert (machine.noted.applied, machine.stored()) == ([], {})


def test_an_alteration_stands_that_a_component_cannot_apply(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    runtime, other = machine.opened(), Noted()
    machine.noted.failure = DataDirectoryError("a disk failed", path="/data/t-0")
    runtime.add(other)
    with caplog.at_level(logging.WARNING):
        runtime.alter(set_to(log_retention_ms="5"))
    assert runtime.topic_defaults.retention_ms == 5
    assert len(other.applied) == 1
    assert "a disk failed" in caplog.text


def test_an_alteration_builds_on_the_newest_commit(machine: Machine) -> None:
    runtime = machine.opened()
    machine.harness.catalog().alter_server_config(lambda _: {"log.roll.ms": "7"})
    runtime.alter(set_to(log_retention_ms="5"))
    assert machine.stored() == {"log.retention.ms": "5", "log.roll.ms": "7"}
    assert (runtime.topic_defaults.segment_ms, runtime.topic_defaults.retention_ms) == (7, 5)


def test_an_alteration_by_another_process_is_followed(machine: Machine) -> None:
    runtime = machine.opened(log_roll_ms="9")
    machine.alter_elsewhere(log_retention_ms="5")
    state = machine.catalog.state()
    assert not runtime.is_as(state)
    assert runtime.topic_defaults_under(state.server_config).retention_ms == 5
    assert runtime.topic_defaults.retention_ms == LogConfig().retention_ms
    for _ in range(2):
        runtime.follow()
        assert [config.topic_defaults.retention_ms for config in machine.noted.applied] == [5]
    assert runtime.is_as(state)
    assert (runtime.topic_defaults.retention_ms, runtime.topic_defaults.segment_ms) == (5, 9)


@pytest.mark.parametrize(
    "keys", [{"key_of_the_future": "1"}, {"log_retention_hours": "1"}, {"message_max_bytes": "99999999"}]
)
def test_a_configuration_that_this_version_refuses_is_not_followed_and_stops_a_start(
    machine: Machine, keys: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    runtime = machine.opened()
    runtime.alter(set_to(log_retention_ms="5"))
    machine.alter_elsewhere(**keys)
    [name] = named(keys)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            runtime.follow()
    assert sum(name in message for message in caplog.messages) == 1
    # Whatever asks for confirmation gets none, and goes on by the former one.
    assert not runtime.is_as(machine.catalog.state())
    assert runtime.topic_defaults.retention_ms == 5
    with pytest.raises(InvalidConfigError):
        runtime.topic_defaults_under(machine.catalog.state().server_config)
    with pytest.raises(InvalidConfigError) as refusal:
        machine.opened()
    assert refusal.value.fields["name"] == name
    runtime.alter((ConfigChange(name, None),))
    assert runtime.is_as(machine.catalog.state())
    assert machine.opened().current == BrokerConfig()


@pytest.mark.parametrize("fault", [Fault.FAILS, Fault.LANDS_UNKNOWN])
def test_an_alteration_without_an_answer_is_followed_if_it_landed(machine: Machine, fault: Fault) -> None:
    puts: list[Operation] = []

    def plan(operation: Operation) -> Fault:
        """The store fails from the first PUT on, until the test forgets that."""
        if operation.verb == "PUT":
            puts.append(operation)
        is_first = operation.verb == "PUT" and len(puts) == 1
        return fault if is_first else Fault.FAILS if puts else Fault.NONE

    store = FaultyObjectStore(machine.harness.store, Random(1), plan)
    machine.catalog = machine.harness.catalog(store=store)
    runtime = machine.opened()
    with pytest.raises(StoreUnavailableError):
        runtime.alter(set_to(log_retention_ms="5"))
    assert runtime.current == BrokerConfig()
    puts.clear()
    machine.catalog.refresh()
    runtime.follow()
    landed = {} if fault is Fault.FAILS else {"log.retention.ms": "5"}
    assert runtime.layers.dynamic == machine.stored() == landed
    assert machine.opened().layers.dynamic == landed


def test_a_look_at_the_catalog_never_waits_for_an_alteration(machine: Machine) -> None:
    runtime = machine.opened()
    found: list[bool] = []

    class Looking(Noted):
        def apply(self, config: BrokerConfig) -> None:
            machine.alter_elsewhere(log_retention_ms="7")
            thread = threading.Thread(target=runtime.follow, daemon=True)
            thread.start()
            thread.join(20)
            found.append(thread.is_alive() or runtime.is_as(machine.catalog.state()))

    looking = Looking()
    runtime.add(looking)
    runtime.alter(set_to(log_retention_ms="5"))
    assert (found, runtime.topic_defaults.retention_ms) == ([False], 5)
    looking.apply = machine.noted.apply  # type: ignore[method-assign]  # one look is enough
    runtime.follow()
    assert runtime.topic_defaults.retention_ms == 7


def test_cordons_stay_on_the_machine(machine: Machine) -> None:
    runtime = machine.opened()
    runtime.alter((ConfigChange(CORDONED, "/b,/c"),))
    assert (runtime.current.cordoned_log_dirs, machine.stored()) == (("/b", "/c"), {})
    runtime = machine.opened()
    assert runtime.current.cordoned_log_dirs == ("/b", "/c")
    runtime.alter_cordons(lambda cordoned: cordoned[1:])
    runtime.alter(set_to(log_retention_ms="5"))
    runtime = machine.opened()
    assert runtime.current.cordoned_log_dirs == ("/c",)
    runtime.alter_cordons(lambda _: ())
    # It is stronger than the start until it is removed.
    given = machine.opened(cordoned_log_dirs="/b")
    assert given.layers.dynamic == {"log.retention.ms": "5", CORDONED: ""}
    assert not given.current.cordoned_log_dirs
    given.alter((ConfigChange(CORDONED, None),))
    assert machine.opened(cordoned_log_dirs="/b").current.cordoned_log_dirs == ("/b",)


def test_what_is_in_force_is_what_the_manifests_have(machine: Machine) -> None:
    runtime = machine.opened()
    runtime.alter_cordons(lambda _: ("/b",))
    machine.disk.fail_where(lambda line: "/c/manifest" in line, number=errno.ENOSPC)
    with pytest.raises(DataDirectoryError) as failure:
        runtime.alter_cordons(lambda _: ("/data", "/c"))
    assert failure.value.fields["path"] == "/c"
    # Each manifest is written by itself, in the order of the directories.
    assert runtime.current.cordoned_log_dirs == ("/data",)
    machine.disk.mend()
    assert machine.opened().current.cordoned_log_dirs == ("/data",)
