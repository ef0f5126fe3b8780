"""A machine that dies at every single operation of an import: on its disk, and before or after each request
to the store.

Whatever is left, each topic is either there whole or unknown, then the next import brings it; the broker's
files are what they were.
"""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import LogStoreError, StoreNotUsableError
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.leader_epoch_cache import LEADER_EPOCH_FILE, EpochEntry, format_epochs
from stratalog.migration.topic_importer import ImportReport, ImportSettings, TopicImporter
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.batch import batches, stamp
from stratalog.record.record import Record
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.store_identity import StoreIdentity
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore, StoreTrace
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Fault, FaultsAt
from tests.support.logs.crash_moments import EVERYTHING_KEPT, NOTHING_KEPT
from tests.support.logs.crash_sweep import CrashSweep, Death, Failure
from tests.support.logs.log_ledger import read_local
from tests.support.logs.sampling import Sampling
from tests.support.places import GOLDEN
from tests.support.tiered.tiered_logs import TieredLogs

DATA = GOLDEN / "data"
OTHER = TopicPartition("other", 0)
TOPICS = {"g1-recompressed", "g1-txn"}
RECOMPRESSED, TXN = TopicPartition("g1-recompressed", 0), TopicPartition("g1-txn", 0)
SURVIVALS = (NOTHING_KEPT, Survival(Kept.NONE, Kept.ALL), Survival(Kept.NOISE, Kept.HALF), EVERYTHING_KEPT)


class Machine:
    """A disk with a broker's log directory on it, and a store."""

    def __init__(self, *, shares_files: bool = True) -> None:
        self.shares_files = shares_files
        self.clock = ManualClock()
        self.store = MemoryObjectStore(self.clock)
        self.disk = FaultyFileSystem(broker_disk())
        self.ids = SequentialIds()

    def run(self, topics: tuple[str, ...] = (), *, store: ObjectStore | None = None) -> ImportReport:
        settings = ImportSettings(
            log_dirs=("/kafka",),
            data_dir="/data",
            topics=topics,
            config={},
            shares_files=self.shares_files,
            owner="owner",
        )
        scheduler = ManualScheduler(self.clock)
        return TopicImporter(
            self.disk, store or self.store, self.clock, scheduler, self.ids, random.Random(0), settings
        ).run()

    def serve(self) -> dict[TopicPartition, list[Record]]:
        """Start the storage of a server on what is there, read everything, stop."""
        logs = TieredLogs(self.disk, self.store, self.clock, self.ids)
        found: dict[TopicPartition, list[Record]] = {}
        for topic in logs.catalog.topics().values():
            for partition, reconciled in logs.open_topic(topic).items():
                assert reconciled.set_aside_path is None, reconciled.reason
                log = reconciled.log
                log.check()
                found[partition] = read_local(log)
        logs.close()
        return found

    @property
    def topics(self) -> set[str]:
        try:
            identity = StoreIdentity.open(self.store)
        except StoreNotUsableError:
            return set()
        writer = Writer("test", "test")
        actor = StoreActor(
            store=self.store,
            clock=self.clock,
            random_source=random.Random(0),
            ids=self.ids,
            identity=identity,
            writer=writer,
        )
        return set(Catalog.open(actor, read_only=True).topics())


def broker_disk() -> MemoryFileSystem:
    """All of it durable."""
    disk = MemoryFileSystem()
    for partition in (TXN, RECOMPRESSED):
        copy(DATA / str(partition), disk, f"/kafka/{partition}")
    copy(DATA, disk, "/kafka")
    begin_epochs_again(disk)
    return disk


def begin_epochs_again(disk: MemoryFileSystem) -> None:
    """Begin with epoch 0 in the last segment, as if the cluster had been made anew; the import changes it."""
    directory = f"/kafka/{TXN}"
    *old, last = sorted(name for name in disk.list_directory(directory) if name.endswith(".log"))
    for name in old:
        data = bytearray(disk.read_file(f"{directory}/{name}"))
        for position, header in batches(data):
            stamp(data, position, base_offset=header.base_offset, leader_epoch=17)
        replace_file(disk, f"{directory}/{name}", bytes(data))
    epochs = [EpochEntry(0, int(last.removesuffix(".log")))]
    replace_file(disk, f"{directory}/{LEADER_EPOCH_FILE}", format_epochs(epochs))


def copy(source: Path, disk: MemoryFileSystem, target: str) -> None:
    disk.make_directories(target)
    for path in source.iterdir():
        if path.is_file():
            file = disk.open_append(f"{target}/{path.name}")
            file.append([path.read_bytes()])
            file.sync()
            file.close()
    for directory in ("/", "/kafka", target):
        disk.sync_directory(directory)


def broker_files(disk: FileSystem) -> dict[str, bytes | None]:
    assert isinstance(disk, FaultyFileSystem)
    return {path: data for path, data in disk.inner.contents().items() if path.startswith("/kafka")}


def used_machine() -> Machine:
    """With another topic already in its data directory and its store, and a server that was killed."""
    machine = Machine()
    logs = TieredLogs(machine.disk, machine.store, machine.clock, machine.ids)
    logs.create_topic(OTHER.topic, 1)
    logs.append(logs.logs[OTHER], [Record(0, 0, None, b"v")])
    logs.logs[OTHER].flusher.flush()
    machine.disk = machine.disk.reopened(NOTHING_KEPT)
    return machine


def whole_import() -> tuple[Machine, dict[TopicPartition, list[Record]]]:
    machine = Machine()
    machine.run()
    return machine, machine.serve()


COMPLETE, EXPECTED = whole_import()
BROKER_FILES = broker_files(FaultyFileSystem(broker_disk()))
BROKER_LOGS = [path for path in BROKER_FILES if path.endswith(".log")]


def require_whole_or_not_at_all(machine: Machine) -> None:
    """Then give the same command again, which brings what is missing, and find all of it, once."""
    assert broker_files(machine.disk) == BROKER_FILES
    known = machine.topics
    report = machine.run()
    assert set(report.plan.already_imported) == known - {OTHER.topic}
    assert {topic.name for topic in report.topics} == TOPICS - known
    found = machine.serve()
    assert {name: found[name] for name in EXPECTED} == EXPECTED, f"known before: {known}"
    if OTHER.topic in known:
        assert [record.value for record in found[OTHER]] == [b"v"]
    assert broker_files(machine.disk) == BROKER_FILES


def test_an_import_brings_everything() -> None:
    assert {name: (records[0].offset, len(records)) for name, records in EXPECTED.items()} == {
        RECOMPRESSED: (37, 163),
        TXN: (0, 259),
    }
    assert broker_files(COMPLETE.disk) == BROKER_FILES
    assert not [name for name in COMPLETE.disk.list_directory("/data") if "import" in name]


def test_an_import_removes_what_another_one_has_left_and_no_foreign_directory() -> None:
    machine = Machine()
    left = f"import.{31 * '0'}a-staging"
    others = ["import", "import.old-staging", f"my-{left}", f"{left}.kept"]
    for name in (left, *others):
        copy(DATA / str(TXN), broker := machine.disk.inner, f"/data/{name}/{TXN}")
        assert broker.list_directory(f"/data/{name}/{TXN}")
    before = machine.disk.inner.contents()
    machine.run()
    after = machine.disk.inner.contents()
    assert not machine.disk.exists(f"/data/{left}")
    theirs = {
        path: data for path, data in before.items() if path.split("/")[2:3] in [[name] for name in others]
    }
    assert theirs
    assert {path: after.get(path) for path in theirs} == theirs


@pytest.mark.parametrize("shares_files", [True, False], ids=["linked", "copied"])
def test_what_an_import_has_brought_survives_that_the_power_goes(*, shares_files: bool) -> None:
    """No server syncs the segments later, because none writes them any more."""
    machine = Machine(shares_files=shares_files)
    machine.run()
    copied = [what for what in machine.disk.trace if what.startswith("copy_file ") and ".log " in what]
    assert len(copied) == (2 if shares_files else len(BROKER_LOGS))
    assert len(BROKER_LOGS) > 4
    machine.disk = machine.disk.reopened(NOTHING_KEPT)
    assert machine.topics == TOPICS
    assert machine.serve() == EXPECTED


@pytest.mark.parametrize("shares_files", [True, False], ids=["linked", "copied"])
@pytest.mark.parametrize("survival", SURVIVALS, ids=lambda survival: f"{survival[0].name}-{survival[1].name}")
def test_a_crash_at_any_operation_on_the_disk(survival: Survival, *, shares_files: bool) -> None:
    def verify(death: Death[Machine]) -> None:
        machine = death.subject
        machine.disk = machine.disk.reopened(survival)
        require_whole_or_not_at_all(machine)

    CrashSweep(lambda: Machine(shares_files=shares_files), Machine.run, count=10).at_deaths(verify)


def test_a_crash_before_or_after_any_request_to_the_store() -> None:
    trace = StoreTrace()
    machine = used_machine()
    machine.run(store=FaultyObjectStore(machine.store, random.Random(0), trace=trace))
    count = len(trace.entries)
    assert count > 10
    moments = [
        (number, fault) for number in range(count) for fault in (Fault.STOPS_BEFORE, Fault.STOPS_AFTER)
    ]
    for number, fault in Sampling().at_most(moments, 30):
        machine = used_machine()
        store = FaultyObjectStore(machine.store, random.Random(0), FaultsAt({number: fault}))
        # A listing that is not read to its end has no end to stop after.
        with contextlib.suppress(ActorStopped):
            machine.run(store=store)
        machine.disk = machine.disk.reopened(NOTHING_KEPT)
        require_whole_or_not_at_all(machine)


@pytest.mark.parametrize("fault", [Fault.FAILS, Fault.LANDS_UNKNOWN, Fault.LANDS_AND_IS_REFUSED])
def test_a_store_that_fails_at_any_write(fault: Fault) -> None:
    trace = StoreTrace()
    machine = Machine()
    machine.run(store=FaultyObjectStore(machine.store, random.Random(0), trace=trace))
    writes = [entry.operation.number for entry in trace.entries if entry.operation.verb == "PUT"]
    for number in writes:
        machine = Machine()
        store = FaultyObjectStore(machine.store, random.Random(0), FaultsAt({number: fault}))
        with contextlib.suppress(LogStoreError):
            machine.run(store=store)
        machine.disk = machine.disk.killed()
        require_whole_or_not_at_all(machine)


def test_a_disk_that_fails_at_any_operation_leaves_a_topic_whole_or_out() -> None:
    def verify(failure: Failure[Machine]) -> None:
        # The broker's files are not blamed.
        assert "of the broker cannot be opened" not in str(failure.error)
        machine = failure.subject
        machine.disk = machine.disk.killed()
        require_whole_or_not_at_all(machine)

    CrashSweep(Machine, Machine.run).at_failures(verify)
