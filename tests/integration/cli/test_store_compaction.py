"""`stratalog compaction run --store`: compaction of a store by the command itself, without a server and
beside one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stratalog.base import process_tuning
from stratalog.base.clock import SystemClock
from stratalog.base.errors import DataDirectoryError, InvalidConfigError
from stratalog.cli.commands import compaction_commands
from stratalog.cli.main import stratalog
from stratalog.cli.store_access import store_compaction
from stratalog.cli.store_access.store_compaction import CompactionLayers
from stratalog.client import values
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.objectstore.local import LocalObjectStore
from stratalog.objectstore.open_store import open_store
from stratalog.objectstore.protocol import ReadStream
from stratalog.record.record import Record
from stratalog.remote.objects.spool import SCRATCH_SUFFIX
from stratalog.server.metrics import endpoint
from stratalog.server.metrics.endpoint import MetricsEndpoint
from tests.support.compaction.orders_log import stored_orders
from tests.support.service.service_bench import ServiceBench, catalog_elsewhere, service_bench
from tests.support.tiered.s3_servers import S3Server

NO_ROOM = {"remote.compaction.job.memory.bytes": "0", "remote.compaction.scratch.max.bytes": "1"}
HEADER = "PARTITIONS  INPUTS  GETS  RESUMED"


@pytest.fixture(autouse=True)
def unchanged_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command would change the allocator and the garbage collector of the tests."""
    monkeypatch.setattr(process_tuning, "tune_for_jobs", lambda: None)


@pytest.fixture(autouse=True)
def unchanged_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command with `--interval` would change that of the tests."""

    def log(level: str, log_format: str) -> None:
        assert (level, log_format) == ("info", "text")

    monkeypatch.setattr(compaction_commands, "log_to_stderr", log)


def compact(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(stratalog, ["compaction", "run", "--store", url, *arguments])


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def with_config(config: dict[str, str]) -> list[str]:
    return [part for name, value in config.items() for part in ("--config", f"{name}={value}")]


def test_the_plan_changes_nothing_and_the_run_does_it(tmp_path: Path) -> None:
    url = stored_orders(tmp_path)
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
    [job] = json.loads(compact(stored_orders(tmp_path), "orders", "--json").stdout)
    last = shown[-1].progress.compaction
    assert last is not None
    assert (last.done_job_count, last.job_count, last.done_partition_count) == (1, 1, 1)
    assert (last.get_request_count, last.read_bytes) == (job["get_request_count"], job["read_bytes"])
    assert (last.kept_record_count, last.dropped_record_count) == (4, 1)
    assert shown[-1].topics == ("orders",)


def test_settings_of_the_command_are_stronger_than_those_in_the_store(tmp_path: Path) -> None:
    url = stored_orders(tmp_path)
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
        (["--metrics-listen", "127.0.0.1:0"], 2, "--metrics-listen is for --interval"),
        (["--interval", "1", "--metrics-listen", "0.0.0.0:0"], 1, "have neither TLS nor authentication"),
        (["--interval", "1", "--metrics-listen", "9192"], 1, "HOST:PORT"),
        (["orders", "--interval", "1"], 2, "--interval is for what is due"),
        (["nosuch"], 1, "there is no such topic"),
        (["--config", "log.retention.ms=1"], 1, "only the settings of jobs"),
        (["--config", "remote.compaction.merge.fanout=1"], 1, "remote.compaction.merge.fanout"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], code: int, text: str, tmp_path: Path) -> None:
    url = stored_orders(tmp_path)
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


def test_its_process_is_set_up_as_one_of_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one heap each thread keeps blocks that another one has freed, beyond the memory of the job."""
    done: list[str] = []
    for name in ("share_one_heap", "tune_for_jobs"):
        monkeypatch.setattr(process_tuning, name, partial(done.append, name))
    assert compact(stored_orders(tmp_path)).exit_code == 0
    assert done == ["share_one_heap", "tune_for_jobs"]


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
    url = stored_orders(tmp_path)
    before, handler = contents(tmp_path), signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with monkeypatch.context() as patched:
        opened = interrupting(patched, count)
        ended = compact(url, "--interval", "1")
    assert (ended.exit_code, len(opened)) == (130, 1)
    assert contents(tmp_path) == before, "no output, no scratch file"
    assert signal.getsignal(signal.SIGINT) is handler
    assert compact(url).exit_code == 0


@pytest.mark.parametrize("config", [{}, NO_ROOM])
def test_it_goes_on_at_intervals_until_it_is_interrupted(
    config: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(_clock: SystemClock, seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(SystemClock, "sleep", sleep)
    ended = compact(stored_orders(tmp_path), "--interval", "7", *with_config(config))
    assert (ended.exit_code, slept) == (130, [7, 7])
    assert ended.stdout.count(HEADER) == 1, "the second round has found nothing, or leaves it alone"


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


def run_command(*arguments: str) -> Result:
    return CliRunner().invoke(stratalog, ["compaction", *arguments])


def test_what_is_left_alone_outlives_the_command_and_can_be_reset(tmp_path: Path) -> None:
    url = stored_orders(tmp_path)
    state = ["--state-dir", f"{tmp_path}/state"]
    assert run_command("excluded", *state).exit_code == 1, "there is no state yet"
    assert compact(url, *state, *with_config(NO_ROOM)).exit_code == 1
    [found] = json.loads(run_command("excluded", *state, "--json").stdout)
    assert (found["topic"], found["partition"], found["failure_count"]) == ("orders", 0, 1)
    again = compact(url, *state)
    assert again.exit_code == 0
    assert "1 partition stays as it is" in again.stdout, "although there is room now"
    assert json.loads(run_command("excluded", *state, "--json").stdout) == [found]
    shown = run_command("status", *state).stdout
    assert shown.startswith("no compaction runs\n")
    assert "orders-0" in shown
    assert json.loads(run_command("status", *state, "--json").stdout) == []
    assert run_command("reset", "orders", "--partition", "1", *state).stdout.endswith(
        "not excluded because of a failure\n"
    )
    assert run_command("reset", "orders", "--partition", "0", *state).stdout == (
        "the next compaction tries orders-0 again\n"
    )
    assert run_command("excluded", *state).stdout == "no partition is excluded\n"
    assert compact(url, *state).stdout.startswith(HEADER)
    assert run_command("excluded", *state).stdout == "no partition is excluded\n"
    assert list((tmp_path / "state" / "resets").iterdir()) == [], "it is reset once"
    assert compact(url, *state).stdout.startswith("nothing to compact\n")
    assert run_command("status", "--follow", *state).exit_code == 2


def test_a_compactor_that_stays_has_the_metrics_and_the_status_of_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = stored_orders(tmp_path)
    state = ["--state-dir", f"{tmp_path}/state"]
    seen: list[Any] = []
    scraped: list[str] = []
    is_busy: list[bool] = []
    one_at_a_time = threading.Lock()
    inner = LocalObjectStore.open_range
    ports: list[int] = []

    def open_range(
        self: LocalObjectStore, key: str, position: int, size: int, *, if_match: str | None = None
    ) -> ReadStream:
        with one_at_a_time:
            # The first streams are those of the metadata.
            if not seen and (found := json.loads(run_command("status", *state, "--json").stdout)):
                is_busy.append(True)
                seen.extend(found)
                busy = compact(url, *state)
                is_busy.clear()
                assert "another compactor has the state directory" in f"{busy.exception}"
        return inner(self, key, position, size, if_match=if_match)

    def listening(*arguments: Any, **keywords: Any) -> MetricsEndpoint:
        made = MetricsEndpoint(*arguments, **keywords)
        ports.append(made.port)
        return made

    def sleep(_clock: SystemClock, _seconds: float) -> None:
        if is_busy:
            return
        for path in ("metrics", "readyz"):
            with urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/{path}") as answer:
                scraped.append(answer.read().decode())
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalObjectStore, "open_range", open_range)
    monkeypatch.setattr(SystemClock, "sleep", sleep)
    monkeypatch.setattr(endpoint, "MetricsEndpoint", listening)
    ended = compact(url, *state, "--interval", "7", "--metrics-listen", "127.0.0.1:0")
    assert ended.exit_code == 130
    [operation] = seen
    assert (operation["kind"], operation["progress"]["compaction"]["job_count"]) == ("compaction", 1)
    metrics, ready = scraped
    assert ready == "ok\n"
    for line in (
        'stratalog_pass_work_total{noun="jobs",pass="compaction"} 1.0',
        "stratalog_compaction_excluded_partition_count 0.0",
        'stratalog_compaction_due_partition_count{shard="0"} 1.0',
        'stratalog_object_store_requests_total{kind="data",verb="PUT"} 1.0',
    ):
        assert line in metrics
    assert run_command("status", *state).stdout == "no compaction runs\n"


@pytest.mark.parametrize(
    "arguments", [["status"], ["excluded"], ["reset", "orders", "--partition", "0"], ["run", "--store"]]
)
def test_a_file_is_no_state_directory(arguments: list[str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    url = [stored_orders(tmp_path)] if "--store" in arguments else []
    refused = run_command(*arguments, *url, "--state-dir", str(file))
    assert isinstance(refused.exception, InvalidConfigError)
    assert refused.exception.fields["value"] == str(file)


def test_scratch_lies_in_the_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the next compactor removes what a killed one has left."""
    url = stored_orders(tmp_path)
    left = tmp_path / "state" / "scratch" / "0000" / f"left{SCRATCH_SUFFIX}"
    left.parent.mkdir(parents=True)
    left.touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    assert compact(url, "--state-dir", str(tmp_path / "state")).stdout.startswith(HEADER)
    assert list(left.parent.iterdir()) == []
    assert isinstance(compact(url).exception, DataDirectoryError), "there is no other place for scratch"


def test_scratch_of_jobs_is_made_in_the_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    inner = CompactionLayers.settings

    def settings(self: CompactionLayers, in_store: Mapping[str, str], directory: str) -> CompactionSettings:
        made.append(directory)
        return inner(self, in_store, directory)

    monkeypatch.setattr(CompactionLayers, "settings", settings)
    monkeypatch.chdir(tmp_path)
    assert compact(stored_orders(tmp_path), "--state-dir", "state").exit_code == 0
    assert set(made) == {f"{tmp_path}/state/scratch/0000"}


async def two_shards(folder: Path) -> tuple[str, dict[int, list[Path]]]:
    """The URL of a store with something to compact in both shards, and the objects of each."""
    async with service_bench(folder, shard_count=2) as bench:
        await bench.client.admin.create_topic("t", 4, {"cleanup.policy": "compact", "retention.ms": "-1"})
        for number in range(8):
            await bench.client.append("t", number % 4, [Record(0, 1000, b"k", b"%d" % number)])
            await bench.client.admin.upload()
    store = folder / "data.store"
    objects = {shard: sorted((store / f"shards/{shard:04d}/data").iterdir()) for shard in range(2)}
    return f"file://{store}", objects


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_shard_that_cannot_be_opened_does_not_stop_the_others(
    tmp_path: Path, *, is_lost: bool
) -> None:
    url, objects = await two_shards(tmp_path)
    damaged = objects[0][0]
    whole = damaged.read_bytes()
    if is_lost:
        damaged.unlink()
    else:
        damaged.write_bytes(bytes(len(whole)))
    state = ["--state-dir", f"{tmp_path}/state"]
    planned = await asyncio.to_thread(compact, url, "--dry-run", "--json")
    assert planned.exit_code == 1
    assert "error: shard 0 is not planned: " in planned.stderr
    assert [len(job["runs"]) for job in json.loads(planned.stdout)["jobs"]] == [2]
    done = await asyncio.to_thread(compact, url, *state)
    assert done.exit_code == 1
    assert "error: shard 0 is not compacted: " in done.stderr
    assert done.stdout.splitlines()[1].split()[0] == "2", "both partitions of the other one"
    for command in ("status", "excluded"):
        shown = run_command(command, *state)
        assert shown.exit_code == 0
        header, row = shown.stdout.splitlines()[-2:]
        assert (header.split(), row.split()[0]) == (["SHARD", "SINCE", "REASON"], "0")
        in_json = run_command(command, *state, "--json")
        assert (json.loads(in_json.stdout), in_json.stderr.count("shard 0 is not compacted")) == ([], 1)
    arguments = ["verify", "--compaction", "--store", url]
    verified = await asyncio.to_thread(CliRunner().invoke, stratalog, [*arguments, "--json"])
    report = json.loads(verified.stdout)
    assert (verified.exit_code, len(report["partitions"])) == (1, 2)
    [finding] = report["findings"]
    assert (finding["kind"], finding["topic"]) == ("missing" if is_lost else "damaged", "")
    assert finding["object_name"] == f"shards/0000/data/{damaged.name}"
    text = await asyncio.to_thread(CliRunner().invoke, stratalog, arguments)
    assert f"{finding['kind']}: {finding['object_name']}: no partition of shard 0 is proved: " in text.stdout
    damaged.write_bytes(whole)
    again = await asyncio.to_thread(compact, url, *state)
    assert again.exit_code == 0
    assert run_command("excluded", *state).stdout == "no partition is excluded\n"


async def test_a_reset_waits_for_a_shard_that_cannot_be_opened(tmp_path: Path) -> None:
    """The next compaction took it for done, and lost it; and the topics of such a shard lost their names."""
    url, objects = await two_shards(tmp_path)
    state = ["--state-dir", f"{tmp_path}/state"]

    async def compacted(*arguments: str) -> int:
        return (await asyncio.to_thread(compact, url, *state, *arguments)).exit_code

    def excluded() -> set[tuple[str, int]]:
        found = json.loads(run_command("excluded", *state, "--json").stdout)
        return {(one["topic"], one["partition"]) for one in found}

    assert await compacted(*with_config(NO_ROOM)) == 1
    everything = {("t", number) for number in range(4)}
    assert excluded() == everything
    rows = json.loads((tmp_path / "state/0000/exclusions.json").read_text())
    tried = ("t", rows[0][1])
    damaged = objects[0][0]
    whole = damaged.read_bytes()
    damaged.unlink()
    assert await compacted() == 1
    assert excluded() == everything
    reset = run_command("reset", "t", "--partition", str(tried[1]), *state)
    assert reset.stdout == f"the next compaction tries t-{tried[1]} again\n"
    assert await compacted() == 1
    assert len(list((tmp_path / "state/resets").iterdir())) == 1, "it waits"
    damaged.write_bytes(whole)
    assert await compacted() == 0
    assert excluded() == everything - {tried}
    assert list((tmp_path / "state/resets").iterdir()) == []


async def test_a_compactor_that_stays_opens_a_shard_once_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url, objects = await two_shards(tmp_path)
    damaged = objects[1][0]
    whole = damaged.read_bytes()
    damaged.unlink()
    turns: list[str] = []

    def sleep(_clock: SystemClock, _seconds: float) -> None:
        turns.append(caplog.text)
        if len(turns) == 2:
            damaged.write_bytes(whole)
        if len(turns) == 3:
            raise KeyboardInterrupt

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(SystemClock, "sleep", sleep)
    ended = await asyncio.to_thread(compact, url, "--interval", "7")
    assert (ended.exit_code, ended.stdout.count(HEADER)) == (130, 2)
    failed = "compaction failed, and is tried again: shard 1: "
    assert [text.count(failed) for text in turns] == [1, 1, 1], "it is logged when it begins"
    assert [text.count("compaction works again") for text in turns] == [0, 0, 1]
