"""`stratalog dev s3` serves a store that a server can use, until it is interrupted."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from stratalog.base.clock import SystemClock
from stratalog.cli.dev.local_stores import ACCESS_KEY, LOCAL_STORES, SECRET_KEY
from stratalog.cli.main import stratalog
from stratalog.objectstore.probe import require_conditional_writes
from stratalog.objectstore.s3 import S3ObjectStore
from stratalog.objectstore.s3_settings import S3Settings
from stratalog.testing.sequential_ids import SequentialIds

TIMEOUT_S = 60


@contextmanager
def serving(*arguments: str, wanted_code: int = 0) -> Generator[S3ObjectStore]:
    """The store that the command names, while the command runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "stratalog.cli", "dev", "s3", *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(5)]
        text = "".join(lines)
        [url] = re.findall(r"^export STRATALOG_STORE='(.*)'$", text, re.MULTILINE)
        assert f"export AWS_ACCESS_KEY_ID={ACCESS_KEY} AWS_SECRET_ACCESS_KEY={SECRET_KEY}\n" in lines
        named = S3Settings.from_url(url)
        settings = S3Settings(
            bucket=named.bucket,
            prefix=named.prefix,
            endpoint_url=named.endpoint_url,
            region="us-east-1",
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
        )
        store = S3ObjectStore(SystemClock(), settings)
        yield store
        store.close()
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(TIMEOUT_S)
        process.stdout.close()
    assert code == wanted_code
    port = int((named.endpoint_url or "").rpartition(":")[2])
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0, "the server ends with the command"


def skip_without(kind: str) -> None:
    try:
        LOCAL_STORES[kind].find()
    except click.ClickException as missing:
        pytest.skip(missing.message)


@pytest.mark.parametrize("kind", LOCAL_STORES)
def test_a_store_takes_what_a_server_needs(kind: str) -> None:
    skip_without(kind)
    with serving(kind) as store:
        require_conditional_writes(store, SequentialIds(1))
        store.put("key", b"data")
        assert store.get("key").data == b"data"


@pytest.mark.parametrize("kind", [kind for kind, store in LOCAL_STORES.items() if store.keeps_data])
def test_a_directory_keeps_the_objects(kind: str, tmp_path: Path) -> None:
    skip_without(kind)
    with serving(kind, "--data", f"{tmp_path}/objects") as store:
        store.put("key", b"data")
    with serving(kind, "--data", f"{tmp_path}/objects") as store:
        assert store.get("key").data == b"data"


@pytest.mark.parametrize(("kind", "remedy"), [("moto", "pip install"), ("minio", "make minio")])
def test_a_program_that_is_missing_is_named_with_its_remedy(
    kind: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", f"{tmp_path}/python")
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    monkeypatch.delenv(LOCAL_STORES[kind].variable, raising=False)
    result = CliRunner().invoke(stratalog, ["dev", "s3", kind])
    assert result.exit_code == 1
    assert LOCAL_STORES[kind].program in result.stderr
    assert remedy in result.stderr


def test_a_port_that_is_taken_and_a_directory_for_moto_are_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(stratalog, ["dev", "s3", "moto", "--port", str(port)])
        assert (result.exit_code, f"port {port} is taken" in result.stderr) == (1, True)
    result = CliRunner().invoke(stratalog, ["dev", "s3", "moto", "--data", f"{tmp_path}"])
    assert (result.exit_code, "--data" in result.stderr) == (2, True)


def test_a_program_that_ends_at_once_is_reported_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "broken"
    program.write_text("#!/bin/sh\necho no luck today\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("STRATALOG_MOTO", str(program))
    result = CliRunner().invoke(stratalog, ["dev", "s3", "moto", "--port", "0"])
    assert result.exit_code == 1
    assert "no luck today" in result.stderr
