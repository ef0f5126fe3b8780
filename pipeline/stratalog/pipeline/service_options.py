"""The options of the data source that name a running service. Light to import: nothing of grpc is loaded
before a connection is made.

The sink and the tail of a scan connect so. A token has no option, only its file has: so a plan, an error and
the history of Spark show the names of files and no secret. Each executor reads the files when it connects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.base.errors import InvalidConfigError
from stratalog.pipeline.option_names import wrong_option

if TYPE_CHECKING:
    from stratalog.client.access.credentials import Credentials
    from stratalog.client.blocking.sync_client import SyncClient
    from stratalog.client.client import Client
    from stratalog.client.retry import RetryPolicy

SERVER = "server"
"""The name of the option for the address."""

_CREDENTIALS = {"tlsCa": "tls_ca", "tlsCert": "tls_cert", "tlsKey": "tls_key", "tokenFile": "token_file"}
"""The fields of the client's credentials, by the names of their options."""

SERVICE_OPTIONS = (SERVER, *_CREDENTIALS)
"""The names of all options here."""

_FORM = "HOST:PORT, or several with commas between them: the servers of one store"


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The service of a query. Immutable, pickled to the executors; holds no secret."""

    addresses: str
    """HOST:PORT, or several with commas between them."""
    tls_ca: str = ""
    """A path on the driver and on each executor, as the following ones: see the client's `Credentials`."""
    tls_cert: str = ""
    tls_key: str = ""
    token_file: str = ""

    def client(self, retry: RetryPolicy | None = None) -> Client:
        """A client on the running event loop. Close it. It connects when it is first used."""
        from stratalog.client.client import Client

        return Client(self.addresses, retry=retry, credentials=self.credentials())

    def sync_client(self, retry: RetryPolicy | None = None) -> SyncClient:
        """A client for a thread without an event loop. Close it. It connects when it is first used."""
        from stratalog.client.blocking.sync_client import SyncClient

        return SyncClient(self.addresses, retry=retry, credentials=self.credentials())

    def credentials(self) -> Credentials:
        """The credentials of its clients. Raises InvalidRequestError for those that do not fit together."""
        from stratalog.client.access.credentials import Credentials

        return Credentials(
            tls_ca=self.tls_ca, tls_cert=self.tls_cert, tls_key=self.tls_key, token_file=self.token_file
        )


def parse_service(options: Mapping[str, str]) -> ServiceOptions | None:
    """The service that the options name; None if they name none. Raises InvalidConfigError for an address
    that is malformed, and for credentials without an address."""
    text = options.get(SERVER)
    if text is None:
        useless = next((name for name in _CREDENTIALS if options.get(name)), None)
        if useless is not None:
            raise InvalidConfigError(
                f"the option {useless} is for connections to a server; set the option {SERVER}, too",
                name=useless,
            )
        return None
    addresses = [address.strip() for address in text.split(",")]
    if not all(map(_is_address, addresses)):
        raise wrong_option(SERVER, text, _FORM)
    files = {field: options.get(name, "") for name, field in _CREDENTIALS.items()}
    if bool(files["tls_cert"]) is not bool(files["tls_key"]):
        raise InvalidConfigError(
            "a client certificate needs its key; set both options or neither",
            name="tlsCert" if files["tls_key"] else "tlsKey",
        )
    return ServiceOptions(",".join(addresses), **files)


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
