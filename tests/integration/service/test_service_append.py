"""Append and AppendStream over a loopback connection: what is stored, what is refused, in which order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest
from crc32c import crc32c

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    CorruptRecordError,
    InvalidRequestError,
    LogStoreError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
    UnsupportedOperationError,
)
from stratalog.base.filesystem import AppendFile
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.types import Durability
from stratalog.client.errors import error_of_call, error_of_info
from stratalog.client.partition_sender import ANSWER_ERRORS_METADATA
from stratalog.record.builder import encode_batch
from stratalog.record.header import ATTRIBUTES_POSITION, HEADER_SIZE, parse_header
from stratalog.record.record import Record
from stratalog.server.append.partition_writer import PartitionWriter
from stratalog.server.append.pending_append import PendingAppend
from stratalog.v1 import log_pb2
from tests.support.logs.hooked_sync_file import HookedSyncFile
from tests.support.service.service_bench import HOUR_MS, ServiceBench, service_bench

NOW_MS = 1_357_034_400_000


def batch(*values: bytes) -> bytes:
    return encode_batch([Record(0, NOW_MS, b"key", value) for value in values])


def with_producer_id(data: bytes, sequence: int = 0, epoch: int = 0) -> bytes:
    """The batch as an idempotent producer would send it, its checksum right."""
    header = parse_header(data)._replace(producer_id=7, producer_epoch=epoch, base_sequence=sequence)
    return _resealed(header.pack() + data[HEADER_SIZE:])


def transactional(data: bytes) -> bytes:
    header = parse_header(data)
    return _resealed(header._replace(attributes=header.attributes | 0x10).pack() + data[HEADER_SIZE:])


def _resealed(data: bytes) -> bytes:
    header = parse_header(data)
    return (
        header._replace(crc=crc32c(header.pack()[ATTRIBUTES_POSITION:] + data[HEADER_SIZE:])).pack()
        + data[HEADER_SIZE:]
    )


async def test_batches_get_offsets_in_order_and_come_back_as_sent(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    first = await bench.client.append_batches("t", 0, batch(b"a", b"b"))
    second = await bench.client.append_batches("t", 0, batch(b"c") + batch(b"d", b"e"))
    assert (first.base_offset, first.last_offset) == (0, 1)
    assert (second.base_offset, second.last_offset, second.log_start_offset) == (2, 4, 0)
    [records] = await bench.read_all("t")
    assert [(record.offset, record.value) for record in records] == list(
        enumerate([b"a", b"b", b"c", b"d", b"e"])
    )


async def test_plain_records_are_encoded_by_the_server(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    plain = log_pb2.Records()
    full = plain.records.add(key=b"k", value=b"v", timestamp_ms=NOW_MS)
    full.headers.add(key="h", value=b"x")
    full.headers.add(key="null")
    plain.records.add(key=b"gone", timestamp_ms=NOW_MS + 1)
    plain.records.add(value=b"", timestamp_ms=NOW_MS + 2)
    plain.records.add(value=b"timed by the server")
    answer = await bench.client.log.Append(log_pb2.AppendRequest(topic="t", records=plain))
    assert (answer.base_offset, answer.last_offset, answer.durability) == (0, 3, log_pb2.DURABILITY_OS)
    [records] = await bench.read_all("t")
    assert records[0] == Record(0, NOW_MS, b"k", b"v", (("h", b"x"), ("null", None)))
    assert records[1] == Record(1, NOW_MS + 1, b"gone", None)
    assert records[2] == Record(2, NOW_MS + 2, None, b"")
    assert records[3].timestamp_ms > NOW_MS


@pytest.mark.parametrize(
    ("acks", "minimum", "expected"),
    [
        (None, "os", Durability.OS),
        (None, "disk", Durability.DISK),
        (Durability.OS, "disk", Durability.DISK),
        (Durability.DISK, "os", Durability.DISK),
    ],
)
async def test_the_stronger_of_request_and_topic_holds(
    bench: ServiceBench, acks: Durability | None, minimum: str, expected: Durability
) -> None:
    await bench.client.admin.create_topic("t", config={"min.durability": minimum})
    answer = await bench.client.append_batches("t", 0, batch(b"a"), acks=acks)
    assert answer.durability == int(expected)
    [partition] = await bench.client.admin.describe_log("t")
    assert partition.recovery_point == (1 if expected is Durability.DISK else 0)
    assert partition.high_watermark == 1


async def test_object_durability_is_refused_with_advice(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    with pytest.raises(UnsupportedOperationError):
        await bench.client.append_batches("t", 0, batch(b"a"), acks=Durability.OBJECT)


REFUSED: list[tuple[str, Callable[[], bytes], type[LogStoreError], str]] = [
    ("nothing", lambda: b"", InvalidRequestError, "record batch"),
    ("garbage", lambda: bytes(100), CorruptRecordError, "."),
    ("half a batch", lambda: batch(b"abc")[:-1], CorruptRecordError, "."),
    ("a flipped bit", lambda: batch(b"abc")[:-1] + b"\x7f", CorruptRecordError, "checksum"),
    ("too large", lambda: batch(bytes(3000)), RecordTooLargeError, "max.message.bytes"),
    ("no sequence", lambda: with_producer_id(batch(b"a"), -1), InvalidRequestError, "sequence number"),
    (
        "transactional",
        lambda: transactional(with_producer_id(batch(b"a"))),
        UnsupportedOperationError,
        "not supported yet",
    ),
    ("old magic", lambda: batch(b"a")[:16] + b"\x01" + batch(b"a")[17:], UnsupportedOperationError, "0.11"),
]


@pytest.mark.parametrize(("name", "make", "expected", "part"), REFUSED, ids=[case[0] for case in REFUSED])
async def test_what_is_no_good_is_refused_and_nothing_of_it_is_stored(
    bench: ServiceBench, name: str, make: Callable[[], bytes], expected: type[LogStoreError], part: str
) -> None:
    await bench.client.admin.create_topic("t", config={"max.message.bytes": "2000"})
    with pytest.raises(expected, match=part) as caught:
        await bench.client.append_batches("t", 0, make())
    assert type(caught.value) is expected or expected is CorruptRecordError, name
    await bench.client.append_batches("t", 0, batch(b"after"))
    [records] = await bench.read_all("t")
    assert [record.value for record in records] == [b"after"]


async def test_a_producers_batch_that_comes_again_gets_its_offsets_again(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    await bench.client.append_batches("t", 0, batch(b"before"))
    sent = [with_producer_id(batch(b"a", b"b")), with_producer_id(batch(b"c"), 2)]
    for is_again in (False, True):
        answers = [await bench.client.append_batches("t", 0, data, acks=Durability.DISK) for data in sent]
        assert [(answer.base_offset, answer.last_offset) for answer in answers] == [(1, 2), (3, 3)]
        assert [answer.duplicate for answer in answers] == [is_again] * 2
    [records] = await bench.read_all("t")
    assert [record.value for record in records] == [b"before", b"a", b"b", b"c"]


async def test_a_session_that_breaks_can_be_sent_again_as_a_whole(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    sent = [with_producer_id(batch(b"%d" % number), number) for number in range(5)]

    async def send(count: int) -> list[tuple[int, bool]]:
        requests = [log_pb2.AppendRequest(topic="t", batches=data) for data in sent[:count]]
        call = bench.client.log.AppendStream(iter(requests))
        return [(answer.base_offset, answer.duplicate) async for answer in call]

    assert await send(3) == [(number, False) for number in range(3)]
    assert await send(5) == [(number, number < 3) for number in range(5)]
    [records] = await bench.read_all("t")
    assert [record.value for record in records] == [b"%d" % number for number in range(5)]


async def test_a_producer_out_of_order_or_replaced_is_told_what_is_expected(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    await bench.client.append_batches("t", 0, with_producer_id(batch(b"a", b"b"), 0, epoch=3))
    with pytest.raises(OutOfOrderSequenceError) as out_of_order:
        await bench.client.append_batches("t", 0, with_producer_id(batch(b"e"), 4, epoch=3))
    fields = {"producer_id": 7, "epoch": 3, "sequence": 4, "expected_sequence": 2}
    assert out_of_order.value.fields == fields
    with pytest.raises(ProducerFencedError) as fenced:
        await bench.client.append_batches("t", 0, with_producer_id(batch(b"f"), 2, epoch=2))
    assert fenced.value.fields == {"producer_id": 7, "epoch": 2, "current_epoch": 3}
    answer = await bench.client.append_batches("t", 0, with_producer_id(batch(b"c"), 2, epoch=3))
    assert (answer.base_offset, answer.duplicate) == (2, False)
    [records] = await bench.read_all("t")
    assert [record.value for record in records] == [b"a", b"b", b"c"]


async def test_a_producer_is_known_for_as_long_as_the_server_is_told_to(tmp_path: Path) -> None:
    idle_ms = 2 * HOUR_MS
    sent = with_producer_id(
        encode_batch([Record(0, SystemClock().now_ms() - idle_ms, None, b"once")]), sequence=0
    )

    def expiring_after(duration_ms: int) -> dict[str, str]:
        return {"producer.id.expiration.ms": str(duration_ms)}

    async def is_duplicate(bench: ServiceBench) -> bool:
        return (await bench.client.append_batches("t", 0, sent)).duplicate

    async with service_bench(tmp_path, config=expiring_after(idle_ms + HOUR_MS)) as bench:
        await bench.client.admin.create_topic("t")
        assert not await is_duplicate(bench)
        bench.server.engine.registry.partition("t", 0).log.remove_expired_producers()
        assert await is_duplicate(bench)
    async with service_bench(tmp_path, config=expiring_after(idle_ms + HOUR_MS)) as bench:
        assert await is_duplicate(bench)
    short = expiring_after(idle_ms - HOUR_MS) | {"producer.id.expiration.check.interval.ms": "1"}
    async with service_bench(tmp_path, config=short) as bench:
        log = bench.server.engine.registry.partition("t", 0).log
        assert log.producers() == (), "a start forgets"
        assert not await is_duplicate(bench)
        async with asyncio.timeout(60):
            while log.producers():
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("topic", ["nope", ""])
async def test_an_unknown_topic_is_named(bench: ServiceBench, topic: str) -> None:
    with pytest.raises(UnknownTopicOrPartitionError) as caught:
        await bench.client.append_batches(topic, 0, batch(b"a"))
    assert caught.value.fields == {"topic": topic}


@pytest.mark.parametrize("partition", [2, -1])
async def test_a_partition_that_a_topic_has_not_is_named_with_how_many_it_has(
    bench: ServiceBench, partition: int
) -> None:
    await bench.client.admin.create_topic("t", 2)
    with pytest.raises(UnknownTopicOrPartitionError) as caught:
        await bench.client.append_batches("t", partition, batch(b"a"))
    assert caught.value.fields == {"topic": "t", "partition": partition, "partition_count": 2}


async def test_an_append_without_payload_is_refused(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    for request in (
        log_pb2.AppendRequest(topic="t"),
        log_pb2.AppendRequest(topic="t", records=log_pb2.Records()),
        log_pb2.AppendRequest(topic="t", acks=9, batches=batch(b"a")),  # type: ignore[arg-type]  # on purpose
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bench.client.log.Append(request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_over_the_servers_limit_is_explained(tmp_path: Path) -> None:
    async with service_bench(tmp_path, max_request_bytes=2_000_000) as bench:
        await bench.client.admin.create_topic("t")
        for size_bytes in (2_100_000, 5_000_000):
            with pytest.raises(RecordTooLargeError):
                await bench.client.append_batches("t", 0, bytes(size_bytes))
        await bench.client.append_batches("t", 0, batch(b"still there"))


async def test_a_request_that_is_no_message_fails_and_harms_nobody(bench: ServiceBench) -> None:
    async with grpc.aio.insecure_channel(bench.client.address) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/stratalog.v1.LogService/Append"
        )
        for garbage in (b"\xff\xff\xff", b"\x22\x7f", b"\x0a\x02\xff\xff"):
            with pytest.raises(grpc.aio.AioRpcError):
                await call(garbage)
    assert await bench.client.admin.list_topics() == []


# --- sessions ----------------------------------------------------------------------------------------------


async def stream(
    bench: ServiceBench, requests: list[log_pb2.AppendRequest]
) -> tuple[list[log_pb2.AppendResponse], LogStoreError | None]:
    """All answers of one session, and how it ended. Asks for failures as answers, as clients should."""

    async def send() -> AsyncIterator[log_pb2.AppendRequest]:
        for request in requests:
            yield request

    answers: list[log_pb2.AppendResponse] = []
    async for answer in bench.client.log.AppendStream(send(), metadata=ANSWER_ERRORS_METADATA):
        if answer.HasField("error"):
            assert (answer.base_offset, answer.last_offset) == (-1, -1)
            return answers, error_of_info(answer.error)
        answers.append(answer)
    return answers, None


def append_request(
    data: bytes, partition: int = 0, acks: Durability = Durability.OS
) -> log_pb2.AppendRequest:
    levels = {Durability.OS: log_pb2.DURABILITY_OS, Durability.DISK: log_pb2.DURABILITY_DISK}
    return log_pb2.AppendRequest(topic="t", partition=partition, acks=levels[acks], batches=data)


async def test_a_session_answers_in_order(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    requests = [append_request(batch(str(number).encode())) for number in range(500)]
    answers, error = await stream(bench, requests)
    assert error is None
    assert [answer.base_offset for answer in answers] == list(range(500))
    [records] = await bench.read_all("t")
    assert [record.value for record in records] == [str(number).encode() for number in range(500)]


@pytest.mark.parametrize("bad", [append_request(b"\x00" * 80), append_request(batch(b"x"), partition=5)])
async def test_a_session_ends_at_its_first_failure(bench: ServiceBench, bad: log_pb2.AppendRequest) -> None:
    await bench.client.admin.create_topic("t")
    good = [append_request(batch(str(number).encode())) for number in range(60)]
    answers, error = await stream(bench, [*good[:30], bad, *good[30:]])
    assert isinstance(error, CorruptRecordError | UnknownTopicOrPartitionError)
    assert [answer.base_offset for answer in answers] == list(range(30))
    [records] = await bench.read_all("t")
    assert [record.value for record in records] == [str(number).encode() for number in range(30)]


async def test_a_failure_in_one_partition_stops_the_session_in_the_others(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 3)
    requests = [append_request(batch(b"x"), partition=number % 3) for number in range(30)]
    requests[20] = append_request(b"\x00" * 80, partition=20 % 3)
    answers, error = await stream(bench, requests)
    assert isinstance(error, CorruptRecordError)
    assert len(answers) == 20
    assert sum(map(len, await bench.read_all("t"))) == 20


async def test_a_session_that_failed_ends_with_the_status_of_the_failure(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    call = bench.client.log.AppendStream()
    await call.write(append_request(batch(b"good")))
    await call.write(append_request(b"\x00" * 80))
    first = await call.read()
    assert isinstance(first, log_pb2.AppendResponse)
    # Without asking for it, no answer but the status tells of the failure.
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert isinstance(error_of_call(caught.value, ""), CorruptRecordError)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_empty_session_is_fine(bench: ServiceBench) -> None:
    assert await stream(bench, []) == ([], None)


async def test_a_session_that_is_cancelled_leaves_whole_requests(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    call = bench.client.log.AppendStream()
    for _ in range(20):
        await call.write(append_request(batch(b"a", b"b")))
    await call.read()
    call.cancel()
    await bench.client.append_batches("t", 0, batch(b"end"))
    [records] = await bench.read_all("t")
    assert len(records) % 2 == 1
    assert records[-1].value == b"end"


# --- group commit ------------------------------------------------------------------------------------------


class SyncCountingFileSystem(PosixFileSystem):
    """Counts the fsyncs of log files, each of which waits for `may_sync`."""

    def __init__(self) -> None:
        super().__init__()
        self.log_syncs = 0
        self.may_sync = threading.Event()
        self.may_sync.set()

    def open_append(self, path: str) -> AppendFile:
        file = super().open_append(path)
        return HookedSyncFile(file, self._count) if path.endswith(".log") else file

    def _count(self) -> None:
        assert self.may_sync.wait(60)
        self.log_syncs += 1


def sync_once_all_wait(
    monkeypatch: pytest.MonkeyPatch, filesystem: SyncCountingFileSystem, append_count: int
) -> None:
    """Let no fsync begin before so many appends have come to their partition's writer."""
    submit = PartitionWriter.submit
    filesystem.may_sync.clear()
    submitted_count = 0

    def counting(writer: PartitionWriter, append: PendingAppend) -> None:
        nonlocal submitted_count
        submit(writer, append)
        submitted_count += 1
        if submitted_count == append_count:
            filesystem.may_sync.set()

    monkeypatch.setattr(PartitionWriter, "submit", counting)


async def test_appends_that_wait_together_share_an_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filesystem = SyncCountingFileSystem()
    async with service_bench(tmp_path, filesystem=filesystem) as bench:
        await bench.client.admin.create_topic("t")
        await bench.client.append_batches("t", 0, batch(b"warm"), acks=Durability.DISK)
        before = filesystem.log_syncs
        append_count = 200
        sync_once_all_wait(monkeypatch, filesystem, append_count)
        await asyncio.gather(
            *(
                bench.client.append_batches("t", 0, batch(b"x"), acks=Durability.DISK)
                for _ in range(append_count)
            )
        )
        # One for those that were there first, one for all that came during it.
        assert 1 <= filesystem.log_syncs - before <= 2
        [partition] = await bench.client.admin.describe_log("t")
        assert partition.recovery_point == append_count + 1


async def test_a_pipelined_session_shares_fsyncs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem = SyncCountingFileSystem()
    async with service_bench(tmp_path, filesystem=filesystem) as bench:
        await bench.client.admin.create_topic("t")
        requests = [append_request(batch(b"x"), acks=Durability.DISK) for _ in range(200)]
        sync_once_all_wait(monkeypatch, filesystem, len(requests))
        answers, error = await stream(bench, requests)
        assert error is None
        assert len(answers) == 200
        assert 1 <= filesystem.log_syncs <= 2


async def test_appends_at_os_fsync_nothing(tmp_path: Path) -> None:
    filesystem = SyncCountingFileSystem()
    async with service_bench(tmp_path, filesystem=filesystem) as bench:
        await bench.client.admin.create_topic("t")
        for _ in range(10):
            await bench.client.append_batches("t", 0, batch(b"x"), acks=Durability.OS)
        assert filesystem.log_syncs == 0
