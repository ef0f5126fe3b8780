"""A standalone Spark cluster on loopback addresses: a master and two workers, each a process of its own.

The workers have different addresses, because Spark runs the second attempt of a slow task on another machine
only. All logs, and those of the executors, are below one directory.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stratalog.pipeline.local_session import offer_source, standard_error_in
from tests.support.guarded_process import guarded_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOSTS: Final = ("127.0.0.1", "127.0.0.2")
_READY_TIMEOUT_S: Final = 120.0
# C1 and the serial collector halve the start of a JVM.
_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
_MASTER_URL: Final = re.compile(r"Starting Spark master at (spark://\S+)")


@dataclass(frozen=True, slots=True)
class StandaloneCluster:
    """A cluster that runs. Immutable."""

    url: str
    directory: Path
    """The logs of its processes, of the executors and of applications."""

    @contextmanager
    def session(self, name: str) -> Generator[SparkSession]:
        """A session of this process with an executor of one core on each worker, which tries failed tasks
        again and runs slow ones twice."""
        from pyspark.sql import SparkSession

        os.environ["SPARK_LOCAL_IP"] = HOSTS[0]
        os.environ["PYSPARK_PYTHON"] = sys.executable
        builder = SparkSession.builder.master(self.url).appName(name)
        for key, value in self.conf().items():
            builder = builder.config(key, value)
        with standard_error_in(str(self.directory / "driver.log")):
            session = builder.getOrCreate()
        offer_source(session)
        try:
            yield session
        finally:
            session.stop()

    def conf(self) -> dict[str, str]:
        """The configuration of an application."""
        (self.directory / "events").mkdir(exist_ok=True)
        return {
            "spark.cores.max": "2",
            "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
            "spark.driver.host": HOSTS[0],
            "spark.driver.memory": "1g",
            "spark.eventLog.dir": str(self.directory / "events"),
            "spark.eventLog.enabled": "true",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
            "spark.executor.memory": "512m",
            "spark.local.dir": str(self.directory),
            "spark.log.level": "INFO",
            "spark.speculation": "true",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.task.duration.threshold": "2s",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }


@contextmanager
def standalone_cluster(directory: Path, environment: Mapping[str, str]) -> Generator[StandaloneCluster]:
    """A cluster whose executors have these variables. Raises TimeoutError if it does not start."""
    import pyspark

    program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
        "SPARK_DAEMON_JAVA_OPTS": _JAVA_OPTIONS,
        "SPARK_DAEMON_MEMORY": "256m",
        **({"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {}),
    }
    with ExitStack() as stack:

        def start(name: str, host: str, *arguments: str, **more: str) -> Path:
            place = directory / name
            place.mkdir(parents=True)
            command = [program, f"org.apache.spark.deploy.{name.partition('-')[0]}", "--host", host]
            command += ["--port", "0", "--webui-port", "0", *arguments]
            own = {"SPARK_LOCAL_IP": host, "SPARK_LOCAL_DIRS": str(place), **more}
            stack.enter_context(guarded_process(command, str(place), {**variables, **own}))
            return place / "server.log"

        log = start("master.Master-0", HOSTS[0])
        url = _found(log, _MASTER_URL)
        for host in HOSTS:
            work = str(directory / f"work-{host}")
            log = start(
                f"worker.Worker-{host}",
                host,
                *("--cores", "2", "--memory", "2g", "--work-dir", work, url),
                **environment,
            )
            _found(log, re.compile("(Successfully registered with master)"))
        yield StandaloneCluster(url, directory)


def _found(log: Path, pattern: re.Pattern[str]) -> str:
    """The text that the pattern finds in a log, as soon as it is there."""
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    while True:
        text = log.read_text(errors="replace")
        found = pattern.search(text)
        if found is not None:
            return found.group(1)
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{log} does not say {pattern.pattern!r}:\n{text[-2000:]}")
        time.sleep(0.05)
