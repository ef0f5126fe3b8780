"""Columns in Spark's DDL as an Arrow struct."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from stratalog.base.errors import InvalidConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def struct_of_ddl(_session: SparkSession, ddl: str) -> pa.StructType:
    """The struct of columns such as `id BIGINT, name STRING`. Spark reads DDL in the JVM of its session.
    Raises InvalidConfigError if it is none."""
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    # Before Spark 4.3 times are in UTC without a word.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}
    try:
        return cast("pa.StructType", to_arrow_type(StructType.fromDDL(ddl), **zone))
    except Exception as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise InvalidConfigError(
            "these are no columns that Spark knows; correct them",
            name="schema",
            value=ddl[:200],
            reason=said[0][:200],
        ) from error
