"""Hashes of keys with few values, so that many keys have the same one."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
import pyarrow as pa

from stratalog.pipeline.lake import key_hashes

if TYPE_CHECKING:
    from stratalog.pipeline.lake.pure_key_hashes import Hashes

_USERS = ("changed_keys", "dead_row_search", "last_offsets")


@contextmanager
def coarse_hashes(count: int | None) -> Generator[None]:
    """Keys have so many hashes in the block, over the whole range of hashes; None leaves them as they are."""
    if count is None:
        yield
        return
    exact = key_hashes.key_hashes

    def coarse(rows: pa.Table | pa.RecordBatch) -> Hashes:
        return exact(rows) % np.uint64(count) * np.uint64(((1 << 64) - 1) // count)

    with ExitStack() as patches:
        for name in _USERS:
            patches.enter_context(mock.patch(f"stratalog.pipeline.lake.{name}.key_hashes", coarse))
        yield
