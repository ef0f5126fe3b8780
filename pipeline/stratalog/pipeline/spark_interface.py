"""The parts of Spark's interface for Python data sources that came after Spark 4.0.

    filters of a query                                      4.1
    a stream's writer that gets Arrow batches               4.1
    limits of a stream's batches, several of them at        4.2
    `availableNow`, and a stream's start in `latestOffset`

A part is there if PySpark has its class, whatever its version says, because vendors bring parts to older
versions. Light to import.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import pyspark
import pyspark.sql.datasource as interface

from stratalog.base.errors import UnsupportedOperationError

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    StreamReaderMixin = SupportsTriggerAvailableNow
    StreamWriterBase = interface.DataSourceStreamArrowWriter
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as StreamReaderMixin
    except ImportError:

        class StreamReaderMixin:
            """Nothing: this version of Spark does not ask a stream for the end of what there is now."""

    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriterBase
    except ImportError:

        class StreamWriterBase(interface.DataSourceStreamWriter, interface.DataSourceArrowWriter):
            """The writer of a stream for Spark 4.0, which gives Arrow batches to each writer that is one for
            Arrow batches of a batch job, too."""


class SparkPart(Enum):
    """A part of the interface: what it is, and the first version of Spark with it."""

    FILTERS = "pushes no filters of a query to a Python source", "4.1", "Filter"
    LIMITS = "has no limits for the batches of a Python source", "4.2", ""

    @property
    def is_there(self) -> bool:
        """Whether PySpark has the part."""
        if self is SparkPart.LIMITS:
            return StreamReaderMixin.__module__ != __name__
        return hasattr(interface, self.value[2])

    def require(self, option: str) -> None:
        """Raise UnsupportedOperationError, for this option, if PySpark lacks the part."""
        if not self.is_there:
            lack, version, _ = self.value
            raise UnsupportedOperationError(
                f"this version of Spark {lack}; leave the option out, or use Spark {version} or later",
                name=option,
                spark_version=pyspark.__version__,
                needed_version=version,
            )
