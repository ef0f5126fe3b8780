"""Every command takes a list of servers: each runs against two that share a store, a shard each. Both hold a
part of the topic."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any, NamedTuple

import click
import pytest
import pytest_asyncio
from click.testing import CliRunner, Result

from stratalog.base.clock import SystemClock
from stratalog.cli.main import stratalog
from stratalog.objectstore.memory import MemoryObjectStore
from tests.support.service.service_bench import service_bench

TOPIC = "orders"
ID = "0a9d6313-d4c4-4148-b3a6-ed203eb844a2"
COMMANDS: dict[str, str] = {
    "server info": "",
    "topic create": "made --partitions 2",
    "topic add-partitions": "grown --partitions 3",
    "topic alter": "grown --config retention.ms=-1",
    "topic delete": "unwanted --yes",
    "topic describe": TOPIC,
    "topic list": "",
    "config alter": "--broker --add log.retention.ms=-1",
    "config describe": TOPIC,
    "records delete": f"{TOPIC} --before earliest",
    "produce": f"{TOPIC} --value paid",
    "consume": TOPIC,
    "log offsets": TOPIC,
    "log segments": f"{TOPIC} --partition 0",
    "log slices": f"{TOPIC} --partition 1",
    "log roll": TOPIC,
    "log flush": TOPIC,
    "log describe": TOPIC,
    "producers list": f"{TOPIC} --partition 0",
    "tier caches": "",
    "tier finalize": "--dry-run",
    "tier pause": TOPIC,
    "tier resume": TOPIC,
    "tier status": "",
    "log-dirs describe": "",
    "cleaner status": "",
    "compaction excluded": "",
    "compaction plan": "",
    "compaction status": "--follow",
    "compaction cancel": "",
    "retention explain": TOPIC,
    "operation list": "",
}
"""Commands that succeed, with their arguments."""
REFUSED: dict[str, tuple[str, str]] = {
    # One server does it, and names the shards of the other one.
    "tier collect": ("--dry-run", "NOT_OWNER"),
    "tier verify": ("--quick", "NOT_OWNER"),
    "tier upload": (TOPIC, "NOT_OWNER"),
    "compaction run": ("", "NOT_OWNER"),
    "retention run": (TOPIC, "NOT_OWNER"),
    "log-dirs cordon": ("/nowhere", "INVALID_REQUEST"),
    "log-dirs uncordon": ("/nowhere", "INVALID_REQUEST"),
    "log-dirs forget": (ID, "INVALID_REQUEST"),
    "log-dirs move": (f"{TOPIC} --partition 99 --to /nowhere", "UNKNOWN_TOPIC_OR_PARTITION"),
    "cleaner reset": (f"{TOPIC} --partition 99", "UNKNOWN_TOPIC_OR_PARTITION"),
    "compaction reset": (f"{TOPIC} --partition 99", "UNKNOWN_TOPIC_OR_PARTITION"),
    "operation cancel": (ID, "UNKNOWN_OPERATION"),
    "operation show": (ID, "UNKNOWN_OPERATION"),
    "operation watch": (ID, "UNKNOWN_OPERATION"),
}
"""Commands that a server refuses for their arguments, and the code."""
ELSEWHERE = {"export kafka", "spark staging list", "spark staging delete"}
"""Commands with a list of servers in tests of their own."""


pytestmark = pytest.mark.asyncio(loop_scope="module")


class Pair(NamedTuple):
    """The addresses of two servers."""

    first: str
    second: str

    async def run(self, line: str) -> Result:
        """Run the line in a thread with an event loop of its own."""
        command = [*line.split(), "--server", f"{self.first},{self.second}"]
        return await asyncio.to_thread(CliRunner().invoke, stratalog, command)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Pair]:
    folder, store = tmp_path_factory.mktemp("pair"), MemoryObjectStore(SystemClock())
    async with (
        service_bench(folder / "0", store=store, shard_count=2, own_shards=(0,)) as first,
        service_bench(folder / "1", store=store, own_shards=(1,)) as second,
    ):
        await first.refresh()
        for name, count in ((TOPIC, 8), ("grown", 2), ("unwanted", 2)):
            await first.client.admin.create_topic(name, count)
        await second.refresh()
        yield Pair(first.client.address, second.client.address)


def commands_with_servers() -> Iterator[str]:
    """The names of all commands that take `--server`."""

    def below(command: click.Command, words: tuple[str, ...]) -> Iterator[str]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from below(found, (*words, name))
        elif any(one.name == "server" for one in command.params):
            yield " ".join(words)

    return below(stratalog, ())


async def test_no_command_is_left_out() -> None:
    assert sorted(commands_with_servers()) == sorted([*COMMANDS, *REFUSED, *ELSEWHERE])


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_takes_a_list(pair: Pair, command: str) -> None:
    result = await pair.run(f"{command} {COMMANDS[command]}")
    assert result.exit_code == 0, (result.output, result.exception)


@pytest.mark.parametrize("command", REFUSED)
async def test_a_refusal_is_that_of_the_servers(pair: Pair, command: str) -> None:
    arguments, code = REFUSED[command]
    result = await pair.run(f"{command} {arguments}")
    assert getattr(result.exception, "code", None) == code, (result.output, result.exception)


async def test_the_status_of_both_is_joined(pair: Pair) -> None:
    shown = (await pair.run("tier status")).stdout
    tables: list[list[list[str]]] = []
    for line in shown.splitlines():
        words = line.split()
        if words[0] in ("SHARD", "SERVER"):
            tables.append([])
        elif tables:
            tables[-1].append(words)
    addresses = [pair.first, pair.second]
    assert [(row[0], row[1]) for row in tables[0]] == list(zip("01", addresses, strict=True))
    for table in tables[1:]:
        assert {row[0] for row in table} == set(addresses)
    document: Any = json.loads((await pair.run("tier status --json")).stdout)
    [other] = document["other_servers"]
    assert (other["server"], other["error"]) == (pair.second, None)
    assert [one["foreign"] for one in document["shards"]] == [False, True]
    assert [one["foreign"] for one in other["status"]["shards"]] == [True, False]


async def test_each_partition_is_explained_by_its_owner(pair: Pair) -> None:
    explained: Any = json.loads((await pair.run(f"retention explain {TOPIC} --json")).stdout)
    assert [(one["partition"], one["reason"]) for one in explained] == [(number, "") for number in range(8)]
