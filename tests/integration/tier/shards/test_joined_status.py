"""Answers that are joined from the owners of all shards, while one of them is away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stratalog.base.clock import SystemClock
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


async def test_the_status_of_one_server_names_no_other(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        shown = await bench.command("tier", "status")
        assert shown.exit_code == 0
        assert "SERVER" not in shown.stdout
        assert "this server" in shown.stdout
        document: Any = json.loads((await bench.command("tier", "status", "--json")).stdout)
        assert document["other_servers"] == []
