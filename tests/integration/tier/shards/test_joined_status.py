"""Answers that are joined from the owners of all shards, while one of them is away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stratalog.base.clock import SystemClock
from stratalog.base.errors import NotOwnerError, StoreCorruptError
from stratalog.client import values
from stratalog.client.errors import ServerUnavailableError
from stratalog.objectstore.memory import MemoryObjectStore
from tests.support.service.service_bench import service_bench


async def test_an_owner_that_does_not_answer_is_named(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "0", store=store, shard_count=2, own_shards=(0,)) as first:
        await first.client.admin.create_topic("t", 4)
        async with service_bench(tmp_path / "1", store=store, own_shards=(1,)) as second:
            await first.refresh()
            address = second.client.address
            whole = await first.client.admin.store_status()
            assert [(one.server, one.error) for one in whole.others] == [(address, None)]
            assert not any(one.reason for one in await first.client.admin.explain_retention())
        shown = await first.command("tier", "status")
        assert isinstance(shown.exception, ServerUnavailableError)
        assert shown.exception.fields["servers"] == address
        assert shown.exit_code == 1
        [line] = [line for line in shown.stdout.splitlines() if line.startswith(f"{address}: ")]
        assert "does not answer" in line
        # Its shard has a row all the same.
        rows = [line.split()[:2] for line in shown.stdout.splitlines()]
        assert [row for row in rows if row[0] in ("0", "1")] == [["0", first.client.address], ["1", address]]
        printed = await first.command("tier", "status", "--json")
        document: Any = json.loads(printed.stdout)
        assert [(one["server"], one["status"]) for one in document["other_servers"]] == [(address, None)]
        assert document["other_servers"][0]["error"]["code"] == "SERVER_UNAVAILABLE"
        reasons = [one.reason for one in await first.client.admin.explain_retention(["t"])]
        assert any(address in reason and "does not answer" in reason for reason in reasons)
        assert "" in reasons


COMMANDS = (
    ("tier", "verify"),
    ("tier", "collect"),
    ("tier", "upload"),
    ("compaction", "run"),
    ("retention", "run"),
)
"""Those that do what they say in the shards of one server."""


async def test_work_on_one_server_names_the_shards_of_others(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "0", store=store, shard_count=2, own_shards=(0,)) as first:
        await first.client.admin.create_topic("t", 4)
        unclaimed = (await first.client.admin.verify()).left_out_shards
        assert unclaimed == (values.LeftOutShard(1, ""),)
        async with service_bench(tmp_path / "1", store=store, own_shards=(1,)) as second:
            await first.refresh()
            left_out = (values.LeftOutShard(1, second.client.address),)
            assert (await first.client.admin.verify(["t"])).left_out_shards == left_out
            assert (await first.client.admin.collect()).left_out_shards == left_out
            assert (await first.client.admin.collect(dry_run=True)).left_out_shards == left_out
            assert (await first.client.admin.upload()).left_out_shards == left_out
            assert (await first.client.admin.upload(["t"])).left_out_shards == left_out
            assert (await first.client.admin.run_retention()).left_out_shards == left_out
            compaction = await first.client.admin.start_compaction()
            done = await first.client.operations.wait(compaction.operation_id)
            assert isinstance(done.result, values.CompactionResult)
            assert done.result.left_out_shards == left_out
            for command in COMMANDS:
                ended = await first.command(*command)
                assert isinstance(ended.exception, NotOwnerError), command
                assert ended.exception.fields["left_out"] == f"shard 1 of {second.client.address}"
                assert ended.exit_code == 1


async def test_work_on_a_topic_looks_past_shards_without_it(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with (
        service_bench(tmp_path / "0", store=store, shard_count=2, own_shards=(0,)) as first,
        service_bench(tmp_path / "1", store=store, own_shards=(1,)) as second,
    ):
        await first.refresh()
        await first.client.admin.create_topic("t", 1)
        await second.refresh()
        for work in ("verify", "upload", "run_retention"):
            left = [(await getattr(one.client.admin, work)(["t"])).left_out_shards for one in (first, second)]
            assert sorted(map(len, left)) == [0, 1], work


async def test_a_failure_does_not_hide_the_shards_of_others(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "0", store=store, shard_count=2, own_shards=(0,)) as first:
        await first.client.admin.create_topic("t", 4)
        number = next(
            one.partition for one in await first.client.admin.describe_log("t") if one.offline is None
        )
        await first.append("t", [b"v"], partition=number)
        await first.client.admin.upload()
        [lost] = await first.client.admin.list_slices("t", number)
        store.delete_many([f"shards/0000/data/{lost.object_name}"])
        ended = await first.command("tier", "verify")
        assert isinstance(ended.exception, StoreCorruptError)
        assert "left_out=`shard 1 of no server`" in ended.stderr


async def test_the_status_of_one_server_names_no_other(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        shown = await bench.command("tier", "status")
        assert shown.exit_code == 0
        assert "SERVER" not in shown.stdout
        assert "this server" in shown.stdout
        document: Any = json.loads((await bench.command("tier", "status", "--json")).stdout)
        assert document["other_servers"] == []
