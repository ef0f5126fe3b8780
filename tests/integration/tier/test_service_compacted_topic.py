"""A compacted topic on local disk, end to end: a consumer that reads it from the start, at any moment, ends
with the last value of each key, while producers write, the cleaner works, and the server dies or is stopped.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from pathlib import Path
from random import Random

from click.testing import CliRunner, Result

from stratalog.base.types import TopicPartition
from stratalog.cli.main import stratalog
from stratalog.client.client import Client
from stratalog.client.retry import RetryPolicy
from stratalog.record.codecs.compression import Codec
from stratalog.record.native.record_accumulator import Delivery
from stratalog.record.record import Record
from tests.support.decoded_records import plain_record
from tests.support.service.server_process import ServerProcess

PARTITION_COUNT = 2
KEY_COUNT = 7
PATIENT = RetryPolicy(deadline_s=30.0)
TOPIC = {
    "cleanup.policy": "compact",
    "remote.storage.enable": "false",
    "segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0",
}
BUSY = ("--config", "log.cleaner.backoff.ms=1", "--config", "log.cleaner.threads=2")


class Writer:
    """Writes values that count up under keys of its own. Belongs to the event loop."""

    def __init__(self, number: int) -> None:
        self.chance = Random(number)
        self.partition = number % PARTITION_COUNT
        self.acknowledged: dict[int, Record] = {}
        """By offset."""
        self._number = number
        self._count = 0

    async def write(self, address: str, batch_count: int, is_enough: asyncio.Event) -> None:
        """Write so many batches, and more until it is enough. Each is waited for, so that a reader's records
        may be compared with those that were acknowledged before."""
        compression = self.chance.choice(list(Codec)).name.lower()
        async with Client(address, retry=PATIENT) as client:
            producer = client.producer(linger_ms=0, compression=compression)
            while batch_count > 0 or not is_enough.is_set():
                batch_count -= 1
                sent: list[tuple[Delivery, bytes, bytes | None]] = []
                for _ in range(self.chance.randrange(1, 6)):
                    self._count += 1
                    key = b"%d-%d" % (self._number, self.chance.randrange(KEY_COUNT))
                    value = b"%06d" % self._count + bytes(200) if self.chance.random() < 0.8 else None
                    sent.append((producer.send("t", key, value, partition=self.partition), key, value))
                await producer.flush()
                for delivery, key, value in sent:
                    offset = (await delivery).offset
                    self.acknowledged[offset] = Record(offset, 0, key, value)


async def read_from_start(address: str) -> tuple[list[list[Record]], list[int]]:
    """The records that a new consumer gets of each partition, and the offsets at which it stopped."""
    async with Client(address, retry=PATIENT) as client:
        ends = await client.latest("t")
        found: list[list[Record]] = [[] for _ in ends]
        until = {one.partition: offset for one, offset in ends.items()}
        async for records in client.consume("t", until=until).batches():
            found[records[0].partition] += map(plain_record, records)
        return found, [ends[TopicPartition("t", number)] for number in range(len(ends))]


def require_last_values(
    found: list[list[Record]],
    ends: list[int],
    acknowledged: dict[tuple[int, int], Record],
    rewritten: Collection[bytes | None] = (),
) -> None:
    """Each key has its last acknowledged record below the end, tombstones included, or a later one; in the
    order of offsets, and unchanged. `rewritten` keys got a record at or above the end while the topic was
    read, so the cleaner may have removed the one below."""
    for partition, records in enumerate(found):
        offsets = [one.offset for one in records]
        assert offsets == sorted(set(offsets))
        last = {one.key: one for one in records}
        for one in records:
            known = acknowledged.get((partition, one.offset))
            assert known is None or (known.key, known.value) == (one.key, one.value)
        for (written_to, offset), one in acknowledged.items():
            if written_to == partition and offset < ends[partition] and one.key not in rewritten:
                assert one.key in last, "a key is gone"
                assert last[one.key].offset >= offset, "the last value of a key is gone"


def all_acknowledged(writers: list[Writer]) -> dict[tuple[int, int], Record]:
    return {
        (writer.partition, offset): one for writer in writers for offset, one in writer.acknowledged.items()
    }


async def rewritten_since(address: str, writers: list[Writer], ends: list[int]) -> set[bytes | None]:
    """The keys of all records between `ends` and the end of now, once all of them are acknowledged."""
    async with Client(address, retry=PATIENT) as client:
        latest = await client.latest("t")
    added = [
        (number, offset)
        for number, end in enumerate(ends)
        for offset in range(end, latest[TopicPartition("t", number)])
    ]
    while not (known := all_acknowledged(writers)).keys() >= set(added):
        await asyncio.sleep(0)
    return {known[place].key for place in added}


async def write_and_read(server: ServerProcess, writers: list[Writer], batch_count: int) -> None:
    """Consumers read from the start again and again while all writers write, twice at least."""
    is_enough = asyncio.Event()
    writing = asyncio.gather(*(writer.write(server.address, batch_count, is_enough) for writer in writers))
    reader_count = 0
    while not writing.done():
        before = all_acknowledged(writers)
        found, ends = await read_from_start(server.address)
        rewritten = await rewritten_since(server.address, writers, ends)
        require_last_values(found, ends, before, rewritten)
        require_last_values(found, ends, all_acknowledged(writers), rewritten)
        reader_count += 1
        if reader_count == 2:
            is_enough.set()
    await writing


def status(address: str) -> Result:
    return CliRunner().invoke(stratalog, ["cleaner", "status", "--json", "--server", address])


async def until_dropped(address: str, written_count: int, least_count: int = 100) -> None:
    """Wait until the cleaner has dropped more records than that, and says so: the count of its status is the
    number of records that are missing."""
    async with asyncio.timeout(60):
        while True:
            document = json.loads((await asyncio.to_thread(status, address)).output)
            found, _ = await read_from_start(address)
            missing = written_count - sum(map(len, found))
            if document["dropped_record_count"] == missing > least_count:
                assert (document.get("dead_worker_count", 0), document.get("uncleanable_partitions", [])) == (
                    0,
                    [],
                )
                assert document["worker_count"] == 2
                assert document["cleaned_bytes"] > document["reclaimed_bytes"] > 0
                return


async def test_consumers_from_the_start_end_with_the_last_value_of_each_key(tmp_path: Path) -> None:
    with ServerProcess(f"{tmp_path}/data", options=BUSY) as server:
        async with Client(server.address, retry=PATIENT) as client:
            await client.admin.create_topic("t", PARTITION_COUNT, TOPIC)
        writers = [Writer(number) for number in range(4)]
        await write_and_read(server, writers, 30)
        await until_dropped(server.address, len(all_acknowledged(writers)))
        for end in (server.kill, server.stop):
            end()
            server.start()
            require_last_values(*await read_from_start(server.address), all_acknowledged(writers))
            await write_and_read(server, writers, 10)
        found, ends = await read_from_start(server.address)
        require_last_values(found, ends, all_acknowledged(writers))
        assert ends == [
            1 + max(offset for partition, offset in all_acknowledged(writers) if partition == number)
            for number in range(PARTITION_COUNT)
        ]
        assert server.stop() == 0


async def test_a_topic_that_is_altered_again_and_again_keeps_its_last_values(tmp_path: Path) -> None:
    """Policies, sizes, codecs and lags come and go under the hands of producers, readers and the cleaner."""
    chance = Random(7)
    with ServerProcess(f"{tmp_path}/data", options=BUSY) as server:
        async with Client(server.address, retry=PATIENT) as client:
            await client.admin.create_topic("t", PARTITION_COUNT, {**TOPIC, "retention.ms": "-1"})
            writers = [Writer(number) for number in range(4)]
            for _ in range(5):
                changes: dict[str, str | None] = {
                    "cleanup.policy": chance.choice(["compact", "compact", "delete", "compact,delete"]),
                    "segment.bytes": chance.choice(["2048", "4096", "20000"]),
                    "compression.type": chance.choice(["producer", "gzip", "zstd", "uncompressed"]),
                    "min.compaction.lag.ms": chance.choice(["0", "0", "50"]),
                    "max.compaction.lag.ms": chance.choice([None, "100"]),
                    "message.timestamp.type": chance.choice(["CreateTime", "LogAppendTime"]),
                }
                altering = client.admin.alter_configs(changes, "t")
                await asyncio.gather(altering, write_and_read(server, writers, 10))
            await client.admin.alter_configs({**TOPIC, "min.compaction.lag.ms": None}, "t")
        await until_dropped(server.address, len(all_acknowledged(writers)))
        server.kill()
        server.start()
        require_last_values(*await read_from_start(server.address), all_acknowledged(writers))
