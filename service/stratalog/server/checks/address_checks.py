"""Checks of the addresses of a start: free to listen on, and known by their names."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from stratalog.base.errors import InvalidConfigError
from stratalog.server.checks.start_check import CheckedStart, Finding, Verdict
from stratalog.server.configuration.settings import listen_address
from stratalog.server.listen_port import require_free


def addresses(start: CheckedStart) -> Iterator[Finding]:
    """The addresses that the server listens on, which are taken for a moment and given back."""
    settings = start.settings
    if settings.metrics_listen == settings.listen and listen_address(settings.listen)[1]:
        yield Finding(
            "metrics-listen",
            Verdict.ERROR,
            f"{settings.listen} is the address of the server itself; give metrics another port",
        )
        return
    for name, address in (("listen", settings.listen), ("metrics-listen", settings.metrics_listen)):
        if address:
            yield _free(name, address)


def advertised(start: CheckedStart) -> Iterator[Finding]:
    """The name that clients are given: this machine can look it up."""
    endpoint = start.settings.endpoint(listen_address(start.settings.listen)[1])
    host, port = listen_address(endpoint)
    try:
        socket.getaddrinfo(host.strip("[]"), port or None, type=socket.SOCK_STREAM)
    except OSError as failure:
        text = f"no address is found for {host}, which clients are given ({failure.strerror}); set advertise"
        yield Finding("advertise", Verdict.WARNING, text)
    else:
        yield Finding("advertise", Verdict.OK, f"clients are given {endpoint if port else host}")


def _free(name: str, address: str) -> Finding:
    try:
        require_free(address, name)
    except InvalidConfigError as refusal:
        return Finding(name, Verdict.ERROR, str(refusal))
    return Finding(name, Verdict.OK, f"{address} is free")
