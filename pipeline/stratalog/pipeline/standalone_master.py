"""Looks for the master of a standalone cluster before Spark does.

Spark asks a master that is not there for a minute or two, and says then that the context was stopped. A
connection shows the same at once.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

from stratalog.base.errors import InvalidConfigError

TIMEOUT_S = 30.0
"""All masters of a cluster together have so long to accept a connection."""

_SCHEME = "spark://"
_PORT = 7077


def require_master(master: str, timeout_s: float = TIMEOUT_S) -> None:
    """Connect to one of the masters in spark://HOST:PORT[,HOST:PORT...]; other URLs are not looked at.
    Raises InvalidConfigError with the reasons if none accepts within the timeout."""
    if not master.startswith(_SCHEME):
        return
    addresses = list(_addresses(master))
    deadline_s = time.monotonic() + timeout_s
    reasons: list[str] = []
    for number, address in enumerate(addresses):
        # A host that is switched off leaves time for those behind it.
        share_s = max(0.1, deadline_s - time.monotonic()) / (len(addresses) - number)
        reason = _refusal(address, share_s)
        if reason is None:
            return
        reasons.append(f"{address[0]}:{address[1]}: {reason}")
    raise InvalidConfigError(
        "the master of Spark does not answer; start it, or correct --master: the port is the one that its log"
        " names, not that of its web page",
        name="--master",
        value=master,
        reason="; ".join(reasons),
        timeout_s=timeout_s,
    )


def _addresses(master: str) -> Iterator[tuple[str, int]]:
    for text in master.removeprefix(_SCHEME).split(","):
        host, separator, port = text.rpartition(":")
        if not (separator and host and port.isdecimal() and int(port) < 1 << 16):
            raise InvalidConfigError(
                "this is not the URL of a master; correct it",
                name="--master",
                value=master,
                allowed=f"{_SCHEME}HOST:{_PORT}, or several HOST:PORT with commas between them",
            )
        yield host.strip("[]"), int(port)


def _refusal(address: tuple[str, int], timeout_s: float) -> str | None:
    """Why the address accepts no connection; None if it does."""
    try:
        socket.create_connection(address, timeout_s).close()
    except OSError as error:
        return error.strerror or str(error) or "no answer"
    return None
