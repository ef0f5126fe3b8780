"""Identity and keys of a store."""

from __future__ import annotations

from random import Random
from uuid import UUID

import crc32c
import pytest

from stratalog.base.errors import StoreCorruptError, StoreNotUsableError
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.remote.json_document import encode_document
from stratalog.remote.objects.object_ref import birth_of, format_object_name
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import (
    IDENTITY_KEY,
    StoreLayout,
    format_checkpoint_name,
    format_history_name,
    shard_of,
)
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Fault, FaultOn, Operation

UUID_1 = UUID("aaaaaaaa-0000-4000-8000-000000000001")


def memory_store() -> MemoryObjectStore:
    return MemoryObjectStore(ManualClock())


def test_created_once_with_a_fixed_number_of_shards_and_read_ever_after() -> None:
    store = memory_store()
    created = StoreIdentity.open_or_create(store, SequentialIds(1), 3)
    assert created.shard_count == 3
    assert StoreIdentity.open_or_create(store, SequentialIds(2)) == created
    assert StoreIdentity.open(store) == StoreIdentity.find(store) == created
    with pytest.raises(StoreNotUsableError) as caught:
        StoreIdentity.open_or_create(store, SequentialIds(1), 4)
    assert caught.value.fields["store_shard_count"] == 3
    assert StoreIdentity.open_or_create(memory_store(), SequentialIds(1)).shard_count == 1


def test_a_reader_does_not_create() -> None:
    store = memory_store()
    with pytest.raises(StoreNotUsableError):
        StoreIdentity.open(store)
    assert StoreIdentity.find(store) is None
    assert list(store.list("")) == []


@pytest.mark.parametrize("key", ["shards/0000/head", "catalog/head", "shards/0003/data/x"])
def test_a_lost_identity_is_not_replaced(key: str) -> None:
    store = memory_store()
    store.put(key, b"{}")
    with pytest.raises(StoreCorruptError):
        StoreIdentity.open_or_create(store, SequentialIds(1))
    with pytest.raises(StoreCorruptError):
        StoreIdentity.find(store)


@pytest.mark.parametrize(
    "fault", [Fault.LANDS_UNKNOWN, Fault.LANDS_AND_IS_REFUSED, Fault.FAILS, Fault.LANDS_LATE]
)
def test_the_identity_that_lands_first_counts(fault: Fault) -> None:
    memory = memory_store()
    store = FaultyObjectStore(memory, Random(1), FaultOn(fault, "PUT"))
    created = StoreIdentity.open_or_create(store, SequentialIds(1))
    store.release_all()
    assert StoreIdentity.open_or_create(memory, SequentialIds(2)) == created


def test_racing_creators_agree() -> None:
    """Another process creates the store between our look and our put."""
    memory = memory_store()
    others: list[StoreIdentity] = []

    def before(operation: Operation) -> None:
        if operation.verb == "PUT":
            others.append(StoreIdentity.open_or_create(memory, SequentialIds(2)))

    store = FaultyObjectStore(memory, Random(1), before=before)
    assert [StoreIdentity.open_or_create(store, SequentialIds(1))] == others


def document(**changes: object) -> bytes:
    fields = {
        "format": "stratalog-store",
        "read_version": 1,
        "write_version": 1,
        "store_id": str(UUID_1),
        "shard_count": 1,
    }
    return encode_document(fields | changes)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", StoreCorruptError),
        (b"{}", StoreCorruptError),
        (document(format="stratalog-head"), StoreCorruptError),
        (document(read_version=2, write_version=2), StoreNotUsableError),
        (document(shard_count=0), StoreCorruptError),
        (document(store_id="x"), StoreCorruptError),
    ],
)
def test_an_identity_that_is_none(data: bytes, error: type[Exception]) -> None:
    store = memory_store()
    store.put(IDENTITY_KEY, data)
    with pytest.raises(error):
        StoreIdentity.open_or_create(store, SequentialIds(1))


def test_every_flipped_bit_of_an_identity_is_noticed() -> None:
    """A changed number of shards would send partitions to shards that never had them."""
    data = StoreIdentity(UUID_1, 3).encode()
    refused: set[object] = set()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            found = StoreIdentity.decode(bytes(changed))
        except StoreCorruptError as error:
            refused.add(error.fields["key"])
        else:
            assert found == StoreIdentity(UUID_1, 3), bit
    assert refused == {IDENTITY_KEY}


def test_an_identity_without_a_checksum_is_read() -> None:
    """Earlier software wrote it, or an operator by hand."""
    assert StoreIdentity.decode(document()) == StoreIdentity(UUID_1, 1)
    text = StoreIdentity(UUID_1, 2).encode()
    end = text.rindex(b',"crc":')
    assert text[end:] == b',"crc":%d}' % crc32c.crc32c(text[:end])
    assert StoreIdentity.decode(text[:end] + b"}") == StoreIdentity(UUID_1, 2)
    with pytest.raises(StoreCorruptError):
        StoreIdentity.decode(text.replace(b'{"format"', b'{"crc":1,"format"')[: end + 8] + b"}")


def test_keys() -> None:
    shard = StoreLayout(7)
    assert shard.head_key == "shards/0007/head"
    assert shard.data_key("x") == "shards/0007/data/x"
    assert shard.checkpoint_key("x") == "shards/0007/checkpoints/x"
    assert shard.page_key("x") == "shards/0007/pages/x"
    assert shard.history_key("x") == "shards/0007/history/x"
    assert StoreLayout(None).head_key == "catalog/head"


def test_names_sort_by_number() -> None:
    assert format_object_name(7, UUID_1) == f"00000000000000000007-{UUID_1}"
    assert birth_of(format_object_name(12, UUID_1)) == 12
    assert format_checkpoint_name(7, UUID_1) < format_checkpoint_name(10, UUID_1)
    assert format_history_name(1, 12, UUID_1) == f"00000000000000000001-00000000000000000012-{UUID_1}"


@pytest.mark.parametrize("name", ["", "7", f"7-{UUID_1}", f"00000000000000000007-{UUID_1}\n", "x" * 57])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(StoreCorruptError):
        birth_of(name)


def test_partitions_of_a_topic_spread_over_the_shards() -> None:
    topic = UUID("00000005-0000-4000-8000-000000000001")
    assert [shard_of(TopicIdPartition(topic, n), 4) for n in range(5)] == [1, 2, 3, 0, 1]
    # The largest start and partition: nothing overflows.
    last = UUID("ffffffff-0000-4000-8000-000000000001")
    assert shard_of(TopicIdPartition(last, (1 << 31) - 1), 10_000) == (0xFFFFFFFF + (1 << 31) - 1) % 10_000
