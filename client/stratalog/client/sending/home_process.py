"""The process that a client belongs to."""

from __future__ import annotations

import os

from stratalog.client.errors import ClientClosedError


class HomeProcess:
    """The process that made a client, and has its threads and connections. A fork of it has neither, so
    nothing that it waits for would come. Immutable.
    """

    __slots__ = ("_process_id",)

    def __init__(self) -> None:
        self._process_id = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is the process."""
        return os.getpid() == self._process_id

    def require(self, **fields: object) -> None:
        """Raise ClientClosedError with these fields in a forked process."""
        if not self.is_here:
            raise ClientClosedError(
                "the client belongs to the parent process; make a client in this one", **fields
            )
