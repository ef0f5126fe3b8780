"""A Spark session on this machine alone, for demonstrations and tests.

C1 compilation and the serial collector halve the start of the JVM and suit jobs of seconds. They are wrong
for benchmarks and clusters, which configure their own session.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINIMUM_JAVA_VERSION = 17

MINIMUM_SPARK_VERSION = (4, 0)
"""The first version with Python data sources that Stratalog's can be."""

_VERSION = re.compile(r'version "(\d+)')


def java_version() -> int | None:
    """Major version of the Java that Spark would start (JAVA_HOME, then PATH); None if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        return None
    with suppress(OSError, subprocess.TimeoutExpired):
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
        found = _VERSION.search(answer.stderr + answer.stdout)
        return int(found.group(1)) if found else None
    return None


def why_spark_cannot_run() -> str | None:
    """The missing requirement of a local session, as one clause; None if there is none."""
    import importlib.util

    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed (pip install '.[spark]' in a checkout)"
    from pyspark.version import __version__ as spark_version

    if tuple(map(int, spark_version.split(".")[:2])) < MINIMUM_SPARK_VERSION:
        needed = ".".join(map(str, MINIMUM_SPARK_VERSION))
        return f"PySpark {spark_version} was found, and {needed} or later is needed"
    version = java_version()
    if version is None:
        return f"no Java was found (Spark needs {MINIMUM_JAVA_VERSION} or later)"
    if version < MINIMUM_JAVA_VERSION:
        return f"Java {version} was found, and Spark needs {MINIMUM_JAVA_VERSION} or later"
    return None


def start_local_session(application: str, scratch_directory: str, *, cores: int = 2) -> SparkSession:
    """Start Spark in a JVM of this process on the loopback interface, with spill files in
    `scratch_directory`.

    The caller stops it. `stratalog` is registered as a data source, installed or not. Output of the JVM goes
    to `spark.log` in that directory.
    """
    os.makedirs(scratch_directory, exist_ok=True)
    # A host name that does not resolve stops the JVM at its start; the loopback address never fails.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Workers run this interpreter with its packages, not the `python3` of the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    java_options = (
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        # Keeps all files of the JVM in the scratch directory.
        "-XX:-UsePerfData",
        f'"-Djava.io.tmpdir={scratch_directory}"',
    )
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName(application)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", str(cores))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", scratch_directory)
        .config("spark.sql.warehouse.dir", os.path.join(scratch_directory, "warehouse"))
        .config("spark.driver.extraJavaOptions", " ".join(java_options))
    )
    with standard_error_in(os.path.join(scratch_directory, "spark.log")):
        session = builder.getOrCreate()
    offer_source(session)
    return session


def offer_source(session: SparkSession) -> None:
    """Register the data source `stratalog`, unless Spark has found it by itself. Spark 4.0 takes no source a
    second time."""
    from pyspark.errors import AnalysisException

    from stratalog.pipeline.source.data_source import StratalogDataSource

    try:
        session.dataSource.register(StratalogDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


@contextmanager
def standard_error_in(path: str) -> Generator[None, None, None]:
    """Redirect standard error of processes that start meanwhile to a file: it hides the JVM's greetings."""
    sys.stderr.flush()
    saved = os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 2)
    os.close(log)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
