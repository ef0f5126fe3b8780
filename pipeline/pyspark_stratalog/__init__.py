"""Lets Spark find `spark.read.format("stratalog")` by itself: it looks for modules whose name begins with
`pyspark_`.

One broken module of that kind hides every Python data source of an environment, so this one never fails to
import, and imports little.
"""

from __future__ import annotations

from contextlib import suppress

with suppress(Exception):  # without a pyspark that has Python data sources there is nothing to offer
    from stratalog.pipeline.source.data_source import StratalogDataSource as DefaultSource  # noqa: F401 # pyright: ignore[reportUnusedImport] - Spark looks for this name
