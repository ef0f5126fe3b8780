"""Finds the keys with the most records of a topic, exactly, by a scan of its keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HotKey(NamedTuple):
    """A key and its records."""

    topic: str
    key: bytes
    record_count: int


def hot_keys(session: SparkSession, store_url: str, topic: str, count: int) -> list[HotKey]:
    """The keys with the most records in the store, at most `count`, the one with most first. Spark spills
    what does not fit its memory. Raises what Spark raises."""
    from pyspark.sql import functions as f

    keys = (
        session.read.format("stratalog")
        .option("store", store_url)
        .option("topic", topic)
        # The statistics of the partitions show what is lost.
        .option("failOnDataLoss", "false")
        .schema("key binary")
        .load()
    )
    rows = (
        keys.where(f.col("key").isNotNull())
        .groupBy("key")
        .count()
        .orderBy(f.col("count").desc(), "key")
        .limit(count)
        .collect()
    )
    return [HotKey(topic, bytes(row["key"]), row["count"]) for row in rows]
