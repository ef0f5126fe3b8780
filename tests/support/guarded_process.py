"""A server of a test that ends with it, however it ends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Final, cast

_STOP_TIMEOUT_S: Final = 10.0


@contextmanager
def guarded_process(
    command: Sequence[str], directory: str, environment: Mapping[str, str]
) -> Generator[None]:
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
