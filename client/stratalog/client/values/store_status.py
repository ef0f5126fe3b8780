"""The state of a whole store: that of each server that owns shards of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.base.errors import LogStoreError

if TYPE_CHECKING:
    # A client that does not look at the tiers does not import their values.
    from stratalog.client.values.tier_values import TierStatus


class ServerStatus(NamedTuple):
    """The answer of a server, or the reason why there is none."""

    server: str
    """HOST:PORT."""
    status: TierStatus | None
    error: LogStoreError | None


class StoreStatus(NamedTuple):
    """The answer of one server, and those of the owners of the shards that it leaves to others."""

    server: str
    """HOST:PORT of the first server."""
    status: TierStatus
    """Its answer. It knows the contents of all shards, as of its last look."""
    others: tuple[ServerStatus, ...]
    """By address; none if the server owns all shards, or follows them all."""
