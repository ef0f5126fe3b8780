"""A command as a reader and writer of a store."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratalog.remote.metadata.head.head_log import StoreActor


@contextmanager
def store_actor(url: str, kind: str) -> Generator[StoreActor]:
    """The actor on the store that `url` names; `kind` is the writer of its commits. Raises StoreError if
    there is no store."""
    from stratalog.base.clock import SystemClock
    from stratalog.base.randomness import SystemIdGenerator, system_random
    from stratalog.objectstore.open_store import open_store
    from stratalog.remote.lanes import LANE_COUNT
    from stratalog.remote.metadata.head.commit import Writer
    from stratalog.remote.metadata.head.head_log import StoreActor
    from stratalog.remote.metadata.head.page_loader import PageLoader
    from stratalog.remote.store_identity import StoreIdentity
    from stratalog.server.worker_pools import running_together

    clock, ids = SystemClock(), SystemIdGenerator()
    store = open_store(url, clock=clock, ids=ids)
    with running_together(LANE_COUNT) as run_all, closing(store):
        writer = Writer(kind, f"{socket.gethostname()}:{os.getpid()}")
        yield StoreActor(
            store=store,
            clock=clock,
            random_source=system_random(),
            ids=ids,
            identity=StoreIdentity.open(store),
            writer=writer,
            loader=PageLoader(run_all=run_all),
        )
