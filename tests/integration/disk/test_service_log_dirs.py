"""Several log directories, as operators see them: where partitions go, how they move, what a failing disk
takes."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest
import uvloop

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    DataDirectoryError,
    InvalidConfigError,
    InvalidRequestError,
    StoreUnavailableError,
)
from stratalog.client import values
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.server.app import serve
from stratalog.server.configuration.settings import ServerSettings
from stratalog.testing.failing_directory import FailingDirectory
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.service.service_bench import ServiceBench, service_bench
from tests.support.tiered.stores.away_store import AwayStore


def path_of(bench: ServiceBench, number: int, topic: str = "t") -> str:
    return str(Path(bench.partition(topic, number).log.local_log.directory).parent)


LIVE, CORDONED = values.LogDirState.LIVE, values.LogDirState.CORDONED
DONE, CANCELLED = values.PartitionMoveState.DONE, values.PartitionMoveState.CANCELLED


async def until_moved(bench: ServiceBench) -> list[values.PartitionMove]:
    async with asyncio.timeout(60):
        while True:
            moves = (await bench.client.admin.describe_log_dirs()).moves
            if all(move.state in (DONE, CANCELLED, values.PartitionMoveState.FAILED) for move in moves):
                return list(moves)
            await asyncio.sleep(0.01)


async def until_copying(bench: ServiceBench) -> None:
    """Wait until a restart goes on with the only move: a move that has not begun yet is forgotten."""
    async with asyncio.timeout(60):
        while not (await bench.client.admin.describe_log_dirs()).moves[0].copied_bytes:
            await asyncio.sleep(0.01)


async def test_partitions_are_spread_and_a_cordoned_directory_gets_none(tmp_path: Path) -> None:
    data, other = f"{tmp_path}/data", f"{tmp_path}/other"
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 4)
        assert sorted(path_of(bench, number) for number in range(4)) == [data, data, other, other]
        for number in range(4):
            await bench.append("t", [b"x" * 100], number)
        result = await bench.command("log-dirs", "cordon", other)
        assert (result.exit_code, result.output) == (0, f"{other} takes no new partitions\n")
        await admin.create_topic("u", 2)
        assert [path_of(bench, number, "u") for number in range(2)] == [data, data]
        dirs = (await admin.describe_log_dirs()).log_dirs
        assert [(one.path, one.state, one.partition_count) for one in dirs] == [
            (data, LIVE, 4),
            (other, CORDONED, 2),
        ]
        assert all(one.size_bytes > 0 and one.directory_id and not one.reason for one in dirs)
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        admin = bench.client.admin
        await admin.create_topic("v")
        assert path_of(bench, 0, "v") == data, "cordoned for good"
        assert (await bench.command("log-dirs", "uncordon", other)).exit_code == 0
        await admin.create_topic("w")
        assert path_of(bench, 0, "w") == other
        assert [len(part) for part in await bench.read_all("t")] == [1, 1, 1, 1]
        again = await bench.command("log-dirs", "uncordon", other)
        assert isinstance(again.exception, InvalidRequestError)
        assert again.exception.fields == {"path": other}
        with pytest.raises(InvalidConfigError) as refusal:
            await admin.alter_configs({"cordoned.log.dirs": "/nowhere"})
        assert str(tmp_path) not in str(refusal.value)


async def test_operators_who_cordon_at_once_lose_nothing(tmp_path: Path) -> None:
    others = tuple(f"{tmp_path}/other-{number}" for number in range(6))
    async with service_bench(tmp_path, log_dirs=others) as bench:
        admin = bench.client.admin
        await asyncio.gather(*(admin.cordon_log_dir(path) for path in others))
        await asyncio.gather(*(admin.cordon_log_dir(path, is_cordoned=False) for path in others[::2]))
        states = [one.state for one in (await admin.describe_log_dirs()).log_dirs]
        assert states == [LIVE] + 3 * [LIVE, CORDONED]


async def test_paths_are_understood_as_those_of_the_start(tmp_path: Path) -> None:
    other = f"{tmp_path}/other"
    async with service_bench(tmp_path, log_dirs=(f"{tmp_path}/data/../other/",)) as bench:
        odd = f"{tmp_path}//data/../other/"
        for command, said in (("cordon", "takes no new partitions"), ("uncordon", "takes new partitions")):
            shown = await bench.command("log-dirs", command, odd)
            assert (shown.exit_code, shown.output) == (0, f"{other} {said}\n")
        await bench.client.admin.alter_configs({"cordoned.log.dirs": odd})
        assert (await bench.client.admin.describe_log_dirs()).log_dirs[1].state == CORDONED
        await bench.client.admin.cordon_log_dir(other, is_cordoned=False)
        await bench.client.admin.create_topic("t")
        target = next(path for path in (f"{tmp_path}/data", other) if path != path_of(bench, 0))
        arguments = ("move", "t", "--partition", "0", "--to", f"{target}/")
        shown = await bench.command("log-dirs", *arguments)
        assert (shown.exit_code, shown.output) == (0, f"t-0 has moved to {target}\n")
        await until_moved(bench)
        for wrong in ("nowhere", f"{other}/deeper", "/nowhere", ""):
            for call in (
                partial(bench.client.admin.cordon_log_dir, wrong),
                partial(bench.client.admin.cordon_log_dir, wrong, is_cordoned=False),
                partial(bench.client.admin.move_partition, "t", 0, wrong),
            ):
                with pytest.raises(InvalidRequestError) as refusal:
                    await call()
                fields = {name: value for name, value in refusal.value.fields.items() if name != "topic"}
                assert fields.pop("partition", 0) == 0
                assert fields == {"path": wrong}, "and no path that the client did not name"


async def test_a_partition_moves_while_it_takes_appends(tmp_path: Path) -> None:
    data, other = f"{tmp_path}/data", f"{tmp_path}/other"
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        await bench.client.admin.create_topic("t", 1, {"segment.bytes": "1024"})
        for _ in range(5):
            await bench.append("t", [b"x" * 600])
        source, target = (data, other) if path_of(bench, 0) == data else (other, data)
        arguments = ("log-dirs", "move", "t", "--partition", "0", "--to", target)
        moving = asyncio.create_task(bench.command(*arguments))
        for _ in range(5):
            await bench.append("t", [b"x" * 600])
        assert (await moving).output == f"t-0 has moved to {target}\n"
        [move] = await until_moved(bench)
        assert (move.state, move.source_path, move.target_path, move.remaining_bytes) == (
            DONE,
            source,
            target,
            0,
        )
        await bench.append("t", [b"behind"])
        assert path_of(bench, 0) == target
        shown = await bench.command("log-dirs", "describe")
        assert f"t-0   {target}" in shown.output
        document = json.loads((await bench.command("log-dirs", "describe", "--json")).output)
        assert [one["partition_count"] for one in document["log_dirs"] if one["path"] == target] == [1]
        with pytest.raises(InvalidRequestError):
            await bench.client.admin.move_partition("t", 0, target)
        cancelled = await bench.client.operations.cancel(move.operation_id)
        assert cancelled.state == values.OperationState.SUCCEEDED, "it is too late"
        assert cancelled.result == values.MoveResult("t", 0, source, target)
        assert 0 < cancelled.progress.done_bytes == cancelled.progress.total_bytes
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        assert path_of(bench, 0) == target
        assert [len(part) for part in await bench.read_all("t")] == [11]


async def test_without_the_store_a_move_and_a_deletion_make_room_where_no_key_can_be_altered(
    tmp_path: Path,
) -> None:
    """The remedies of docs/operating.md where appends are refused in an outage."""
    data, other = f"{tmp_path}/data", f"{tmp_path}/other"
    store = AwayStore(MemoryObjectStore(SystemClock()))
    async with service_bench(tmp_path, log_dirs=(other,), store=store) as bench:
        admin = bench.client.admin
        await admin.create_topic("t")
        await admin.create_topic("local", 1, {"remote.storage.enable": "false"})
        for topic in ("t", "local"):
            await bench.append(topic, [b"v"])
        target = other if path_of(bench, 0) == data else data
        store.is_away = True
        with pytest.raises(StoreUnavailableError):
            await admin.alter_configs({"log.dir.min.free.bytes": "0"})
        with pytest.raises(StoreUnavailableError):
            await admin.alter_configs({"retention.ms": "1"}, "t")
        with pytest.raises(StoreUnavailableError):
            await admin.delete_records("t", 0, 1)
        assert await admin.delete_records("local", 0, 1) == 1
        moved = await bench.command("log-dirs", "move", "t", "--partition", "0", "--to", target)
        assert moved.output == f"t-0 has moved to {target}\n"
        assert path_of(bench, 0) == target
        store.is_away = False


async def fill_for_a_slow_move(bench: ServiceBench, data: str, other: str) -> tuple[str, str]:
    """Topic `t` with more than a move copies before and after it is throttled; where it is, and is not."""
    await bench.client.admin.create_topic("t")
    for _ in range(4):
        await bench.append("t", [b"x" * 900_000])
    return (data, other) if path_of(bench, 0) == data else (other, data)


async def test_a_move_is_cancelled_or_goes_on_after_a_restart(tmp_path: Path) -> None:
    data, other = f"{tmp_path}/data", f"{tmp_path}/other"
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        admin = bench.client.admin
        source, target = await fill_for_a_slow_move(bench, data, other)
        # So slow that it never ends by itself.
        await admin.alter_configs({"replica.alter.log.dirs.io.max.bytes.per.second": "1"})
        started = await admin.move_partition("t", 0, target)
        with pytest.raises(InvalidRequestError) as refusal:
            await admin.move_partition("t", 0, target)
        assert refusal.value.fields == {"topic": "t", "partition": 0}
        assert (await bench.command("operation", "cancel", started.operation_id)).exit_code == 0
        ended = await bench.client.operations.wait(started.operation_id)
        assert (ended.state, list(ended.topics)) == (values.OperationState.CANCELLED, ["t"])
        [move] = await until_moved(bench)
        assert move.operation_id == started.operation_id
        assert (move.state, path_of(bench, 0)) == (CANCELLED, source)
        await admin.move_partition("t", 0, target)
        await until_copying(bench)
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        assert bench.server.engine.local.logs.moves.throttler.max_bytes_per_s == 1
        [listed] = await bench.client.operations.list()
        resumed = await bench.client.operations.get(listed.operation_id)
        assert isinstance(resumed.result, values.MoveResult)
        assert (resumed.kind, resumed.result.target_path) == (values.OperationKind.MOVE, target)
        await bench.client.admin.alter_configs({"replica.alter.log.dirs.io.max.bytes.per.second": None})
        [move] = await until_moved(bench)
        assert (move.state, path_of(bench, 0)) == (DONE, target)
        ended = await bench.client.operations.wait(resumed.operation_id)
        assert ended.state == values.OperationState.SUCCEEDED
        assert [len(part) for part in await bench.read_all("t")] == [4]


def test_the_last_disk_that_fails_ends_the_process_with_a_clear_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FailingDirectory()
    monkeypatch.setattr("stratalog.server.app.PosixFileSystem", lambda: disk)
    settings = ServerSettings(
        data_dir=f"{tmp_path}/data",
        listen="127.0.0.1:0",
        config={"log.initial.task.delay.ms": "1", "log.flush.offset.checkpoint.interval.ms": "1"},
    )

    def break_it(_: object) -> None:
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop), "a process has the loop of these tests"
        disk.broken = f"{tmp_path}/data"

    with pytest.raises(DataDirectoryError) as failure:
        serve(settings, break_it)
    assert failure.value.fields["log_dirs"] == f"{tmp_path}/data"


async def test_a_start_tells_of_cordons_that_name_none_of_its_directories(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, other, wrong = f"{tmp_path}/data", f"{tmp_path}/other", f"{tmp_path}/nix"
    for cordoned, unused in ((f"{wrong}/,{other}", [wrong]), (other, [])):
        caplog.clear()
        config = {"cordoned.log.dirs": cordoned}
        async with service_bench(tmp_path, log_dirs=(other,), config=config):
            told = [text for text in caplog.messages if text.startswith("cordoned.log.dirs names")]
        assert len(told) == len(unused)
        for text, path in zip(told, unused, strict=True):
            assert f": {path}. " in text
            assert f"as in {data}, {other};" in text
    async with service_bench(tmp_path, config={"cordoned.log.dirs": other}) as bench:
        await bench.client.admin.alter_configs({"log.retention.ms": "-1"})


async def test_the_cordon_of_an_offline_directory_cannot_be_altered(tmp_path: Path) -> None:
    disk, data, other = FailingDirectory(), f"{tmp_path}/data", f"{tmp_path}/other"
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(other,)) as bench:
        await bench.client.admin.create_topic("t", 2)
        await bench.client.admin.cordon_log_dir(other)
        disk.broken = other
        number = next(number for number in range(2) if path_of(bench, number) == other)
        with pytest.raises(DataDirectoryError):
            await bench.append("t", [b"x"], number)
        shown = await bench.command("log-dirs", "uncordon", other)
        assert shown.exit_code == 1
        assert isinstance(shown.exception, DataDirectoryError)
        with pytest.raises(DataDirectoryError) as refusal:
            await bench.client.admin.alter_configs({"cordoned.log.dirs": data})
        assert "path" not in refusal.value.fields
        assert dict(bench.server.engine.topics.runtime.layers.dynamic) == {"cordoned.log.dirs": other}


async def test_a_move_to_a_directory_that_was_cordoned_waits_in_sight(tmp_path: Path) -> None:
    data, other = f"{tmp_path}/data", f"{tmp_path}/other"
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        admin = bench.client.admin
        _, target = await fill_for_a_slow_move(bench, data, other)
        await admin.alter_configs({"replica.alter.log.dirs.io.max.bytes.per.second": "1"})
        await admin.move_partition("t", 0, target)
        await until_copying(bench)
        await admin.cordon_log_dir(target)
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        admin = bench.client.admin
        [move] = (await admin.describe_log_dirs()).moves
        assert move.state == values.PartitionMoveState.WAITING
        assert "takes nothing new; uncordon it" in move.reason
        held = await bench.client.operations.get(move.operation_id)
        assert held.state == values.OperationState.RUNNING
        assert "takes nothing new; uncordon it" in held.progress.phase
        cancelled = await bench.client.operations.cancel(move.operation_id)
        assert cancelled.state == values.OperationState.CANCELLED
        assert not (await admin.describe_log_dirs()).moves
        assert [len(part) for part in await bench.read_all("t")] == [4]


@pytest.mark.timeout(60)
async def test_what_was_deleted_is_removed_after_the_delay_of_now(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 1, {"file.delete.delay.ms": "0"})
        await bench.client.admin.alter_configs({"log.segment.delete.delay.ms": "0"})
        await bench.client.admin.delete_topic("t")
        while any(Path(tmp_path, "data").glob("t-0*")):
            await asyncio.sleep(0.01)


async def test_no_topic_reserves_space_below_the_floor_of_its_log_directory() -> None:
    disk = MemoryFileSystem(free_bytes=10 << 20)
    config = {"log.dir.min.free.bytes": str(9 << 20)}
    async with service_bench("/bench", filesystem=disk, config=config) as bench:
        large = {"preallocate": "true", "segment.bytes": str(2 << 20)}
        await bench.client.admin.create_topic("large", 1, large)
        await bench.client.admin.create_topic("t", 1)
        await bench.append("large", [b"x"])
        spares = [disk.spare_bytes(path) for path in disk.contents() if path.endswith(".log")]
        assert spares == [0, 0]
        # The floor may be altered while the server runs.
        await bench.client.admin.alter_configs({"log.dir.min.free.bytes": str(8 << 20)})
        await bench.client.admin.roll("large")
        assert (2 << 20) in [disk.spare_bytes(path) for path in disk.contents() if path.endswith(".log")]
