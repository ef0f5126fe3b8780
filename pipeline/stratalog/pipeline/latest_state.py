"""The latest-state view of keyed topics: one row for each key of a topic, its last record.

It is exact whether the topic has been compacted or not, because it folds the records by offset. It knows
nothing of transactions: the given scan decides which records count; without `isolationLevel` `read_committed`
those of aborted transactions do. A tombstone is a row like any other (`tombstone` is true); filter such rows
out to see only existing keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CARRIED = ("value", "timestamp", "tombstone")


def latest_state(records: DataFrame) -> DataFrame:
    """Fold a scan of keyed topics to (topic, key, partition, offset, value, timestamp, tombstone), a row for
    each key of a topic.

    A key is in one partition while the topic keeps its partition count. If the count was raised, a key in two
    partitions gives two rows. Records without a key are ignored. A scan without the column topic is one of a
    single topic, and the state has no such column either.
    """
    from pyspark.sql import functions as f

    names = ("topic", "key", "partition") if "topic" in records.columns else ("key", "partition")
    last = f.max_by(f.struct(*_CARRIED), "offset").alias("last")
    return (
        records.where(f.col("key").isNotNull())
        .groupBy(*names)
        .agg(f.max("offset").alias("offset"), last)
        .select(*names, "offset", *(f.col(f"last.{name}") for name in _CARRIED))
    )
