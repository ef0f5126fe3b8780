"""Appends of clients without a codec: idempotent, conditional, and with the partition left to the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random

import grpc
import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    InvalidRequestError,
    LogStoreError,
    OutOfOrderSequenceError,
    PrecedingAppendFailedError,
    ProducerFencedError,
    StoreUnavailableError,
    UnexpectedOffsetError,
    UnknownProducerIdError,
    UnknownTopicOrPartitionError,
)
from stratalog.client.append_record import AppendRecord
from stratalog.client.errors import error_of_call, error_of_status
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.key_partition import partition_for_key
from stratalog.record.record import Record
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.store_faults import Fault
from stratalog.v1 import log_pb2
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.service.service_bench import (
    HOUR_MS,
    ServiceBench,
    catalog_elsewhere,
    service_bench,
)

NOW_MS = 1_357_034_400_000


def plain(*values: bytes) -> log_pb2.Records:
    return log_pb2.Records(records=[log_pb2.Record(value=value) for value in values])


def keyed(*keys: bytes | None, timestamp_ms: int | None = None) -> log_pb2.Records:
    records = [log_pb2.Record(key=key, value=b"v", timestamp_ms=timestamp_ms) for key in keys]
    return log_pb2.Records(records=records)


def of_producer(
    producer_id: int, sequence: int, *values: bytes, epoch: int = 0, topic: str = "t"
) -> log_pb2.AppendRequest:
    return log_pb2.AppendRequest(
        topic=topic,
        partition=0,
        records=plain(*values),
        producer=log_pb2.ProducerSequence(
            producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        ),
    )


async def append(bench: ServiceBench, request: log_pb2.AppendRequest) -> log_pb2.AppendResponse:
    """Append, or raise the error of the answer."""
    try:
        return await bench.client.log.Append(request)
    except grpc.aio.AioRpcError as error:
        raise error_of_call(error, "") from None


async def init_producer(bench: ServiceBench) -> int:
    return (await bench.client.log.InitProducer(log_pb2.InitProducerRequest())).producer_id


async def stream(
    bench: ServiceBench, requests: Sequence[log_pb2.AppendRequest]
) -> list[log_pb2.AppendResponse | LogStoreError]:
    """The outcomes of the requests, in their order."""

    async def send() -> AsyncIterator[log_pb2.AppendStreamRequest]:
        for sequence, request in enumerate(requests):
            yield log_pb2.AppendStreamRequest.FromString(
                request.SerializeToString()
                + log_pb2.AppendStreamRequest(sequence=sequence).SerializeToString()
            )

    outcomes: dict[int, log_pb2.AppendResponse | LogStoreError] = {}
    async for answer in bench.client.log.AppendStream(send()):
        failed = answer.HasField("status")
        outcomes[answer.sequence] = error_of_status(answer.status) if failed else answer.ack
    return [outcomes[sequence] for sequence in range(len(requests))]


def base_offset(outcome: log_pb2.AppendResponse | LogStoreError) -> int:
    assert isinstance(outcome, log_pb2.AppendResponse)
    return outcome.base_offset


# --- idempotent appends ------------------------------------------------------------------------------------


async def test_a_producer_without_a_codec_appends_once_however_often_it_sends(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    producer_id = await init_producer(bench)
    sent = [of_producer(producer_id, 0, b"a", b"b"), of_producer(producer_id, 2, b"c")]
    for is_again in (False, True):
        answers = [await append(bench, request) for request in sent]
        assert [(one.base_offset, one.last_offset, one.duplicate) for one in answers] == [
            (0, 1, is_again),
            (2, 2, is_again),
        ]
    with pytest.raises(OutOfOrderSequenceError) as gap:
        await append(bench, of_producer(producer_id, 5, b"later"))
    assert gap.value.fields["expected_sequence"] == 3
    assert (await append(bench, of_producer(producer_id, 0, b"new epoch", epoch=3))).base_offset == 3
    with pytest.raises(ProducerFencedError):
        await append(bench, of_producer(producer_id, 3, b"old epoch"))
    assert await bench.values("t") == [[b"a", b"b", b"c", b"new epoch"]]


async def test_a_retry_behind_a_restart_is_a_duplicate_in_batches_too(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t")
        producer_id = await init_producer(bench)
        assert (await append(bench, of_producer(producer_id, 0, b"a"))).base_offset == 0
    async with service_bench(tmp_path) as bench:
        assert (await append(bench, of_producer(producer_id, 0, b"a"))).duplicate
        # The same place in the sequence, sent by a client with a codec.
        record = Record(0, SystemClock().now_ms(), None, b"a")
        batch = encode_batch([record], producer=BatchProducer(producer_id, 0, 0))
        assert (await bench.client.append_batches("t", 0, batch)).duplicate
        assert await bench.values("t") == [[b"a"]]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"producer_epoch": -1}, "producer_epoch"),
        ({"producer_epoch": 2**15}, "producer_epoch"),
        ({"base_sequence": -1}, "base_sequence"),
    ],
)
async def test_a_sequence_that_no_header_can_hold_is_refused(
    bench: ServiceBench, changed: dict[str, int], field: str
) -> None:
    await bench.client.admin.create_topic("t")
    fields = {"producer_id": await init_producer(bench), **changed}
    request = log_pb2.AppendRequest(topic="t", partition=0, records=plain(b"a"))
    request.producer.CopyFrom(log_pb2.ProducerSequence(**fields))
    with pytest.raises(InvalidRequestError) as caught:
        await append(bench, request)
    assert caught.value.fields["field"] == field
    assert await bench.values("t") == [[]]


async def test_batches_have_their_producer_in_their_headers_alone(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    request = log_pb2.AppendRequest(topic="t", partition=0, batches=encode_batch([Record(0, 0, None, b"a")]))
    request.producer.producer_id = await init_producer(bench)
    with pytest.raises(InvalidRequestError):
        await append(bench, request)
    [outcome] = await stream(bench, [request])
    assert type(outcome) is InvalidRequestError
    assert await bench.values("t") == [[]]


async def test_a_retry_after_a_flush_that_was_not_acknowledged_is_a_duplicate(tmp_path: Path) -> None:
    """The store falls silent between the append and its fsync: the records are stored, and the answer says
    that the same request may succeed later.
    """
    clock = ManualClock()
    bound_ms = HOUR_MS + 60_000
    slow: list[str] = []

    def before(name: str, path: str) -> None:
        if slow and name == "sync" and path.endswith(".log"):
            slow.clear()
            clock.advance(bound_ms + 1)

    store = MemoryObjectStore(clock)
    disk = HookedDisk(before)
    async with service_bench(
        "/", filesystem=disk, store=store, clock=clock, max_silence_ms=bound_ms
    ) as bench:
        await bench.client.admin.create_topic("t", config={"min.durability": "disk"})
        producer_id = await init_producer(bench)
        await bench.refresh()
        sent = of_producer(producer_id, 0, b"a")
        slow.append("now")
        with pytest.raises(StoreUnavailableError) as caught:
            await append(bench, sent)
        assert caught.value.retriable
        assert await bench.values("t") == [[b"a"]], "it is stored nevertheless"
        await bench.refresh()
        answer = await append(bench, sent)
        assert (answer.base_offset, answer.duplicate, answer.durability) == (0, True, log_pb2.DURABILITY_DISK)
        assert (await append(bench, of_producer(producer_id, 1, b"b"))).base_offset == 1
        assert await bench.values("t") == [[b"a", b"b"]]


# --- ids that no server has given --------------------------------------------------------------------------


def batch_of(producer_id: int, sequence: int = 0) -> log_pb2.AppendRequest:
    batch = encode_batch([Record(0, NOW_MS, None, b"a")], producer=BatchProducer(producer_id, 0, sequence))
    return log_pb2.AppendRequest(topic="t", partition=0, batches=batch)


async def test_an_invented_id_is_refused_in_every_form(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    given = await init_producer(bench)
    end = bench.server.engine.topics.catalog.state().next_producer_id
    # The next one of the block, the last one, and one that no block has.
    for invented in (given + 1, end - 1, end, 2**62):
        for request in (of_producer(invented, 0, b"a"), batch_of(invented)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await bench.client.log.Append(request)
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            error = error_of_call(caught.value, "")
            assert type(error) is UnknownProducerIdError
            named = {"topic": "t", "partition": 0}
            assert (error.fields, error.retriable) == ({**named, "producer_id": invented}, False)
    with pytest.raises(UnknownProducerIdError):
        await append(bench, of_producer(-1, 0, b"a"))
    outcomes = await stream(bench, [batch_of(given), batch_of(end), batch_of(given, 1)])
    assert base_offset(outcomes[0]) == 0
    assert [type(one) for one in outcomes[1:]] == [UnknownProducerIdError, PrecedingAppendFailedError]
    assert await bench.values("t") == [[b"a"]]


async def test_an_id_of_another_servers_block_is_known_without_a_look_at_the_heads(tmp_path: Path) -> None:
    store = MemoryObjectStore(ManualClock())
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t")
        elsewhere = catalog_elsewhere(store).take_producer_ids(1000)
        assert (await append(bench, of_producer(elsewhere[500], 0, b"a"))).base_offset == 0
        [outcome] = await stream(bench, [batch_of(elsewhere[501])])
        assert base_offset(outcome) == 1
        with pytest.raises(UnknownProducerIdError):
            await append(bench, of_producer(elsewhere.stop, 0, b"a"))


async def test_without_the_store_no_id_is_refused_as_unknown(tmp_path: Path) -> None:
    """It could be one of another server."""
    is_silent = False
    inner = MemoryObjectStore(ManualClock())
    store = FaultyObjectStore(inner, Random(0), lambda _: Fault.FAILS if is_silent else Fault.NONE)
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t")
        given = await init_producer(bench)
        elsewhere = catalog_elsewhere(inner).take_producer_ids(10)
        is_silent = True
        with pytest.raises(StoreUnavailableError):
            await append(bench, of_producer(elsewhere[0], 0, b"a"))
        assert (await append(bench, of_producer(given, 0, b"a"))).base_offset == 0
        with pytest.raises(UnknownProducerIdError):
            await append(bench, of_producer(given + 1, 0, b"a"))
        is_silent = False
        assert (await append(bench, of_producer(elsewhere[0], 0, b"b"))).base_offset == 1


# --- the partition of keys ---------------------------------------------------------------------------------


async def test_records_go_to_the_partition_of_their_keys_as_kafkas_clients_choose_it(
    bench: ServiceBench,
) -> None:
    await bench.client.admin.create_topic("t", 5)
    keys = [b"%d" % number for number in range(20)] + [b"", b"21"]
    for key in keys:
        request = log_pb2.AppendRequest(topic="t", records=keyed(key, None, key))
        answer = await append(bench, request)
        assert answer.partition == partition_for_key(key, 5)
    outcomes = await stream(bench, [log_pb2.AppendRequest(topic="t", records=keyed(key)) for key in keys])
    for key, outcome in zip(keys, outcomes, strict=True):
        assert isinstance(outcome, log_pb2.AppendResponse)
        assert outcome.partition == partition_for_key(key, 5)
    parts = await bench.read_all("t")
    for partition, records in enumerate(parts):
        found = {record.key for record in records} - {None}
        assert found == {key for key in keys if partition_for_key(key, 5) == partition}


async def test_an_answer_names_the_partition_that_was_asked_for(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 3)
    request = log_pb2.AppendRequest(topic="t", partition=2, records=keyed(b"any"))
    assert (await append(bench, request)).partition == 2
    [outcome] = await stream(bench, [request])
    assert isinstance(outcome, log_pb2.AppendResponse)
    assert outcome.partition == 2


async def test_keys_of_several_partitions_are_refused(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 5)
    first, other = (
        0,
        next(n for n in range(9) if partition_for_key(b"%d" % n, 5) != partition_for_key(b"0", 5)),
    )
    many = [b"%d" % first] * 1500
    for keys in ([b"%d" % first, None, b"%d" % other], [*many, b"%d" % other]):
        with pytest.raises(InvalidRequestError) as caught:
            await append(bench, log_pb2.AppendRequest(topic="t", records=keyed(*keys)))
        assert caught.value.fields["record_index"] == len(keys) - 1
        assert caught.value.fields["topic"] == "t"
        assert caught.value.fields["other_partition"] == partition_for_key(b"%d" % first, 5)
    assert await bench.values("t") == [[]] * 5
    assert (await append(bench, log_pb2.AppendRequest(topic="t", records=keyed(*many)))).last_offset == 1499


async def test_records_without_keys_go_to_partitions_of_the_servers_choice(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 3)
    request = log_pb2.AppendRequest(topic="t", records=keyed(None))
    answers = [await append(bench, request) for _ in range(60)]
    assert {answer.partition for answer in answers} == {0, 1, 2}
    assert [len(part) for part in await bench.values("t")] == [
        sum(answer.partition == number for answer in answers) for number in range(3)
    ]


async def test_what_belongs_to_one_partition_names_it(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    producer_id = await init_producer(bench)
    requests = [
        log_pb2.AppendRequest(topic="t", batches=encode_batch([Record(0, 0, b"k", b"v")])),
        log_pb2.AppendRequest(topic="t", records=keyed(b"k"), expected_offset=0),
        log_pb2.AppendRequest(topic="t", records=keyed(b"k"), fencing_token=""),
        log_pb2.AppendRequest(
            topic="t", records=keyed(b"k"), producer=log_pb2.ProducerSequence(producer_id=producer_id)
        ),
    ]
    for request in requests:
        with pytest.raises(InvalidRequestError):
            await append(bench, request)
    with pytest.raises(UnknownTopicOrPartitionError):
        await append(bench, log_pb2.AppendRequest(topic="nope", records=keyed(b"k")))
    with pytest.raises(InvalidRequestError):
        await append(bench, log_pb2.AppendRequest(topic="t"))
    assert await bench.values("t") == [[]]


async def test_a_request_of_a_stream_without_a_partition_fails_alone(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 5)
    key = b"k"
    chosen = partition_for_key(key, 5)
    other = next(b"%d" % n for n in range(9) if partition_for_key(b"%d" % n, 5) != chosen)
    bad = log_pb2.AppendRequest(topic="t", partition=chosen, records=plain(b"bad"), expected_offset=9)
    outcomes = await stream(
        bench,
        [
            log_pb2.AppendRequest(topic="t", records=keyed(key)),
            # No partition can be chosen.
            log_pb2.AppendRequest(topic="t", records=keyed(key, other)),
            log_pb2.AppendRequest(topic="t", records=keyed(key)),
            bad,
            log_pb2.AppendRequest(topic="t", partition=chosen, records=plain(b"behind"), expected_offset=2),
            log_pb2.AppendRequest(topic="t", records=keyed(key)),
            # It fails in its partition, and the next one does not stand behind it.
            log_pb2.AppendRequest(topic="t", records=keyed(key, timestamp_ms=-1)),
            log_pb2.AppendRequest(topic="t", records=keyed(key)),
            log_pb2.AppendRequest(topic="t", records=keyed(other)),
        ],
    )
    assert [base_offset(outcomes[number]) for number in (0, 2, 5, 7, 8)] == [0, 1, 2, 3, 0]
    assert [type(outcomes[number]) for number in (1, 3, 4, 6)] == [
        InvalidRequestError,
        UnexpectedOffsetError,
        PrecedingAppendFailedError,
        InvalidRequestError,
    ]


# --- conditional appends -----------------------------------------------------------------------------------


def at(offset: int, *values: bytes) -> log_pb2.AppendRequest:
    return log_pb2.AppendRequest(topic="t", partition=0, records=plain(*values), expected_offset=offset)


async def test_an_append_is_applied_at_the_offset_that_it_names_or_not_at_all(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    assert (await append(bench, at(0, b"a", b"b"))).base_offset == 0
    for offset in (0, 1, 3, 2**62):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bench.client.log.Append(at(offset, b"lost"))
        assert caught.value.code() is grpc.StatusCode.ABORTED
        error = error_of_call(caught.value, "")
        assert type(error) is UnexpectedOffsetError
        named = {"topic": "t", "partition": 0}
        assert error.fields == {**named, "expected_offset": offset, "log_end_offset": 2}
    with pytest.raises(InvalidRequestError):
        await append(bench, at(-1, b"lost"))
    batch = log_pb2.AppendRequest(
        topic="t", partition=0, batches=encode_batch([Record(0, 0, None, b"c")]), expected_offset=2
    )
    assert (await append(bench, batch)).base_offset == 2
    with pytest.raises(UnexpectedOffsetError):
        await append(bench, batch)
    assert await bench.values("t") == [[b"a", b"b", b"c"]]


async def test_the_retry_of_a_conditional_append_succeeds(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    sent = of_producer(await init_producer(bench), 0, b"a")
    sent.expected_offset = 0
    assert not (await append(bench, sent)).duplicate
    await append(bench, at(1, b"b"))
    answer = await append(bench, sent)
    assert (answer.base_offset, answer.duplicate) == (0, True)


async def test_a_stream_of_conditional_appends_stops_at_the_first_that_is_refused(
    bench: ServiceBench,
) -> None:
    await bench.client.admin.create_topic("t")
    outcomes = await stream(bench, [at(0, b"a"), at(1, b"b"), at(1, b"lost"), at(2, b"lost, too")])
    assert [base_offset(outcome) for outcome in outcomes[:2]] == [0, 1]
    assert [type(outcome) for outcome in outcomes[2:]] == [UnexpectedOffsetError, PrecedingAppendFailedError]
    assert await bench.values("t") == [[b"a", b"b"]]


@pytest.mark.parametrize("partition", [None, 0])
async def test_a_record_of_text_has_the_present_time(bench: ServiceBench, partition: int | None) -> None:
    await bench.client.topics.create("t", config={"retention.ms": 1_000_000, "cleanup.policy": "delete"})
    before_ms = SystemClock().now_ms()
    records = [
        AppendRecord("7", "paid", (("src", "web"), ("n", None))),
        AppendRecord(None, b"old", timestamp_ms=5),
        AppendRecord("8", None),
    ]
    await bench.client.append("t", partition, records, durability="disk")
    [[first, old, tombstone]] = await bench.read_all("t")
    assert before_ms <= first.timestamp_ms == tombstone.timestamp_ms <= SystemClock().now_ms()
    assert first[2:] == (b"7", b"paid", (("src", b"web"), ("n", None)))
    assert old[1:] == (5, None, b"old", ())
    assert tombstone.is_tombstone
