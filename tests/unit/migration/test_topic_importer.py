"""Refusals of imports, partitions that they pass over, and owners that may go on with imported logs."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from stratalog.base.errors import (
    DataDirectoryError,
    DataDirectoryInUseError,
    InvalidConfigError,
    InvalidRequestError,
    LimitExceededError,
    LogStoreError,
    NotOwnerError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    UnsupportedOperationError,
)
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.log.config_key import LONG_MAX
from stratalog.manager.directories.manifest import parse_partition_name
from stratalog.manager.directories.partition_metadata import write_partition_metadata
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.catalog.catalog_bounds import CatalogBounds
from stratalog.segment.file_names import segment_path
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.kafka.import_world import ORDERS, PAYMENTS, SMALL_SEGMENTS, ImportWorld
from tests.support.kafka.old_messages import old_message
from tests.support.logs.edited_manifest import edit_manifest


def test_a_plan_changes_nothing(world: ImportWorld) -> None:
    before = world.disk.contents()
    plan = world.plan()
    assert [(topic.name, topic.topic_id, len(topic.partitions)) for topic in plan.topics] == [
        ("orders", ORDERS, 2),
        ("payments", PAYMENTS, 1),
    ]
    assert plan.was_clean
    assert plan.is_retention_assumed
    assert not world.plan(config={"retention.ms": "5"}).is_retention_assumed
    assert world.disk.contents() == before
    assert list(world.store.list("")) == []


def test_sealed_segments_are_linked_and_the_last_one_is_copied(world: ImportWorld) -> None:
    [orders] = world.plan("orders").topics
    for partition in orders.partitions:
        logs = [file for file in partition.files if file.name.endswith(".log")]
        assert len(logs) > 2
        assert [file.is_settled for file in logs] == [True] * (len(logs) - 1) + [False]
        assert all(not file.is_settled for file in partition.files if file not in logs)


def test_above_the_recovery_point_everything_is_copied(world: ImportWorld) -> None:
    # Five batches fill a segment.
    world.write_offsets("recovery-point", {"orders-0": 9, "orders-1": 0})
    [orders] = world.plan("orders").topics
    settled = [file.name for file in orders.partitions[0].files if file.is_settled]
    assert settled == [f"{0:020}.log"]
    assert not any(file.is_settled for file in orders.partitions[1].files)


def test_a_second_import_passes_over_what_is_there_and_brings_the_others(world: ImportWorld) -> None:
    world.run("orders")
    before, objects = world.disk.contents(), list(world.store.list(""))
    assert (world.plan("orders").topics, world.plan("orders").already_imported) == ((), ("orders",))
    report = world.run("orders")
    assert (report.topics, report.plan.already_imported, report.plan.leftovers) == ((), ("orders",), ())
    assert (world.disk.contents(), list(world.store.list(""))) == (before, objects)
    report = world.run()
    assert [topic.name for topic in report.topics] == ["payments"]
    assert (report.plan.already_imported, report.plan.leftovers) == (("orders",), ())
    logs = world.server()
    for topic in logs.catalog.topics().values():
        for found in logs.open_topic(topic).values():
            assert (found.reason, found.log.offsets.log_end_offset) == ("", 30)
    assert sorted(logs.catalog.topics()) == ["orders", "payments"]


def test_another_topic_of_that_name_in_the_store_is_left_alone(world: ImportWorld) -> None:
    logs = world.server(MemoryFileSystem())
    logs.catalog.create("orders", 2)
    logs.close()
    world.refuse(TopicAlreadyExistsError, fields={"topic": "orders", "topic_id": ORDERS})
    for number in range(2):
        world.disk.unlink(f"/kafka/orders-{number}/partition.metadata")
    world.refuse(TopicAlreadyExistsError, fields={"topic": "orders", "topic_id": None})


def test_the_same_topic_is_not_taken_for_imported_where_logs_of_it_are_missing(world: ImportWorld) -> None:
    world.run()
    world.refuse(TopicAlreadyExistsError, fields={"missing_partitions": "0,1"}, data_dir="/other")
    world.disk.rename("/data/orders-1", "/moved")
    world.refuse(TopicAlreadyExistsError, fields={"missing_partitions": "1"})
    world.disk.rename("/moved", "/data/orders-1")
    world.disk.make_directories("/kafka/orders-2")
    write_partition_metadata(world.disk, "/kafka/orders-2", ORDERS)
    world.refuse(
        TopicAlreadyExistsError,
        fields={"partition_count": 3, "store_partition_count": 2},
        allows_missing_checkpoints=True,
    )


def test_a_topic_that_was_deleted_keeps_its_id(world: ImportWorld) -> None:
    world.run("orders")
    logs = world.server()
    logs.catalog.delete(ORDERS)
    logs.close()
    world.disk.remove_tree("/data")
    world.refuse(TopicAlreadyExistsError, fields={"topic_id": ORDERS})


def test_logs_of_that_name_or_id_in_the_data_directory_are_left_alone(world: ImportWorld) -> None:
    for name, topic_id in (("payments-9", UUID(int=99)), ("bills-0", PAYMENTS)):
        world.disk.remove_tree("/data")
        world.disk.make_directories(f"/data/{name}")
        write_partition_metadata(world.disk, f"/data/{name}", topic_id)
        world.refuse(TopicAlreadyExistsError, "payments", fields={"path": f"/data/{name}"})


def test_logs_in_the_servers_other_log_directories_are_left_alone(world: ImportWorld) -> None:
    settings = LogManagerSettings(data_dirs=("/data", "/other/logs"))
    logs = LogManager.open(world.disk, world.clock, world.scheduler, world.ids, settings)
    logs.directories.bind_store("none yet")
    logs.close()
    for name, topic_id in (("payments-9", UUID(int=99)), ("bills-0", PAYMENTS)):
        path = f"/other/logs/{name}"
        world.disk.make_directories(path)
        write_partition_metadata(world.disk, path, topic_id)
        partition = parse_partition_name(name)
        assert partition is not None
        edit_manifest(world.disk, "/other/logs", partition, topic_id, import_epoch=3)
        with pytest.raises(TopicAlreadyExistsError) as refusal:
            world.plan("payments")
        assert refusal.value.fields["path"] == path
        # What is somewhere else by now is not looked for.
        world.disk.rename("/other", "/moved")
        world.plan("payments")
        world.disk.rename("/moved", "/other")
        world.disk.remove_tree(path)
    world.plan("payments")


def test_records_of_that_id_in_the_store_are_left_alone(world: ImportWorld) -> None:
    logs = world.server(MemoryFileSystem())
    tip = TopicIdPartition(PAYMENTS, 0)
    logs.metadata.advance_log_start({tip: 4}, epoch=logs.claimed.epoch, catalog_seq=None)
    world.refuse(TopicAlreadyExistsError, "payments", fields={"topic_id": PAYMENTS})


def test_names_that_no_topic_may_have_beside_others_are_refused(world: ImportWorld) -> None:
    world.disk.rename("/kafka/payments-0", "/kafka/orders.eu-0")
    world.write_offsets("recovery-point", {"orders.eu-0": 30})
    broker_names = world.plan("orders.eu").topics
    assert [topic.name for topic in broker_names] == ["orders.eu"]
    logs = world.server(MemoryFileSystem())
    logs.catalog.create("orders_eu", 1)
    world.refuse(InvalidRequestError, "orders.eu", fields={"existing_topic": "orders_eu"})


def test_an_import_adds_no_more_than_a_store_may_have(world: ImportWorld) -> None:
    world.refuse(
        LimitExceededError,
        bounds=CatalogBounds(1, 10),
        fields={"topic_count": 2, "max_topic_count": 1},
    )
    world.refuse(
        LimitExceededError,
        bounds=CatalogBounds(2, 2),
        fields={"partition_count": 3, "max_partition_count": 2},
    )
    world.run("orders", bounds=CatalogBounds(1, 2))
    world.refuse(
        LimitExceededError,
        "payments",
        bounds=CatalogBounds(1, 10),
        fields={"topic_count": 2, "max_topic_count": 1},
    )
    # What is there already needs no room.
    assert world.run("orders", bounds=CatalogBounds(1, 1)).topics == ()
    assert len(world.run(bounds=CatalogBounds(2, 3)).topics) == 1


def test_topics_that_share_an_id_are_refused_before_one_of_them_is_lost(world: ImportWorld) -> None:
    """One directory was copied with `cp -r`, and so was its line in the checkpoint."""
    world.disk.make_directories("/kafka/zz-0")
    write_partition_metadata(world.disk, "/kafka/zz-0", PAYMENTS)
    both = {"path": "/kafka/zz-0", "other_topic": "payments", "other_path": "/kafka/payments-0"}
    world.refuse(DataDirectoryError, fields=both, allows_missing_checkpoints=True)
    # A command that names one of them has said which one it is.
    [payments] = world.run("payments", allows_missing_checkpoints=True).topics
    assert payments.partitions[0].log.log_end_offset == 30
    world.refuse(DataDirectoryError, "payments", "zz", fields=both, allows_missing_checkpoints=True)
    world.refuse(TopicAlreadyExistsError, "zz", fields={"topic": "zz"}, allows_missing_checkpoints=True)


DAMAGES: dict[str, Callable[[ImportWorld], object]] = {
    "the first partition is elsewhere": lambda world: world.disk.remove_tree("/kafka/orders-0"),
    "the broker runs": lambda world: world.disk.try_lock("/kafka/.lock"),
    "a partition is of another topic": lambda world: write_partition_metadata(
        world.disk, "/kafka/orders-1", PAYMENTS
    ),
    "the format is old": lambda world: world.write(
        segment_path("/kafka/orders-1", 0, ".log"), old_message(0, 1, b"k", b"v")
    ),
    "log starts are damaged": lambda world: world.write(
        "/kafka/log-start-offset-checkpoint", b"0\n1\norders"
    ),
}


@pytest.mark.parametrize(
    ("damage", "error", "fields"),
    [
        ("the first partition is elsewhere", DataDirectoryError, {"missing_partitions": "0"}),
        ("the broker runs", DataDirectoryInUseError, {"path": "/kafka"}),
        ("a partition is of another topic", DataDirectoryError, {"topic_ids": f"{ORDERS},{PAYMENTS}"}),
        ("the format is old", UnsupportedOperationError, {"position": 0, "message_format": 1}),
        ("log starts are damaged", DataDirectoryError, {"path": "/kafka/log-start-offset-checkpoint"}),
    ],
)
def test_a_log_directory_that_is_not_fit_is_refused(
    world: ImportWorld, damage: str, error: type[LogStoreError], fields: dict[str, object]
) -> None:
    DAMAGES[damage](world)
    world.refuse(error, fields=fields)


def test_a_servers_data_directory_is_no_brokers(world: ImportWorld) -> None:
    broker = world.broker()
    broker.directories.bind_store("store")
    broker.close()
    world.refuse(DataDirectoryError, fields={"path": "/kafka"})


@pytest.mark.parametrize("data_dir", ["/kafka", "/kafka/data", "/"])
def test_directories_lie_apart(world: ImportWorld, data_dir: str) -> None:
    with pytest.raises(InvalidRequestError):
        world.importer(data_dir=data_dir)


def test_what_was_asked_for_must_be_there_and_make_sense(world: ImportWorld) -> None:
    world.refuse(UnknownTopicOrPartitionError, "order", fields={"topic": "order"})
    world.refuse(
        InvalidConfigError, fields={"name": "min.insync.replicas"}, config={"min.insync.replicas": "1"}
    )
    world.refuse(DataDirectoryError, fields={"path": "/elsewhere"}, log_dirs=("/elsewhere",))
    world.disk.make_directories("/empty")
    world.refuse(UnknownTopicOrPartitionError, fields={"path": "/empty"}, log_dirs=("/empty",))


def test_what_is_no_topics_is_passed_over_and_told(world: ImportWorld) -> None:
    names = ["orders-0.0af3-delete", "orders-1.0af3-stray", "orders-3.0af3-future", "snapshots"]
    for name in [*names, "__consumer_offsets-3"]:
        world.disk.make_directories(f"/kafka/{name}")
    plan = world.plan()
    assert [topic.name for topic in plan.topics] == ["orders", "payments"]
    assert [over.name for over in plan.passed_over] == [*names, "__consumer_offsets-3"]
    assert "name the topic" in plan.passed_over[-1].reason
    missing = {"missing_partitions": "0-2", "missing_count": 3}
    world.refuse(DataDirectoryError, "__consumer_offsets", fields=missing)


def test_a_damaged_log_is_refused_before_a_server_meets_it(world: ImportWorld) -> None:
    world.disk.unlink("/kafka/.kafka_cleanshutdown")
    world.write(world.last_log("/kafka/orders-1"), b"not what was fsynced")
    for topics in ((), ("orders",)):
        before, objects = world.disk.contents(), list(world.store.list(""))
        with pytest.raises(DataDirectoryError) as refusal:
            world.run(*topics)
        assert refusal.value.fields["path"] == "/kafka/orders-1"
        assert world.disk.contents() == before
        assert [key for key in world.store.list("") if key not in objects] == []
        world.run("payments")


@pytest.mark.parametrize("is_valid", [True, False])
def test_a_compaction_that_the_broker_did_not_finish_is_settled(world: ImportWorld, is_valid: bool) -> None:
    world.disk.unlink("/kafka/.kafka_cleanshutdown")
    for suffix in (".log", ".index", ".timeindex"):
        path = segment_path("/kafka/payments-0", 0, suffix)
        world.disk.rename(path, f"{path}.swap")
    if not is_valid:
        # The swap files are of a replacement that had not begun; so the first records are those behind it.
        world.write(segment_path("/kafka/payments-0", 0, ".log") + ".cleaned", b"")
    [payments] = world.run("payments").topics
    [partition] = payments.partitions
    start_offset = 0 if is_valid else 5
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (start_offset, 30)
    logs = world.server()
    found = logs.open_topic(logs.catalog.topics()["payments"])[TopicPartition("payments", 0)]
    found.log.check()
    assert found.reason == ""
    assert (found.log.offsets.log_start_offset, found.log.offsets.local_log_start_offset) == (
        start_offset,
        start_offset,
    )


def test_a_producer_that_has_been_idle_for_long_comes_along(world: ImportWorld) -> None:
    """For how long it stays is the server's own setting."""
    broker = world.broker()
    log = broker.open_log(TopicPartition("payments", 0), PAYMENTS, SMALL_SEGMENTS)
    producer = BatchProducer(producer_id=7, producer_epoch=0, base_sequence=0)
    log.appender.append_as_leader(
        encode_batch([Record(0, world.clock.now_ms(), b"k", b"v")], producer=producer), 7
    )
    log.roll()
    log.appender.append_as_leader(encode_batch([Record(0, 5, b"k", b"v")]), 7)
    broker.close()
    # So the state is made again, from the snapshot that the last segment begins with.
    world.disk.unlink("/kafka/.kafka_cleanshutdown")
    world.clock.advance(7 * 24 * 60 * 60 * 1000)
    world.run("payments")
    patient = LogManagerSettings(data_dirs=("/data",), producer_id_expiration_ms=LONG_MAX)
    logs = LogManager.open(world.disk, world.clock, world.scheduler, world.ids, patient)
    opened = logs.open_log(TopicPartition("payments", 0), PAYMENTS, SMALL_SEGMENTS)
    assert [entry.producer_id for entry in opened.producers()] == [7]


def test_a_topic_from_before_ids_gets_one(world: ImportWorld) -> None:
    for number in range(2):
        world.disk.unlink(f"/kafka/orders-{number}/partition.metadata")
    report = world.run("orders")
    logs = world.server()
    assert logs.catalog.topics()["orders"].topic_id == report.topics[0].topic_id
    opened = logs.open_topic(logs.catalog.topics()["orders"])
    assert [found.log.offsets.log_end_offset for found in opened.values()] == [30, 30]


def test_a_store_that_others_have_owned_takes_what_is_imported(world: ImportWorld) -> None:
    other = world.server(MemoryFileSystem())
    world.run()
    with pytest.raises(NotOwnerError):
        other.metadata.advance_log_start(
            {TopicIdPartition(UUID(int=1), 0): 1}, epoch=other.claimed.epoch, catalog_seq=None
        )
    for _ in range(2):
        logs = world.server()
        assert logs.claimed.trusted_epoch > 7
        for topic in logs.catalog.topics().values():
            for found in logs.open_topic(topic).values():
                assert (found.reason, found.log.offsets.log_end_offset) == ("", 30)
        logs.close()
    # Another machine takes over: from now on the import is as old as any other log of this one.
    world.server(MemoryFileSystem()).close()
    logs = world.server()
    found = logs.open_topic(logs.catalog.topics()["payments"])[TopicPartition("payments", 0)]
    assert "another data directory" in found.reason


def test_a_plain_topic_is_imported_without_the_store(world: ImportWorld) -> None:
    world.run("payments", config={"remote.storage.enable": "false", "retention.ms": "60000"})
    logs = world.server()
    entry = logs.catalog.topics()["payments"]
    assert dict(entry.config) == {"remote.storage.enable": "false", "retention.ms": "60000"}
    assert logs.open_topic(entry)[TopicPartition("payments", 0)].log.offsets.log_end_offset == 30
    assert TopicIdPartition(PAYMENTS, 0) not in logs.metadata.state().partitions
