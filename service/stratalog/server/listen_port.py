"""The port that a server listens on, tried before gRPC takes it.

gRPC gives the reason of a refusal only in its own log.
"""

from __future__ import annotations

import socket

from stratalog.base.errors import InvalidConfigError
from stratalog.server.configuration.settings import listen_address


def require_free(listen: str, name: str = "listen") -> None:
    """Raise InvalidConfigError if the address is not free, or none of this machine. `name`: its setting."""
    host, port = listen_address(listen, name)
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            # As gRPC does: closing connections of the last server are no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        raise cannot_listen(listen, error.strerror or str(error), name) from None


def cannot_listen(listen: str, reason: str, name: str = "listen") -> InvalidConfigError:
    """The refusal of an address that another process has, or that is none of this machine."""
    return InvalidConfigError(
        "cannot listen on this address; stop the process that has the port, or choose another address",
        name=name,
        value=listen,
        reason=reason,
    )
