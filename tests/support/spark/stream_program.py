"""A driver of its own, which a test kills: writes a topic's offsets as Parquet, in small batches, to its end.

stream_program MASTER STORE OUT CHECKPOINT KEY=VALUE...
"""

from __future__ import annotations

import sys

from tests.support.spark.driver_process import driver_session


def main(master: str, store: str, out: str, checkpoint: str, *conf: str) -> None:
    """Run the stream until it has read what there is."""
    with driver_session(master, conf) as spark:
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


if __name__ == "__main__":
    main(*sys.argv[1:])
