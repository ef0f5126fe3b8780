"""Lets Spark find `spark.read.format("stratalog")` by itself: it looks for modules whose name begins with
`pyspark_`.

One broken module of that kind hides every Python data source of an environment, so this one never fails to
import, and imports little. Where the source cannot be imported, another one takes its place, which says why
when a query names it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

try:
    from stratalog.pipeline.source.data_source import StratalogDataSource

    # Spark looks for this name.
    DefaultSource: Any = StratalogDataSource
except Exception as error:  # noqa: BLE001 - a broken pyspark raises anything
    _REASON = str(error)
    with suppress(Exception):  # without a pyspark that has Python data sources there is nothing to offer
        from pyspark.sql.datasource import DataSource

        class UnusableSource(DataSource):
            """Fails each query with the reason for which the source cannot be used."""

            def __init__(self, options: dict[str, str]) -> None:
                from stratalog.base.errors import UnsupportedOperationError

                raise UnsupportedOperationError(
                    "the data source of Stratalog cannot be imported; correct the installation",
                    reason=_REASON,
                )

            @classmethod
            def name(cls) -> str:
                return "stratalog"

        DefaultSource = UnusableSource
