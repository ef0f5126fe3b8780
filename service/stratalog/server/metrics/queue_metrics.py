"""The metrics of what requests wait for: threads, memory, and space in log directories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from stratalog.server.metrics.families import counter, counters, gauge, gauges
from stratalog.server.partitions.free_space import FreeSpace
from stratalog.server.request_memory import RequestMemories
from stratalog.server.worker_pools import PoolUse


def of_pools(
    pools: Mapping[str, PoolUse], cold_refused_count: int, throttled_reads_s: float
) -> Iterator[Metric]:
    """Yield the thread pools of requests."""
    for name, text, values in (
        ("threads", "Threads of the pool.", {key: one.thread_count for key, one in pools.items()}),
        (
            "waiting_tasks",
            "Tasks that wait for one of them.",
            {key: one.waiting_count for key, one in pools.items()},
        ),
    ):
        yield gauges("server_pool_" + name, text, "pool", values)
    yield counter(
        "server_refused_cold_reads",
        "Reads of tiered data that were refused because too many were waiting.",
        cold_refused_count,
    )
    yield counter(
        "server_throttled_cold_reads_seconds",
        "Time in which reads of tiered data waited for their rate.",
        throttled_reads_s,
    )


def of_memories(memories: RequestMemories) -> Iterator[Metric]:
    """Yield the memory of requests under way."""
    by_kind = {"append": memories.appends, "fetch": memories.fetches}
    for name, text, values in (
        ("bytes", "Memory of requests.", {kind: one.held_bytes for kind, one in by_kind.items()}),
        ("capacity_bytes", "The most of it.", {kind: one.limit_bytes for kind, one in by_kind.items()}),
    ):
        yield gauges("server_request_memory_" + name, text, "kind", values)
    for name, text, counts in (
        (
            "refusals",
            "Requests that were refused for want of memory.",
            {kind: one.refused_count for kind, one in by_kind.items()},
        ),
        (
            "reductions",
            "Answers that got less memory than they asked for.",
            {kind: one.reduced_count for kind, one in by_kind.items()},
        ),
    ):
        yield counters(
            "server_request_memory_" + name, text, ("kind",), (((key,), one) for key, one in counts.items())
        )


def of_space(space: FreeSpace) -> Iterator[Metric]:
    """Yield the free space of the log directories, as it was last measured."""
    yield gauges(
        "log_manager_log_directory_free_bytes",
        "Free space of the log directory, as it was last measured.",
        "log_directory",
        space.free_bytes,
    )
    yield gauge(
        "log_manager_min_free_bytes",
        "Free space below which appends are refused, or segments dropped.",
        space.min_free_bytes,
    )
    short = space.shortages
    yield gauges(
        "log_manager_log_directory_short_of_space",
        "1 if appends are refused, or segments dropped: from the floor on until a quarter more is free.",
        "log_directory",
        {path: int(path in short) for path in sorted({*space.free_bytes, *short})},
    )
