"""An import takes the producer ids that it brings, in the commit that creates their topic."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.migration.import_staging import MAX_IMPORTED_PRODUCER_ID
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import NO_PRODUCER, encode_batch
from stratalog.record.header import PRODUCER_ID_POSITION
from stratalog.record.record import Record
from stratalog.remote.metadata.catalog.catalog_state import CatalogState
from tests.support.kafka.import_world import PAYMENTS, SMALL_SEGMENTS, ImportWorld

BILLS = TopicPartition("bills", 0)
BILLS_ID = UUID(int=13)


def append(world: ImportWorld, partition: TopicPartition, topic_id: UUID, *producer_ids: int) -> None:
    """Append a batch of each producer to the broker's log, and one without a producer."""
    broker = world.broker()
    log = broker.open_log(partition, topic_id, SMALL_SEGMENTS)
    now_ms = world.clock.now_ms()
    for producer in (*(BatchProducer(one, 0, 0) for one in producer_ids), NO_PRODUCER):
        log.appender.append_as_leader(encode_batch([Record(0, now_ms, b"k", b"v")], producer=producer), 7)
    broker.close()


def catalog_after(world: ImportWorld) -> CatalogState:
    logs = world.server()
    state = logs.catalog.state()
    logs.close()
    return state


@pytest.mark.parametrize("was_clean", [True, False])
def test_new_producers_get_larger_ids_than_all_imported_ones(world: ImportWorld, was_clean: bool) -> None:
    append(world, TopicPartition("payments", 0), PAYMENTS, 41, 907, 8)
    append(world, BILLS, BILLS_ID, 906)
    if not was_clean:
        world.disk.unlink("/kafka/.kafka_cleanshutdown")
    report = world.run("bills")
    assert [topic.partitions[0].log.max_producer_id for topic in report.topics] == [906]
    assert catalog_after(world).next_producer_id == 907
    seq = catalog_after(world).seq
    world.run("payments")
    state = catalog_after(world)
    assert (state.seq, state.next_producer_id) == (seq + 1, 908), "both are one commit"
    world.run("orders")
    assert catalog_after(world).next_producer_id == 908, "it has no producers"


def test_ids_of_batches_count_although_the_broker_has_forgotten_the_producer(world: ImportWorld) -> None:
    append(world, BILLS, BILLS_ID, 907)
    world.clock.advance(1000)
    settings = LogManagerSettings(data_dirs=("/kafka",), producer_id_expiration_ms=1)
    broker = LogManager.open(world.disk, world.clock, world.scheduler, world.ids, settings)
    log = broker.open_log(BILLS, BILLS_ID, SMALL_SEGMENTS)
    log.appender.append_as_leader(encode_batch([Record(0, 5, b"k", b"v")]), 7)
    assert log.producers() == ()
    broker.close()
    world.run("bills")
    assert catalog_after(world).next_producer_id == 908


def test_ids_of_producers_count_although_their_batches_are_gone(world: ImportWorld) -> None:
    append(world, BILLS, BILLS_ID, 907)
    broker = world.broker()
    log = broker.open_log(BILLS, BILLS_ID, SMALL_SEGMENTS)
    log.roll()
    broker.close()
    append(world, BILLS, BILLS_ID)
    for name in world.disk.list_directory("/kafka/bills-0"):
        if name.startswith(f"{0:020}."):
            world.disk.unlink(f"/kafka/bills-0/{name}")
    report = world.run("bills")
    assert report.topics[0].partitions[0].log.log_start_offset == 2
    assert catalog_after(world).next_producer_id == 908


def test_a_damaged_batch_takes_no_ids(world: ImportWorld) -> None:
    append(world, BILLS, BILLS_ID, 907)
    broker = world.broker()
    broker.open_log(BILLS, BILLS_ID, SMALL_SEGMENTS).roll()
    broker.close()
    path = f"/kafka/bills-0/{0:020}.log"
    data = bytearray(world.disk.contents()[path] or b"")
    batch_bytes = len(encode_batch([Record(0, 5, b"k", b"v")]))
    data[batch_bytes + PRODUCER_ID_POSITION : batch_bytes + PRODUCER_ID_POSITION + 8] = (2**60).to_bytes(8)
    world.write(path, bytes(data))
    world.run("bills")
    assert catalog_after(world).next_producer_id == 908


def test_ids_that_leave_no_room_are_refused(world: ImportWorld) -> None:
    append(world, BILLS, BILLS_ID, MAX_IMPORTED_PRODUCER_ID)
    world.run("bills")
    assert catalog_after(world).next_producer_id == MAX_IMPORTED_PRODUCER_ID + 1
    append(world, TopicPartition("payments", 0), PAYMENTS, MAX_IMPORTED_PRODUCER_ID + 1)
    before = world.disk.contents()
    with pytest.raises(DataDirectoryError) as refusal:
        world.run("payments")
    assert refusal.value.fields == {
        "topic": "payments",
        "partition": 0,
        "producer_id": MAX_IMPORTED_PRODUCER_ID + 1,
        "max_producer_id": MAX_IMPORTED_PRODUCER_ID,
    }
    assert world.disk.contents() == before
    assert list(catalog_after(world).topics()) == ["bills"]
