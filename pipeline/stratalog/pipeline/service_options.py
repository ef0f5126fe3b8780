"""The options of the data source that name a running service. Light to import: nothing of grpc is loaded
before a connection is made.

The sink and the tail of a scan connect so. There is one option, because the client has no others: its
connections are neither encrypted nor authenticated, so there is no secret that could get into a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.base.errors import InvalidConfigError
from stratalog.pipeline.option_names import wrong_option

if TYPE_CHECKING:
    from stratalog.client.blocking.sync_client import SyncClient
    from stratalog.client.client import Client
    from stratalog.client.retry import RetryPolicy

SERVER = "server"
"""The name of the option."""

_FORM = "HOST:PORT, or several with commas between them: the servers of one store"


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The service of a query. Immutable, pickled to the executors; holds no secret."""

    addresses: str
    """HOST:PORT, or several with commas between them."""

    def client(self, retry: RetryPolicy | None = None) -> Client:
        """A client on the running event loop. Close it. It connects when it is first used."""
        from stratalog.client.client import Client

        return Client(self.addresses, retry=retry)

    def sync_client(self, retry: RetryPolicy | None = None) -> SyncClient:
        """A client for a thread without an event loop. Close it. It connects when it is first used."""
        from stratalog.client.blocking.sync_client import SyncClient

        return SyncClient(self.addresses, retry=retry)


def parse_service(options: Mapping[str, str]) -> ServiceOptions | None:
    """The service that the options name; None if they name none. Raises InvalidConfigError for an address
    that is malformed."""
    text = options.get(SERVER)
    if text is None:
        return None
    addresses = [address.strip() for address in text.split(",")]
    if not all(map(_is_address, addresses)):
        raise wrong_option(SERVER, text, _FORM)
    return ServiceOptions(",".join(addresses))


def require_service(options: Mapping[str, str]) -> ServiceOptions:
    """The service that the options name. Raises InvalidConfigError if they name none, or a malformed
    address."""
    service = parse_service(options)
    if service is None:
        raise InvalidConfigError(f"set .option({SERVER!r}, ...): {_FORM}", name=SERVER)
    return service


def _is_address(address: str) -> bool:
    host, separator, port = address.rpartition(":")
    return bool(separator and host) and "/" not in host and port.isdecimal()
