"""`stratalog compaction run --store`: compaction of a store by the command itself, without a server and
beside one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stratalog.base import process_tuning
from stratalog.base.clock import SystemClock
from stratalog.cli.main import stratalog
from stratalog.cli.store_access import store_compaction
from stratalog.client import values
from stratalog.objectstore.local import LocalObjectStore
from stratalog.objectstore.open_store import open_store
from stratalog.objectstore.protocol import ReadStream
from stratalog.record.record import Record
from tests.support.compaction.orders_log import OrdersLog
from tests.support.service.service_bench import ServiceBench, catalog_elsewhere, service_bench
from tests.support.tiered.s3_servers import S3Server

NO_ROOM = {"remote.compaction.job.memory.bytes": "0", "remote.compaction.scratch.max.bytes": "1"}
HEADER = "PARTITIONS  INPUTS  GETS  RESUMED"


def stored(folder: Path) -> str:
    """The URL of a store with something to compact."""
    orders = OrdersLog()
    orders.upload(b"a", b"b", b"c")
    orders.upload(b"d", b"b")
    url = f"file://{folder}/store"
    store = open_store(url, clock=SystemClock())
    for info in orders.site.bucket.list(""):
        store.put(info.key, orders.site.bucket.get(info.key).data)
    return url


def compact(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(stratalog, ["compaction", "run", "--store", url, *arguments])


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def with_config(config: dict[str, str]) -> list[str]:
    return [part for name, value in config.items() for part in ("--config", f"{name}={value}")]


def test_the_plan_changes_nothing_and_the_run_does_it(tmp_path: Path) -> None:
    url = stored(tmp_path)
    before = contents(tmp_path)
    planned = compact(url, "--dry-run")
    assert (planned.exit_code, planned.stderr.count("\n")) == (0, 1)
    assert planned.stderr.startswith("warning: without --config-file this assumes")
    assert planned.stdout.splitlines()[1].split()[:4] == ["1", "dirty", "2", "1"]
    document = json.loads(compact(url, "--dry-run", "--json").stdout)
    assert [job["reason"] for job in document["jobs"]] == ["dirty"]
    assert contents(tmp_path) == before
    file = tmp_path / "stratalog.toml"
    file.write_text("")
    done = compact(url, "--config-file", str(file))
    assert (done.exit_code, done.stderr) == (0, "")
    header, row = done.stdout.splitlines()
    assert header.startswith(HEADER)
    assert row.split()[:2] == ["1", "2"]
    verified = CliRunner().invoke(stratalog, ["verify", "--compaction", "--store", url])
    assert verified.exit_code == 0
    assert "0 findings" in verified.stdout
    again = compact(url)
    assert (again.exit_code, again.stdout) == (0, "nothing to compact\n  orders: compacted already\n")
    assert (compact(url, "--json").stdout, compact(url, "orders", "--json").exit_code) == ("[]\n", 0)


def test_progress_is_that_of_an_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[values.Operation] = []

    @contextmanager
    def noting() -> Generator[Callable[[values.Operation], None]]:
        yield shown.append

    monkeypatch.setattr(store_compaction, "progress_bar", noting)
    [job] = json.loads(compact(stored(tmp_path), "orders", "--json").stdout)
    last = shown[-1].progress.compaction
    assert last is not None
    assert (last.done_job_count, last.job_count, last.done_partition_count) == (1, 1, 1)
    assert (last.get_request_count, last.read_bytes) == (job["get_request_count"], job["read_bytes"])
    assert (last.kept_record_count, last.dropped_record_count) == (4, 1)
    assert shown[-1].topics == ("orders",)


def test_settings_of_the_command_are_stronger_than_those_in_the_store(tmp_path: Path) -> None:
    url = stored(tmp_path)
    store = open_store(url, clock=SystemClock())
    before = contents(tmp_path)
    failed = compact(url, *with_config(NO_ROOM))
    assert failed.exit_code == 1
    assert "error: a job has failed" in failed.stderr
    assert "remote.compaction.scratch.max.bytes" in failed.stdout
    assert contents(tmp_path) == before
    catalog_elsewhere(store).alter_server_config(lambda config: {**config, **NO_ROOM})
    assert compact(url).exit_code == 1
    file = tmp_path / "stratalog.toml"
    file.write_text("[config]\nremote.compaction.scratch.max.bytes = 1000000\n")
    assert compact(url, "--config-file", str(file)).exit_code == 1, "weaker than the store's"
    assert compact(url, "--config", "remote.compaction.scratch.max.bytes=1000000").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--no-wait"], 2, "--no-wait is for a server"),
        (["orders", "--interval", "1"], 2, "--interval for what is due"),
        (["nosuch"], 1, "there is no such topic"),
        (["--config", "log.retention.ms=1"], 1, "only the settings of jobs"),
        (["--config", "remote.compaction.merge.fanout=1"], 1, "remote.compaction.merge.fanout"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], code: int, text: str, tmp_path: Path) -> None:
    url = stored(tmp_path)
    before = contents(tmp_path)
    refused = compact(url, *arguments)
    assert refused.exit_code == code
    assert text in f"{refused.stderr} {refused.exception}"
    assert contents(tmp_path) == before


def test_options_of_a_store_need_one() -> None:
    refused = CliRunner().invoke(stratalog, ["compaction", "run", "--interval", "1"])
    assert refused.exit_code == 2
    assert "need --store" in refused.stderr


def test_an_empty_place_is_no_store(tmp_path: Path) -> None:
    refused = compact(f"file://{tmp_path}/none")
    assert refused.exit_code == 1
    assert contents(tmp_path) == {}


def test_its_threads_have_one_heap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each keeps blocks that another one has freed, beyond the memory of the job."""
    shared: list[bool] = []
    monkeypatch.setattr(process_tuning, "share_one_heap", lambda: shared.append(True))
    assert compact(stored(tmp_path)).exit_code == 0
    assert shared == [True]


def interrupting(monkeypatch: pytest.MonkeyPatch, count: int) -> list[int]:
    """Sends SIGINT at each of the first `count` streams; returns the list of streams."""
    opened: list[int] = []
    inner = LocalObjectStore.open_range

    def open_range(
        self: LocalObjectStore, key: str, position: int, size: int, *, if_match: str | None = None
    ) -> ReadStream:
        opened.append(position)
        if len(opened) <= count:
            os.kill(os.getpid(), signal.SIGINT)
        return inner(self, key, position, size, if_match=if_match)

    monkeypatch.setattr(LocalObjectStore, "open_range", open_range)
    return opened


@pytest.mark.parametrize("count", [1, 2])
def test_an_interrupt_ends_the_job_cleanly(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one does not wait for the next request."""
    url = stored(tmp_path)
    before, handler = contents(tmp_path), signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with monkeypatch.context() as patched:
        opened = interrupting(patched, count)
        ended = compact(url, "--interval", "1")
    assert (ended.exit_code, len(opened)) == (130, 1)
    assert contents(tmp_path) == before, "no output, no scratch file"
    assert signal.getsignal(signal.SIGINT) is handler
    assert compact(url).exit_code == 0


def test_it_goes_on_at_intervals_until_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(_clock: SystemClock, seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(SystemClock, "sleep", sleep)
    ended = compact(stored(tmp_path), "--interval", "7")
    assert (ended.exit_code, slept) == (130, [7, 7])
    assert ended.stdout.count(HEADER) == 1, "the second round has found nothing"


async def put(bench: ServiceBench, numbers: range) -> None:
    for number in numbers:
        await bench.client.append("t", 0, [Record(0, 1000, key, b"%d" % number) for key in (b"a", b"b")])
        await bench.client.admin.upload()


@pytest.mark.parametrize("name", ["moto", "seaweedfs"])
async def test_a_command_and_a_server_may_compact_a_store_at_once(
    name: str, request: pytest.FixtureRequest, s3_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3: S3Server = request.getfixturevalue(f"{name}_server")
    for variable, value in s3.environment().items():
        monkeypatch.setenv(variable, value)
    url = s3.store_url(s3_prefix)
    async with service_bench(tmp_path, store_url=url, has_processes=True) as bench:
        await bench.client.admin.create_topic("t", 1, {"cleanup.policy": "compact", "retention.ms": "-1"})
        await put(bench, range(2))
        alone = await asyncio.to_thread(compact, url, "t", "--json")
        assert [job["outcome"] for job in json.loads(alone.stdout)] == ["committed"], alone.stderr
        await bench.refresh()
        await put(bench, range(2, 5))
        if s3.has_atomic_writes:
            by_server, by_command = await asyncio.gather(
                bench.client.admin.run_compaction(["t"]), asyncio.to_thread(compact, url, "t", "--json")
            )
            outcomes = [str(job.outcome) for job in by_server]
            outcomes += [job["outcome"] for job in json.loads(by_command.stdout)]
            assert by_command.exit_code == 0, "to lose a race is no failure"
            assert outcomes.count("committed") == 1
        else:
            [job] = await bench.client.admin.run_compaction(["t"])
            assert job.outcome is values.CompactionOutcome.COMMITTED
        await bench.client.admin.upload(delete_local=True)
        [records] = await bench.read_all("t")
        assert [(record.key, record.value) for record in records] == [(b"a", b"4"), (b"b", b"4")]
        assert (await bench.client.admin.verify()).finding_count == 0
