"""The Spark session of a job: that of `spark-submit` or of this process, or a new one."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stratalog.base.errors import InvalidConfigError
from stratalog.pipeline.local_session import why_spark_cannot_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def job_session(name: str, master: str, conf: Mapping[str, str]) -> Generator[SparkSession]:
    """The session of this process, or a new one that ends with the block. `master` is empty for the default
    of Spark. Raises InvalidConfigError if Spark cannot run here."""
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
    if master.startswith("local") or not master:
        # Workers run this interpreter with its packages, not the `python3` of the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    if master:
        builder = builder.master(master)
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        if former is None:
            session.stop()
