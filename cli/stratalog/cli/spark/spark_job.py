"""The cluster of a command."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stratalog.cli.interrupts import interrupted_by_signals

if TYPE_CHECKING:
    from stratalog.pipeline.job_cluster import JobCluster


@contextmanager
def spark_job(command: str, master: str, conf: Mapping[str, str]) -> Generator[JobCluster]:
    """The cluster of a command with this name, from the options that `spark_options` adds. Spark starts with
    the first task, so all errors that need none come at once. Raises KeyboardInterrupt at a signal."""
    from stratalog.pipeline.job_cluster import job_cluster

    with interrupted_by_signals(), job_cluster(f"stratalog {command}", master, conf) as cluster:
        yield cluster
