"""Starting and stopping: what is refused, in one line, and what a clean stop leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.base.errors import DataDirectoryError, DataDirectoryInUseError, InvalidConfigError
from tests.support.service.server_process import ServerProcess
from tests.support.service.service_bench import service_bench

MUST_NOT_START = "it must not start"


def run_server(*options: str, interpreter_options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """`stratalog server start` as a user would see it end."""
    program = "import sys; from stratalog.cli.main import main; sys.argv[:1] = ['stratalog']; main()"
    return subprocess.run(
        [sys.executable, *interpreter_options, "-c", program, "server", "start", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def only_error(ended: subprocess.CompletedProcess[str]) -> str:
    """The one line that it printed; it must have failed with 1."""
    assert ended.returncode == 1, ended
    errors = [line for line in ended.stderr.splitlines() if " INFO stratalog." not in line]
    assert len(errors) == 1, ended.stderr
    assert errors[0].startswith("error: ")
    return errors[0]


async def test_a_data_directory_has_one_server(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        with pytest.raises(DataDirectoryInUseError):
            async with service_bench(tmp_path):
                raise AssertionError(MUST_NOT_START)
        assert "another process has" in only_error(
            run_server("--data-dir", f"{tmp_path}/data", "--listen", "127.0.0.1:0")
        )
        assert bench.server.engine.tier.shards.is_replaced is False
        await bench.client.admin.create_topic("still-here")


async def test_a_port_has_one_server_and_a_wrong_one_claims_nothing(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        listen = bench.client.address
        store_url = f"file://{tmp_path}/data.store"
        with pytest.raises(InvalidConfigError) as refusal:
            async with service_bench(tmp_path / "other", listen=listen, store_url=store_url):
                raise AssertionError(MUST_NOT_START)
        assert listen in refusal.value.fields.values()
        error = only_error(
            run_server("--data-dir", f"{tmp_path}/x", "--listen", listen, "--store", store_url)
        )
        assert "already in use" in error
        # Neither try has taken the store away from the one that runs.
        bench.server.engine.tier.manager.refresh_pass()
        await bench.client.admin.create_topic("still-here")


async def test_a_data_directory_belongs_to_one_store(tmp_path: Path) -> None:
    another = f"file://{tmp_path}/another"
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t")
    with pytest.raises(DataDirectoryError) as failure:
        async with service_bench(tmp_path, store_url=another):
            raise AssertionError(MUST_NOT_START)
    assert failure.value.fields["wanted_store"] == another
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "data.store"]
    async with service_bench(tmp_path / "other", store_url=another):
        pass
    before = sorted((tmp_path / "another").rglob("*"))
    with pytest.raises(DataDirectoryError) as failure:
        async with service_bench(tmp_path, store_url=another):
            raise AssertionError(MUST_NOT_START)
    assert failure.value.fields.keys() == {"path", "store_id", "wanted_store_id"}
    assert sorted((tmp_path / "another").rglob("*")) == before
    async with service_bench(tmp_path) as bench:
        assert len(await bench.client.admin.list_topics()) == 1


def test_python_without_assertions_is_refused(tmp_path: Path) -> None:
    ended = run_server(
        "--data-dir", f"{tmp_path}/data", "--listen", "127.0.0.1:0", interpreter_options=("-O",)
    )
    assert "python -O" in only_error(ended)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--store", "ftp://host/x"), "not the url of an object store"),
        (("--store", "s3://bucket?endpoint=http://127.0.0.1:1&region=x"), "error"),
        (("--listen", "nowhere"), "HOST:PORT"),
        (("--listen", "256.0.0.1:0", "--insecure", "--log-level", "error"), "cannot listen"),
        (("--advertise", "[::]:9190"), "advertise the host's name"),
        (("--data-dir", "/proc/stratalog"), "log directory"),
        (("--data-dir", __file__), "it must be a directory"),
    ],
)
def test_a_setting_that_cannot_work_is_one_line(tmp_path: Path, options: tuple[str, ...], part: str) -> None:
    defaults = ("--data-dir", f"{tmp_path}/data", "--listen", "127.0.0.1:0")
    environment = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        assert part in only_error(run_server(*defaults, *options))


def test_a_store_in_the_data_directory_is_one_line_and_makes_neither(tmp_path: Path) -> None:
    options = ("--data-dir", f"{tmp_path}/data", "--store", f"file://{tmp_path}/data/inner")
    assert "one inside the other" in only_error(run_server(*options, "--listen", "127.0.0.1:0"))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_option_is_a_usage_error() -> None:
    ended = run_server()
    assert ended.returncode == 2
    assert "--data-dir" in ended.stderr


def test_settings_come_from_the_environment_too(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRATALOG_LISTEN", "nowhere")
        patch.setenv("STRATALOG_DATA_DIR", str(tmp_path))
        assert "HOST:PORT" in only_error(run_server())


def test_a_signal_stops_it_cleanly(tmp_path: Path) -> None:
    with ServerProcess(f"{tmp_path}/data") as server:
        assert server.stop() == 0
        assert "Traceback" not in server.said
    marker = [path.name for path in (tmp_path / "data").iterdir() if "clean" in path.name]
    assert marker, "the marker of a clean shutdown is there"
