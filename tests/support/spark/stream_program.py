"""A driver of its own, which a test kills: writes a topic's offsets as Parquet, in small batches, to its end.

stream_program MASTER STORE OUT CHECKPOINT KEY=VALUE...
"""

from __future__ import annotations

import sys


def main(master: str, store: str, out: str, checkpoint: str, *conf: str) -> None:
    """Run the stream until it has read what there is."""
    from pyspark.sql import SparkSession

    from stratalog.pipeline.source.data_source import StratalogDataSource

    builder = SparkSession.builder.master(master).appName("stream")
    for pair in conf:
        key, _, value = pair.partition("=")
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(StratalogDataSource)
    frame = (
        spark.readStream.format("stratalog")
        .option("store", store)
        .option("topic", "t")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "150")
        .load()
    )
    writer = frame.select("partition", "offset").writeStream.format("parquet")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(out)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
