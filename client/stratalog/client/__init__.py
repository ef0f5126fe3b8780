"""The Python client: asynchronous first, with a synchronous face. Imports nothing of the server.

`Client`, `SyncClient`, `Credentials` and `AppendRecord` can be imported from here. They are loaded when they
are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratalog.client.access.credentials import Credentials as Credentials
    from stratalog.client.append_record import AppendRecord as AppendRecord
    from stratalog.client.blocking.sync_client import SyncClient as SyncClient
    from stratalog.client.client import Client as Client

_MODULES = {
    "AppendRecord": "stratalog.client.append_record",
    "Client": "stratalog.client.client",
    "Credentials": "stratalog.client.access.credentials",
    "SyncClient": "stratalog.client.blocking.sync_client",
}


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)
