"""Appends at `object` to several partitions, of which one has a disk that hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stratalog.base.types import Durability
from stratalog.record.record import Record
from tests.support.gate import Gate
from tests.support.service.service_bench import service_bench


async def test_a_disk_that_hangs_holds_up_the_appends_of_its_own_partitions_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 2)
        flusher = bench.partition("t", 0).log.flusher
        flush = type(flusher).flush

        def held(self: object, *args: object, **kwargs: object) -> object:
            if self is flusher:
                gate.pass_through()
            return flush(self, *args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(type(flusher), "flush", held)

        async def append(number: int) -> object:
            return await bench.client.append(
                "t", number, [Record(0, 1000, b"k", b"v")], durability=Durability.OBJECT
            )

        await append(1)
        gate.close()
        hanging = asyncio.create_task(append(0))
        assert await asyncio.to_thread(gate.is_reached.wait, 30)
        try:
            await asyncio.wait_for(append(1), 10)
        finally:
            gate.open()
            await hanging
