"""s2-lite, an open log store over an object store, and its own benchmark: the program `s2` of the crate
`s2-cli`.

`$S2` names the program; without it, `s2` is looked for on PATH. The store is a directory. s2-lite
acknowledges records once the object with them is written and fsynced there.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence

START_S = 30
BASIN = "stratalog-bench"
MIB = 1 << 20
_WRITTEN = re.compile(r"Write: .* records/s \((\d+) bytes, (\d+) records in ([0-9.]+)s\)")


def program() -> str | None:
    """The path of `s2`; None if it is not at hand."""
    return shutil.which(os.environ.get("S2", "s2"))


@contextlib.contextmanager
def running(s2: str, folder: str) -> Generator[Mapping[str, str]]:
    """A server over a directory, with a basin; gives the environment of its clients."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://localhost:{port}"
    environment = os.environ | {
        "S2_ACCESS_TOKEN": "unused",
        "S2_ACCOUNT_ENDPOINT": address,
        "S2_BASIN_ENDPOINT": address,
    }
    command = [s2, "lite", "--local-root", folder, "--port", str(port), "--no-dashboard"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _make_basin(s2, environment)
            yield environment
        finally:
            server.terminate()


def write_rate(
    s2: str, environment: Mapping[str, str], stream_count: int, record_bytes: int, duration_s: int
) -> float:
    """Bytes of records in a second that `s2 bench` writes to so many streams at once, each by a process that
    reads them back meanwhile."""
    command = [s2, "bench", "--record-size", str(record_bytes), "--target-mibps", "1000"]
    command += ["--duration", f"{duration_s}s", "--catchup-delay", "0s", BASIN]
    streams = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(stream_count)
    ]
    return sum(_rate(stream.communicate()[0]) for stream in streams)


def _rate(output: str) -> float:
    written: Sequence[str] = _WRITTEN.findall(output)[-1]
    size_bytes, _, spent_s = written
    return int(size_bytes) / float(spent_s)


def _make_basin(s2: str, environment: Mapping[str, str]) -> None:
    end_s = time.monotonic() + START_S
    while True:
        made = subprocess.run(
            [s2, "create-basin", BASIN], env=environment, capture_output=True, text=True, check=False
        )
        if made.returncode == 0:
            return
        if time.monotonic() > end_s:
            raise RuntimeError(f"s2-lite does not answer: {made.stderr}")
        time.sleep(0.1)
