"""The Spark session of a job: that of `spark-submit` or of this process, or a new one."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stratalog.base.errors import InvalidConfigError
from stratalog.pipeline.local_session import why_spark_cannot_run
from stratalog.pipeline.standalone_master import require_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REMOTE_VARIABLES = frozenset(("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"))
"""With one of these, PySpark makes a session of Spark Connect."""


@contextmanager
def job_session(name: str, master: str, conf: Mapping[str, str]) -> Generator[SparkSession]:
    """The session of this process, or a new one that ends with the block. `master` is empty for the default
    of Spark. Raises InvalidConfigError if Spark cannot run here, if it does not start or its master does not
    answer, and for Spark Connect."""
    variables = _REMOTE_VARIABLES & os.environ.keys()
    if master.startswith("sc:") or variables:
        raise InvalidConfigError(
            "jobs do not run through Spark Connect, which has no RDDs; name a master, or unset the variable",
            name="--master",
            value=", ".join(sorted(variables)) or master,
            allowed="local[4], spark://host:7077, yarn, k8s://...",
        )
    missing = why_spark_cannot_run()
    if missing is not None:
        raise InvalidConfigError(
            "this machine cannot run Spark; install it, or give the command to one that can",
            name="spark",
            value=missing,
            allowed="PySpark and Java",
        )
    from pyspark.sql import SparkSession

    former = SparkSession.getActiveSession()
    if former is None:
        require_master(master or conf.get("spark.master", ""))
    if master.startswith("local") or not master:
        # Workers run this interpreter with its packages, not the `python3` of the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    if master:
        builder = builder.master(master)
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = _started(builder, master)
    try:
        with _quiet_query_errors():
            yield session
    finally:
        if former is None:
            session.stop()


@contextmanager
def _quiet_query_errors() -> Generator[None]:
    """Keep PySpark from logging each error of a query as JSON with the traces of two languages. The error has
    the reason."""
    from pyspark.logger import PySparkLogger

    loggers = [
        PySparkLogger.getLogger(name) for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _started(builder: SparkSession.Builder, master: str) -> SparkSession:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
    from pyspark.errors import PySparkException

    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        first_lines = " ".join(str(error).split("\n", 2)[:2])
        raise InvalidConfigError(
            "the session of Spark did not start; correct --master and --conf, or see what Spark says above",
            name="--master",
            value=master or "the default of Spark",
            reason=first_lines[:300],
        ) from error
