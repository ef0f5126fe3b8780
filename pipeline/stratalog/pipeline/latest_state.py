"""The latest-state view of a keyed topic: one row for each key, its last record.

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
    """Fold a scan of a keyed topic to (key, partition, offset, value, timestamp, tombstone), a row for each
    key.

    A key is in one partition while the topic keeps its partition count. If the count was raised, a key in two
    partitions gives two rows. Records without a key are ignored.
    """
    from pyspark.sql import functions as f

    last = f.max_by(f.struct(*_CARRIED), "offset").alias("last")
    return (
        records.where(f.col("key").isNotNull())
        .groupBy("key", "partition")
        .agg(f.max("offset").alias("offset"), last)
        .select("key", "partition", "offset", *(f.col(f"last.{name}") for name in _CARRIED))
    )
