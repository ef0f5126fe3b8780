"""Topics that this server and other processes change, as texts: commands, and their answers behind `->`.

    create t 2 k=v              create a topic with so many partitions (1) and this configuration
    delete t
    append t a,b 1 -> OFFSET    append a batch of values to partition 1 (0)
    cut t 3 -> OFFSET           delete the records of partition 0 below that offset
    upload, upload t, untier    upload all, one topic, or all and delete it locally
    other create|alter|delete   another process does it in the catalog; `alter t 3` adds partitions
    look, retain, local-retain  look at the heads, retention of both tiers, of the local one
    stop, start, restart        the server
    block t-2, unblock t-2      a file lies where a directory has to be
    away, back                  the store fails, and works again

    names -> t u                topics
    t -> a b | c                values by partition
    log-start t -> 0, local-start t -> 0
    logs -> t-0                 directories of logs
    objects -> 1                live objects in the store
    offline t -> KEY            the key for which all of its partitions are offline
    said TEXT -> N              how many warnings have that text

A command that fails answers with the class of its error. One without an arrow must not fail.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import LogStoreError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault
from tests.support.service.service_bench import ServiceBench, catalog_elsewhere, service_bench

UNTIERED = "remote.storage.enable=false"
SCENARIOS = """
a name can be used again and shares nothing with the old topic
    create t / append t old / upload / objects -> 1 / delete t / objects -> 0 / create t / t ->
    append t new -> 0 / t -> new / restart / t -> new
a topic that is deleted elsewhere is withdrawn with the next look
    create t 2 / create kept / append t tiered / upload / append t local -> 1 / other delete t / look
    names -> kept / logs -> kept-0 / objects -> 0
    append t x -> UnknownTopicOrPartitionError / append t x 1 -> UnknownTopicOrPartitionError
    t -> UnknownTopicOrPartitionError / create t / append t new -> 0 / upload / restart / t -> new
topics that come up elsewhere are served with the next look
    create t / append t old / other create u 2 / other delete t / other create t
    create u -> TopicAlreadyExistsError / look / look / names -> t u / append t t -> 0 / append u u 1 -> 0
    upload / t -> t / u -> | u / restart / t -> t / u -> | u
a name that became free elsewhere can be taken at once
    create t / append t old / other delete t / create t / t ->
a deletion of unknown outcome can be repeated
    create t / other delete t / delete t / names ->
a topic that was deleted while the server was down is gone at its start
    create stays / create goes / append stays x / append goes x / upload / stop / other delete goes
    logs -> goes-0 stays-0 / start / names -> stays / logs -> stays-0 / stays -> x
one topic that cannot be opened does not keep the others closed
    other create a 1 written.by.newer=software / other create b 2 / block b-1 / look / names -> a
    unblock b-1 / look / names -> a b / append b x 1 -> 0
a topic whose logs cannot be made is not created
    block t-2 / create t 3 -> DataDirectoryError / names -> / unblock t-2 / create t 3 / append t x 2 -> 0
partitions that were added are served, if the last one fails at first, too
    create t / append t first / block t-2 / other alter t 3 / look
    append t x 1 -> UnknownTopicOrPartitionError
    unblock t-2 / look / append t added 1 -> 0 / append t added 2 -> 0 / upload
    t -> first | added | added / restart / t -> first | added | added
an upload takes the topics that it names, and nothing that is not tiered
    create t / create u / create local UNTIERED / append t a / append u b / append local c
    upload t / objects -> 1 / untier / objects -> 2 / local-start u -> 1 / local-start local -> 0
    t -> a / u -> b / local -> c
deleting records moves the start in every tier
    create t / append t a,b / untier / append t c,d / upload / append t e,f / append t g,h
    cut t 1 -> 1 / cut t 0 -> 1 / t -> b c d e f g h / cut t 5 -> 5 / t -> f g h / cut t latest -> 8 / t ->
    cut t 9 -> OffsetOutOfRangeError / cut t -2 -> 8 / append t next -> 8 / restart
    t -> next
records of a topic that is not tiered are deleted too
    create t UNTIERED / append t a,b,c / cut t 2 -> 2 / t -> c / restart / cut t 1 -> 2 / t -> c
retention goes by the newest configuration, without a look before it
    create t retention.ms=1000 / create u retention.ms=-1 / append t of-1970 / append u of-1970 / upload
    other alter t retention.ms=-1 / other alter u retention.ms=1000 / retain / log-start t -> 0
    log-start u -> 1
retention of local logs goes by the newest configuration, too
    create t UNTIERED retention.ms=1000 / create u UNTIERED retention.ms=-1 / append t of-1970
    append u of-1970
    other alter t UNTIERED retention.ms=-1 / other alter u UNTIERED retention.ms=1000
    retain / log-start t -> 0 / log-start u -> 1
a refused configuration deletes nothing and is logged once
    create t retention.ms=1000 / create u retention.ms=1000 / append t of-1970 / append u of-1970 / upload
    other alter t a.key.of.the.future=1 / retain / retain / said a.key.of.the.future -> 1
    log-start t -> 0 / log-start u -> 1 / append t goes-on -> 1
    other alter t retention.ms=1000 / retain / log-start t -> 1
a refused configuration deletes nothing of a local log
    create t UNTIERED retention.ms=1000 / create u UNTIERED retention.ms=1000 / append t of-1970
    append u of-1970
    other alter t UNTIERED a.key.of.the.future=1 / retain / retain / log-start t -> 0 / log-start u -> 1
without the catalog retention goes on by the configuration that was read last
    create t UNTIERED retention.ms=-1 / create u retention.ms=1000 local.retention.ms=0
    append t of-1970 / append u of-1970 / upload
    other alter t UNTIERED retention.ms=1000 / away / local-retain / log-start t -> 0
    local-start u -> 1 / back / look / append t of-1970 / away / local-retain
    log-start t -> 2
tiering can be switched on, and is not switched off over slices
    create t UNTIERED retention.ms=-1 / append t a / other alter t retention.ms=-1 / look / untier
    local-start t -> 1
    other alter t UNTIERED retention.ms=-1 / look / retain / t -> a / look / retain / t -> a
    restart / t -> a / append t b / untier / t -> a b
retention goes on where tiering was not switched off
    create t retention.ms=-1 / append t a / untier / other alter t UNTIERED retention.ms=1000 / look / retain
    log-start t -> 1
a topic whose configuration this version refuses is offline from the start, alone
    create t 2 / create u / append t tiered / append u tiered / upload / append t local
    other alter t a.key.of.the.future=1 / restart / offline t -> a.key.of.the.future / append u goes-on -> 1
    append t x -> UnsupportedOperationError / t -> UnsupportedOperationError
    upload t -> UnsupportedOperationError
    retain / look / upload / other alter t retention.ms=for-ever / restart / offline t -> retention.ms
    other alter t min.durability=bucket / restart / offline t -> min.durability
    other alter t / look / t -> tiered local | / offline t ->
a topic that is created elsewhere with such a configuration is offline, too, and can be deleted
    other create t 2 first=1 / look / offline t -> first / other alter t second=1 / look / offline t -> second
    create u / append u x -> 0 / delete t / create t 2 / append t anew -> 0 / offline t ->
"""


def scenarios() -> dict[str, list[str]]:
    blocks = re.findall(r"^(\S.*)\n((?:    .*\n)+)", SCENARIOS, re.MULTILINE)
    return {name: [one.strip() for one in re.split(r" / |\n", text) if one.strip()] for name, text in blocks}


class Site:
    """A store, a data directory, and the server that runs on them. Belongs to the event loop."""

    def __init__(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        self._is_away = False
        self._folder = folder
        self._caplog = caplog
        memory = MemoryObjectStore(SystemClock())
        self._store = FaultyObjectStore(
            memory, Random(0), lambda _: Fault.FAILS if self._is_away else Fault.NONE
        )
        self._servers = AsyncExitStack()
        self.bench: ServiceBench

    async def start(self) -> None:
        bench = service_bench(self._folder, store=self._store)
        self.bench = await self._servers.enter_async_context(bench)

    async def stop(self) -> None:
        await self._servers.aclose()

    async def run(self, command: str) -> str:
        """The answer to a command, as a scenario writes it."""
        verb, *words = command.replace("UNTIERED", UNTIERED).split()
        try:
            return await self._act(verb, words)
        except LogStoreError as error:
            return type(error).__name__

    async def _act(self, verb: str, words: list[str]) -> str:
        admin = self.bench.client.admin
        match verb, words:
            case "create", [topic, *rest]:
                await admin.create_topic(topic, count_of(rest) or 1, config_of(rest))
            case "delete", [topic]:
                await admin.delete_topic(topic)
            case "append", [topic, values, *partition]:
                data = [value.encode() for value in values.split(",")]
                return str(await self.bench.append(topic, data, count_of(partition) or 0))
            case "cut", [topic, offset]:
                before = offset if offset.isalpha() else int(offset)
                return str(await admin.delete_records(topic, 0, before))
            case "upload" | "untier", topics:
                await admin.upload(topics, delete_local=verb == "untier")
            case "other", [what, topic, *rest]:
                await asyncio.to_thread(self._change_elsewhere, what, topic, rest)
            case "block", [name]:
                (self._folder / "data" / name).write_bytes(b"")
            case "unblock", [name]:
                (self._folder / "data" / name).unlink()
            case "away" | "back", _:
                self._is_away = verb == "away"
            case "look" | "retain" | "local-retain" | "stop" | "start" | "restart", []:
                await self._move(verb)
            case _:
                return await self._ask(verb, words)
        return ""

    async def _move(self, verb: str) -> None:
        match verb:
            case "look":
                await self.bench.refresh()
            case "retain":
                await self.bench.retain()
            case "local-retain":
                await asyncio.to_thread(self.bench.server.engine.local.retention.run)
            case _:
                if verb != "start":
                    await self.stop()
                if verb != "stop":
                    await self.start()

    def _change_elsewhere(self, what: str, topic: str, rest: Sequence[str]) -> None:
        catalog = catalog_elsewhere(self._store)
        if what == "create":
            catalog.create(topic, count_of(rest) or 1, config_of(rest))
        elif what == "delete":
            catalog.delete(catalog.topics()[topic].topic_id)
        else:
            count = count_of(rest)
            config = config_of(rest) if count is None else None
            catalog.alter(catalog.topics()[topic].topic_id, config=config, partition_count=count)

    async def _ask(self, verb: str, words: list[str]) -> str:
        match verb, words:
            case "names", []:
                return " ".join(await self.bench.topic_names())
            case "logs", []:
                return " ".join(sorted(path.name for path in (self._folder / "data").glob("*-[0-9]")))
            case "objects", []:
                return str((await self.bench.client.admin.tier_status()).shards[0].live_object_count)
            case "log-start", [topic]:
                return str(self.bench.partition(topic).log_start_offset)
            case "local-start", [topic]:
                return str(self.bench.partition(topic).log.offsets.local_log_start_offset)
            case "said", [text]:
                return str(sum(text in message for message in self._caplog.messages))
            case "offline", [topic]:
                return await self._offline_key(topic)
            case topic, []:
                parts = [b" ".join(filter(None, part)).decode() for part in await self.bench.values(topic)]
                return " | ".join(parts).strip()
            case _:
                raise AssertionError(f"no such command: {verb} {words}")

    async def _offline_key(self, topic: str) -> str:
        """All of its partitions are offline, for a reason that names one of its keys, or none is."""
        admin = self.bench.client.admin
        [described] = await admin.describe_topics([topic])
        assert [*(await admin.tier_status()).offline_partitions] == [*described.offline_partitions]
        is_offline = [log.offline is not None for log in await admin.describe_log(topic)]
        if not described.offline_partitions:
            assert not any(is_offline)
            return ""
        assert is_offline == [True] * described.partition_count
        assert [one.partition for one in described.offline_partitions] == [*range(described.partition_count)]
        [key] = described.config_overrides
        assert all(key in one.reason for one in described.offline_partitions)
        return key


def count_of(words: Sequence[str]) -> int | None:
    """The number among the words."""
    return next((int(word) for word in words if word.isdigit()), None)


def config_of(words: Sequence[str]) -> dict[str, str]:
    return dict(word.split("=") for word in words if "=" in word)


@pytest.mark.parametrize("commands", scenarios().values(), ids=scenarios())
async def test_scenario(commands: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    site = Site(tmp_path, caplog)
    await site.start()
    try:
        for line in commands:
            command, arrow, expected = line.partition("->")
            answer = await site.run(command.strip())
            assert answer == expected.strip() if arrow else not answer.endswith("Error"), (line, answer)
    finally:
        await site.stop()
