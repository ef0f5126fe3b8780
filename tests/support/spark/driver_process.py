"""A driver in a process of its own, which a test kills, and the beginning of its program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.places import REPOSITORY
from tests.support.spark.standalone_cluster import StandaloneCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT_S = 300.0


class DriverProcess:
    """A program that runs on the cluster. Not thread-safe: one test uses it."""

    def __init__(self, cluster: StandaloneCluster, program: str, *arguments: str) -> None:
        """`program` is a module of `tests.support.spark`; its first argument is the master, and the pairs of
        the cluster's configuration come last."""
        conf = [f"{key}={value}" for key, value in cluster.conf().items()]
        command = [sys.executable, "-m", f"tests.support.spark.{program}", cluster.url, *arguments, *conf]
        paths = os.pathsep.join([*filter(None, sys.path), str(REPOSITORY)])
        self._log = cluster.directory / f"{program}.log"
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                command, env={**os.environ, "PYTHONPATH": paths}, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def require_running(self) -> None:
        assert self._process.poll() is None, self._end_of_log()

    def succeed(self) -> None:
        """Wait until it ends, which it must do well."""
        code = self._ended()
        assert code == 0, (code, self._end_of_log())

    def die(self) -> None:
        """Wait until it is killed, as it has asked for."""
        code = self._ended()
        assert code == -signal.SIGKILL, (code, self._end_of_log())

    def kill(self) -> None:
        """End it and its JVM, if they run: its session is its own."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _ended(self) -> int:
        try:
            return self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"the driver does not end: {self._end_of_log()}") from error
        finally:
            self.kill()

    def _end_of_log(self) -> str:
        return Path(self._log).read_text(errors="replace")[-3000:]


@contextmanager
def driver_session(master: str, conf: Sequence[str]) -> Generator[SparkSession]:
    """The session of such a program, by KEY=VALUE pairs."""
    from pyspark.sql import SparkSession

    from stratalog.pipeline.source.data_source import StratalogDataSource

    builder = SparkSession.builder.master(master).appName("driver")
    for pair in conf:
        key, _, value = pair.partition("=")
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.dataSource.register(StratalogDataSource)
    try:
        yield session
    finally:
        session.stop()
