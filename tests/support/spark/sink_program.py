"""A driver of its own, which dies as it is asked to: writes the values of a topic in a store to a service.

sink_program MASTER ORDER KEY=VALUE...

ORDER is a JSON object: `store`, `options` of the sink, `death` with the fields of a `DriverDeath`, or null,
and `checkpoint` of a stream of batches with 600 offsets; empty for a batch job.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.support.spark.driver_process import driver_session
from tests.support.spark.faulty_sink import NAME, DriverDeath, FaultySink

BATCH_OFFSETS = 600


def main(master: str, order: str, *conf: str) -> None:
    """Write what there is."""
    given: dict[str, Any] = json.loads(order)
    options: dict[str, str] = given["options"]
    if given["death"] is not None:
        options |= DriverDeath(*given["death"]).options()
    source = {"store": given["store"], "topic": "t", "maxPartitionBytes": "50000"}
    with driver_session(master, conf) as spark:
        spark.dataSource.register(FaultySink)
        if given["checkpoint"]:
            stream = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(BATCH_OFFSETS)}
            rows = spark.readStream.format("stratalog").options(**source, **stream).load()
            writer = rows.select("key", "value").writeStream.format(NAME).options(**options)
            query = (
                writer.option("checkpointLocation", given["checkpoint"]).trigger(availableNow=True).start()
            )
            query.awaitTermination()
        else:
            rows = spark.read.format("stratalog").options(**source).load()
            rows.select("key", "value").write.format(NAME).options(**options).mode("append").save()


if __name__ == "__main__":
    main(*sys.argv[1:])
