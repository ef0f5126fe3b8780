"""The protocol by which a process reports its state to systemd: a datagram to the socket in NOTIFY_SOCKET."""

from __future__ import annotations

import logging
import os
import socket

logger = logging.getLogger(__name__)


def notify_service_manager(state: str) -> None:
    """Report a state, such as `READY=1`. Does nothing if the manager asks for none; logs a failure."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    # A name that begins with @ is in the abstract namespace of Linux.
    place = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.sendto(state.encode(), place)
    except OSError as failure:
        logger.warning("the service manager does not take the state %s: %s", state, failure)
