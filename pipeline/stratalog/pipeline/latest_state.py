"""The latest-state view of a keyed topic: one row a key, its last record.

It is exact whether the topic has been compacted or not, because it folds whatever records are there by
offset. It knows nothing of transactions: the scan that it is given says which records count, those of aborted
transactions among them unless its `isolationLevel` is `read_committed`. A tombstone is a row like any other
(`tombstone` is true): who wants only what exists filters it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CARRIED = ("value", "timestamp", "tombstone")


def latest_state(records: DataFrame) -> DataFrame:
    """Fold a scan of a keyed topic to (key, partition, offset, value, timestamp, tombstone), one row a key.

    A key lies in one partition as long as the topic keeps its partition count; where the count was raised,
    the same key in two partitions gives two rows. Records without a key are ignored.
    """
    from pyspark.sql import functions as f

    last = f.max_by(f.struct(*_CARRIED), "offset").alias("last")
    return (
        records.where(f.col("key").isNotNull())
        .groupBy("key", "partition")
        .agg(f.max("offset").alias("offset"), last)
        .select("key", "partition", "offset", *(f.col(f"last.{name}") for name in _CARRIED))
    )
