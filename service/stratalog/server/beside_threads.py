"""Threads for the requests of a compaction job that its work need not wait for."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from stratalog.base.scheduler import RunBeside


@contextmanager
def running_beside(thread_count: int) -> Generator[RunBeside]:
    """Up to so many threads, which start when they are needed. The end waits for what runs. Not for a call
    that waits for another one."""
    with ThreadPoolExecutor(thread_count, thread_name_prefix="stratalog-beside") as threads:
        yield threads.submit
