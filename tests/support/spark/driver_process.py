"""A driver in a process of its own, which a test kills, and the beginning of its program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.places import REPOSITORY
from tests.support.spark.standalone_cluster import StandaloneCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT_S = 300.0
_MAX_START_COUNT = 4
_SLOW_MACHINE = b"Python worker failed to connect back"
"""Spark gives the Python of a stream's source ten seconds, which no setting changes."""


class DriverProcess:
    """A program that runs on the cluster. Not thread-safe: one test uses it."""

    def __init__(self, cluster: StandaloneCluster, program: str, *arguments: str) -> None:
        """`program` is a module of `tests.support.spark`; its first argument is the master, and the pairs of
        the cluster's configuration come last."""
        conf = [f"{key}={value}" for key, value in cluster.conf().items()]
        self._command = [sys.executable, "-m", f"tests.support.spark.{program}"]
        self._command += [cluster.url, *arguments, *conf]
        self._log = cluster.directory / f"{program}.log"
        self._log.touch()
        self._start_count = 0
        self._start()

    def _start(self) -> None:
        paths = os.pathsep.join([*filter(None, sys.path), str(REPOSITORY)])
        self._start_count += 1
        self._log_begin = self._log.stat().st_size
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self._command, env={**os.environ, "PYTHONPATH": paths}, stdout=log, stderr=log,
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
        """The exit code. A driver whose Python did not start in time is started again, as a user would."""
        while True:
            try:
                code = self._process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired as error:
                raise AssertionError(f"the driver does not end: {self._end_of_log()}") from error
            finally:
                self.kill()
            is_slow = code != 0 and _SLOW_MACHINE in self._log.read_bytes()[self._log_begin :]
            if not is_slow or self._start_count == _MAX_START_COUNT:
                return code
            self._start()

    def _end_of_log(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


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
