"""Imports of different contents of a broker's disks: several of them, logs that lost something, messages of
older formats; and what it leaves where it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from stratalog.base.errors import DataDirectoryError, StoreUnavailableError, UnsupportedOperationError
from stratalog.base.types import TopicPartition
from stratalog.cli.commands.import_remarks import report_remarks
from stratalog.log.checkpoint import OffsetCheckpoint
from stratalog.log.isolation import Isolation
from stratalog.log.leader_epoch_cache import LEADER_EPOCH_FILE
from stratalog.manager.directories.manifest import parse_partition_name, read_manifest
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.migration import topic_importer
from stratalog.record.batch import batches
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.segment.file_names import segment_path
from tests.support.kafka.import_world import SMALL_SEGMENTS, ImportWorld
from tests.support.kafka.old_messages import old_message


def test_what_consumers_have_read_and_the_log_has_lost_is_reported(world: ImportWorld) -> None:
    """At the boundary of a batch nothing else shows it."""
    world.disk.unlink("/kafka/.kafka_cleanshutdown")
    world.write_offsets("recovery-point", {"payments-0": 0})
    world.write_offsets("replication", {"payments-0": 30})
    last = world.last_log("/kafka/payments-0")
    data = world.disk.read_file(last)
    [*_, (position, _), _] = batches(data)
    world.write(last, data[:position])
    report = world.run("payments")
    [partition] = report.topics[0].partitions
    assert (partition.log.log_end_offset, partition.log.recovery.truncated_bytes) == (28, 0)
    assert (partition.missing_count, partition.uncertain_count) == (2, 0)
    told = "payments-0 ends at offset 28, and the broker's high watermark was 30: 2 offsets that consumers"
    assert [remark for remark in report_remarks(report) if told in remark]


def test_logs_of_several_directories_are_opened_each_as_its_own_was_left(world: ImportWorld) -> None:
    """One disk's marker says nothing of the other: what was killed is recovered, with its own checkpoints."""
    starts = {"orders-0": 3, "orders-1": 12, "payments-0": 7}
    world.disk.make_directories("/other")
    for name in ("orders-1", "payments-0"):
        world.disk.rename(f"/kafka/{name}", f"/other/{name}")
    world.write_offsets("log-start", {"orders-0": 3})
    world.write_offsets("recovery-point", {"orders-0": 30})
    world.write_offsets("log-start", {"orders-1": 12, "payments-0": 7}, "/other")
    world.write_offsets("recovery-point", {"orders-1": 10, "payments-0": 10}, "/other")
    last = world.last_log("/other/orders-1")
    world.write(last, world.disk.read_file(last)[:-1])
    before = world.disk.contents()
    report = world.run(log_dirs=("/kafka", "/other"))
    found = {
        str(partition.topic_partition): (partition.log.recovery.was_clean, partition.log.log_end_offset)
        for topic in report.topics
        for partition in topic.partitions
    }
    assert found == {"orders-0": (True, 30), "orders-1": (False, 29), "payments-0": (False, 30)}
    assert not report.plan.was_clean
    [remark] = [remark for remark in report_remarks(report) if "not stopped cleanly" in remark]
    assert "logs in /other are recovered" in remark
    logs = world.server()
    for topic in logs.catalog.topics().values():
        for partition, opened in logs.open_topic(topic).items():
            assert opened.log.offsets.log_start_offset == starts[str(partition)]
    after = world.disk.contents()
    assert {path: after[path] for path in before if not path.startswith("/data")} == before
    # The same command again finds all of it.
    logs.close()
    assert world.run(log_dirs=("/kafka", "/other")).plan.already_imported == ("orders", "payments")


def test_a_refused_import_leaves_no_directory_that_it_made(world: ImportWorld) -> None:
    world.disk.make_directories("/machine")
    world.write(world.last_log("/kafka/orders-1"), b"damaged")
    importer = world.importer(topics=("orders",), data_dir="/machine/new/far/data")
    with pytest.raises(DataDirectoryError):
        importer.run()
    assert (world.disk.exists("/machine"), world.disk.list_directory("/machine")) == (True, [])
    # Files that another import needs by now stay.
    with pytest.raises(DataDirectoryError):
        importer.run(lambda _: world.disk.make_directories("/machine/new/others"))
    assert world.disk.list_directory("/machine/new") == ["others"]


def test_a_repetition_with_nothing_to_do_removes_what_one_that_was_cut_off_had_staged(
    world: ImportWorld,
) -> None:
    world.run("orders")
    left = f"/data/import.{7:032x}-staging"
    world.disk.make_directories(f"{left}/closed/orders-0")
    world.write(f"{left}/closed/orders-0/{0:020}.log", b"copied")
    assert world.run("orders").topics == ()
    assert not world.disk.exists(left)


def staged_in(world: ImportWorld, path: str = "/data") -> list[str]:
    names = world.disk.list_directory(path) if world.disk.exists(path) else []
    return [f"{path}/{name}" for name in names if name.startswith("import.")]


def interrupt(*_arguments: object, **_options: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("has_data", [True, False], ids=["used", "new"])
def test_one_that_is_interrupted_leaves_no_copies(world: ImportWorld, *, has_data: bool) -> None:
    if has_data:
        world.run("orders")
    before = world.disk.contents()

    def interrupt_when_staged(_: TopicPartition) -> None:
        assert len(staged_in(world)) == 1
        interrupt()

    with pytest.raises(KeyboardInterrupt):
        world.importer(topics=("payments",), shares_files=False).run(interrupt_when_staged)
    assert world.disk.contents() == before
    assert len(world.run("payments").topics) == 1


@pytest.mark.parametrize("failure", [KeyboardInterrupt, StoreUnavailableError("gone"), OSError("broken")])
def test_what_was_opened_and_not_placed_goes_again(
    world: ImportWorld, monkeypatch: pytest.MonkeyPatch, failure: BaseException | type[BaseException]
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        assert len(staged_in(world)) == 1
        raise failure

    with monkeypatch.context() as patched:
        patched.setattr(topic_importer, "claim_shard", fail)
        with pytest.raises((KeyboardInterrupt, StoreUnavailableError, DataDirectoryError)):
            world.run()
    assert staged_in(world) == []
    assert len(world.run().topics) == 2


def test_once_a_log_is_placed_nothing_is_discarded(
    world: ImportWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logs that have got their places and those that have not: together they are all."""
    rename, placed = world.disk.rename, list[str]()

    def rename_one(source: str, target: str) -> None:
        if "staging/closed/" in source and parse_partition_name(target.rpartition("/")[2]):
            if placed:
                interrupt()
            placed.append(target)
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(world.disk, "rename", rename_one)
        with pytest.raises(KeyboardInterrupt):
            world.run()
    [staged] = staged_in(world)
    assert placed == ["/data/orders-0"]
    left = [name for name in world.disk.list_directory(f"{staged}/closed") if name[-2:] in {"-0", "-1"}]
    assert left == ["orders-1", "payments-0"]
    report = world.run()
    assert report.plan.leftovers == (TopicPartition("orders", 0),)
    assert [len(topic.partitions) for topic in report.topics] == [2, 1]
    assert staged_in(world) == []


def test_what_has_not_got_its_place_is_never_removed_as_if_it_had(world: ImportWorld) -> None:
    def put_another(_: TopicPartition) -> None:
        [staged] = staged_in(world)
        world.disk.make_directories(f"{staged}/closed/lost-0")
        world.write(f"{staged}/closed/lost-0/{0:020}.log", b"records")

    with pytest.raises(DataDirectoryError) as refusal:
        world.importer(topics=("payments",)).run(put_another)
    [staged] = staged_in(world)
    assert refusal.value.fields["path"] == f"{staged}/closed/lost-0"
    assert world.disk.read_file(f"{staged}/closed/lost-0/{0:020}.log") == b"records"
    assert not world.server().catalog.topics()


def test_a_start_says_what_an_import_that_was_killed_has_left(
    world: ImportWorld, caplog: pytest.LogCaptureFixture
) -> None:
    left = f"/data/import.{7:032x}-staging"
    others = ["/data/import.old-staging", f"/data/my-import.{7:032x}-staging"]
    for path in (left, *others):
        world.disk.make_directories(f"{path}/closed/orders-0")
    logs = LogManager.open(
        world.disk, world.clock, world.scheduler, world.ids, LogManagerSettings(data_dirs=("/data",))
    )
    [told] = [record.getMessage() for record in caplog.records if "was cut off" in record.getMessage()]
    assert f"path=`{left}`" in told
    assert logs.found.set_aside() == {"/data": [left]}
    assert logs.directories.statuses()[0].set_aside_count == 1
    # Its files may be the only ones left: only an import, or a human, removes it.
    logs.close()
    assert world.disk.exists(f"{left}/closed/orders-0")
    world.run()
    assert staged_in(world) == [others[0]]


@pytest.mark.parametrize("is_among_others", [True, False], ids=["among others", "alone"])
def test_nothing_that_an_older_log_of_the_name_has_left_is_believed_of_the_new_one(
    world: ImportWorld, *, is_among_others: bool
) -> None:
    """A crash has left lines in the checkpoints, higher than where this log ends; it has no log start."""
    stale = {TopicPartition("payments", 0): 400}
    others = {TopicPartition("bills", 0): 7} if is_among_others else {}
    logs = LogManager.open(
        world.disk, world.clock, world.scheduler, world.ids, LogManagerSettings(data_dirs=("/data",))
    )
    logs.close()
    recovery_points = OffsetCheckpoint(world.disk, "/data/recovery-point-offset-checkpoint")
    recovery_points.write(stale | others)
    world.run("payments")
    assert recovery_points.read() == {TopicPartition("payments", 0): 30} | others
    assert read_manifest(world.disk, "/data").partitions[TopicPartition("payments", 0)].log_start_offset == 0
    server = world.server()
    opened = server.open_topic(server.catalog.topics()["payments"])[TopicPartition("payments", 0)].log
    assert (opened.offsets.log_start_offset, opened.offsets.log_end_offset) == (0, 30)


def test_a_partition_that_was_lost_before_is_missed_as_before(world: ImportWorld) -> None:
    bills = TopicPartition("bills", 0)
    settings = LogManagerSettings(data_dirs=("/data",))
    logs = LogManager.open(world.disk, world.clock, world.scheduler, world.ids, settings)
    log = logs.open_log(bills, UUID(int=13), SMALL_SEGMENTS)
    log.appender.append_as_leader(encode_batch([Record(0, 5, b"k", b"v")]), 1)
    logs.close()
    world.disk.rename("/data/bills-0", "/lost")
    world.run("payments")
    logs = LogManager.open(world.disk, world.clock, world.scheduler, world.ids, settings)
    with pytest.raises(DataDirectoryError) as failure:
        logs.open_log(bills, UUID(int=13), SMALL_SEGMENTS, start_offset=1)
    assert failure.value.fields == {"path": "/data/bills-0"}


def kill_broker(world: ImportWorld) -> None:
    """It has never written down what is fsynced of `payments`."""
    world.disk.unlink("/kafka/.kafka_cleanshutdown")
    world.write_offsets("recovery-point", {"payments-0": 0})


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("base_offset", [10, 25], ids=["sealed", "active"])
def test_messages_of_an_older_format_behind_batches_are_refused(
    world: ImportWorld, base_offset: int, version: int, *, is_killed: bool
) -> None:
    path = segment_path("/kafka/payments-0", base_offset, ".log")
    data = world.disk.read_file(path)
    [*_, (position, header)] = batches(data)
    world.write(path, data[:position] + old_message(header.base_offset, version, b"k", b"v"))
    if is_killed:
        kill_broker(world)
    before = world.disk.contents()
    with pytest.raises(UnsupportedOperationError) as refusal:
        world.run("payments")
    assert refusal.value.fields == {
        "path": path,
        "position": position,
        "offset": base_offset + 4,
        "message_format": version,
    }
    assert world.disk.contents() == before
    assert list(world.store.list("")) == []


def test_such_messages_are_refused_where_the_log_has_to_be_walked_besides(world: ImportWorld) -> None:
    """An index of transactions is not whole: from its segment on everything is recovered."""
    world.write(segment_path("/kafka/payments-0", 0, ".txnindex"), b"torn")
    path = segment_path("/kafka/payments-0", 25, ".log")
    world.write(path, world.disk.read_file(path) + old_message(30, 1, b"k", b"v"))
    kill_broker(world)
    with pytest.raises(UnsupportedOperationError) as refusal:
        world.run("payments")
    assert refusal.value.fields["offset"] == 30


WHOLE = old_message(30, 1, b"k", b"v" * 100)


@pytest.mark.parametrize(
    "tail",
    [
        WHOLE[:-1],
        WHOLE[:-1] + b"w",
        old_message(29, 1, b"k", b"v" * 100),
        WHOLE[:8] + (13).to_bytes(4, "big") + WHOLE[12:],
        WHOLE[:16],
        bytes(100),
    ],
    ids=["torn", "altered", "below", "too-small", "no-magic", "zeros"],
)
def test_a_torn_end_that_only_looks_like_an_older_format_is_cut_off(world: ImportWorld, tail: bytes) -> None:
    kill_broker(world)
    path = segment_path("/kafka/payments-0", 25, ".log")
    world.write(path, world.disk.read_file(path) + tail)
    [partition] = world.run("payments").topics[0].partitions
    assert (partition.log.log_end_offset, partition.log.recovery.truncated_bytes) == (30, len(tail))


def test_a_segment_that_was_only_reserved_is_of_no_format(world: ImportWorld) -> None:
    kill_broker(world)
    world.write(segment_path("/kafka/payments-0", 25, ".log"), bytes(1024))
    [partition] = world.run("payments").topics[0].partitions
    assert partition.log.log_end_offset == 25


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_segment_that_begins_with_an_older_format_is_refused_at_once(
    world: ImportWorld, *, is_whole: bool
) -> None:
    message = bytearray(old_message(10, 0, b"k", b"v"))
    message[-1] ^= 0 if is_whole else 1
    world.write(segment_path("/kafka/payments-0", 10, ".log"), bytes(message) + WHOLE)
    world.refuse(UnsupportedOperationError, "payments", fields={"position": 0, "offset": 10})


@pytest.mark.parametrize("is_torn", [True, False])
def test_an_epoch_that_begins_in_the_hole_at_the_end_contradicts_nothing(
    world: ImportWorld, *, is_torn: bool
) -> None:
    """Compaction has taken its first batches, and the crash the one behind: a broker opens that as well."""
    kill_broker(world)
    path = "/kafka/payments-0"
    for name in world.disk.list_directory(path):
        if name != "partition.metadata":
            world.disk.unlink(f"{path}/{name}")
    records = [Record(0, 5, b"k", b"v" * 100)] * 10
    world.write(segment_path(path, 0, ".log"), encode_batch(records, leader_epoch=0))
    torn = encode_batch(records, base_offset=200, leader_epoch=5)[: -1 if is_torn else 0]
    world.write(segment_path(path, 200, ".log"), torn)
    world.write(f"{path}/{LEADER_EPOCH_FILE}", b"0\n2\n0 0\n5 150\n")
    [partition] = world.run("payments").topics[0].partitions
    assert partition.log.log_end_offset >= 10
    server = world.server()
    opened = server.open_topic(server.catalog.topics()["payments"])[TopicPartition("payments", 0)].log
    assert len(opened.reader.read(0, 2**20, Isolation.LOG_END).batches) > 1000
    opened.check()


def last_byte_is_missing(world: ImportWorld) -> int:
    world.disk.unlink("/kafka/.kafka_cleanshutdown")
    path = segment_path("/kafka/payments-0", 25, ".log")
    world.write(path, world.disk.read_file(path)[:-1])
    return 30


def checkpoint_is_older_than_the_marker(_: ImportWorld) -> int:
    return 29


@pytest.mark.parametrize(
    ("damage", "end_offset"), [(last_byte_is_missing, 29), (checkpoint_is_older_than_the_marker, 30)]
)
def test_what_a_refusal_advises_is_what_helps(
    world: ImportWorld, damage: Callable[[ImportWorld], int], end_offset: int
) -> None:
    world.write_offsets("recovery-point", {"payments-0": damage(world)})
    with pytest.raises(DataDirectoryError) as refusal:
        world.run("payments")
    assert "checkpoint to 0" in str(refusal.value)
    world.write_offsets("recovery-point", {"payments-0": 0})
    [partition] = world.run("payments").topics[0].partitions
    assert partition.log.log_end_offset == end_offset
