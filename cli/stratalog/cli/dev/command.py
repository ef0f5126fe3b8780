"""`stratalog dev`: servers for trials and tests on this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click

from stratalog.base.clock import SystemClock
from stratalog.base.errors import StoreError
from stratalog.cli.dev.local_stores import (
    ACCESS_KEY,
    BUCKET,
    HOST,
    LOCAL_STORES,
    SECRET_KEY,
    Launch,
    ServerPlace,
    free_port,
    is_free,
)
from stratalog.cli.interrupts import interrupted_by_signals
from stratalog.cli.options import environment_option, require_unicode

REGION: Final = "us-east-1"
_READY_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 10.0
_TAIL_CHARACTERS: Final = 500


@click.group()
def dev() -> None:
    """Serve a local store for trials and tests."""


@dev.command()
@click.argument("kind", type=click.Choice(list(LOCAL_STORES)), default="moto")
@click.option(
    "--data",
    callback=require_unicode,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep the objects in this directory. Default: a temporary one. moto keeps nothing.",
)
@environment_option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=9000,
    envvar="STRATALOG_DEV_PORT",
    help="Port of the server on 127.0.0.1; 0 takes a free one.",
)
def s3(kind: str, data: Path | None, port: int) -> None:
    """Serve a local S3 store until Ctrl-C.

    The store has a bucket. Prints the lines to export in the shell in which a server is started. KIND is moto
    (in memory, for tests), seaweedfs or minio. Not for data that must last.

    \b
    Examples:
      stratalog dev s3 moto
      stratalog dev s3 seaweedfs --port 9000
    """
    store = LOCAL_STORES[kind]
    program = store.find()
    if data is not None and not store.keeps_data:
        raise click.UsageError(
            f"{kind} keeps its objects in memory; leave out --data, or choose another kind"
        )
    if port and not is_free(port):
        raise click.ClickException(f"port {port} is taken; choose another one with --port, or 0")
    port = port or free_port()
    with interrupted_by_signals(), _directory(data) as directory, suppress(KeyboardInterrupt):
        launch = store.launch(ServerPlace(program, port, directory))
        with _running(launch, directory.parent if data else directory) as (process, log):
            _make_bucket(f"http://{HOST}:{port}", process, log)
            for line in _lines(kind, port):
                click.echo(line)
            code = process.wait()
            raise click.ClickException(f"{kind} has ended with {code}: {_tail(log)}")


def _lines(kind: str, port: int) -> list[str]:
    url = f"s3://{BUCKET}/store?endpoint=http://{HOST}:{port}"
    return [
        f"# {kind} serves http://{HOST}:{port} until Ctrl-C. In another shell:",
        f"export AWS_ACCESS_KEY_ID={ACCESS_KEY} AWS_SECRET_ACCESS_KEY={SECRET_KEY}",
        f"export AWS_DEFAULT_REGION={REGION}",
        f"export STRATALOG_STORE='{url}'",
        "# stratalog server start --data-dir DIR",
    ]


@contextmanager
def _directory(data: Path | None) -> Generator[Path]:
    if data is None:
        with TemporaryDirectory(prefix="stratalog-dev-s3-", ignore_cleanup_errors=True) as made:
            yield Path(made)
        return
    data.mkdir(parents=True, exist_ok=True)
    yield data.absolute()


@contextmanager
def _running(launch: Launch, home: Path) -> Generator[tuple[subprocess.Popen[bytes], Path]]:
    """The server's process, which ends with the block, and the file with its output."""
    environment: Mapping[str, str] = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home)}
    with TemporaryDirectory(prefix="stratalog-dev-log-") as made:
        log = Path(made, "server.log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                launch.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=made,
                env={**environment, "TMPDIR": made, **launch.environment},
                # Ctrl-C reaches this process alone, which then ends the server.
                start_new_session=True,
            )
        try:
            yield process, log
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _make_bucket(endpoint_url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Make the bucket as soon as the server answers. Raises click.ClickException if it ends before, or does
    not answer in time."""
    # Importing boto3 takes 0.2 s, which `--help` does not need.
    from stratalog.objectstore.s3 import S3ObjectStore
    from stratalog.objectstore.s3_settings import S3Settings

    clock = SystemClock()
    settings = S3Settings(
        bucket=BUCKET,
        endpoint_url=endpoint_url,
        region=REGION,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
    )
    store = S3ObjectStore(clock, settings)
    deadline_s = clock.monotonic_s() + _READY_TIMEOUT_S
    try:
        while True:
            try:
                store.make_bucket()
                return
            except StoreError as error:
                if process.poll() is not None:
                    raise click.ClickException(f"the server did not start: {_tail(log)}") from error
                if clock.monotonic_s() > deadline_s:
                    raise click.ClickException(f"the server does not answer: {error}") from error
            clock.sleep(0.05)
    finally:
        store.close()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-_TAIL_CHARACTERS:] or "it said nothing"
