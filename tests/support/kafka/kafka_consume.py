"""Prints partition 0 of topics of a Kafka broker as lines of JSON, in the form of the golden data.

A program, because the client library prints warnings. One line for each topic: a list of its records::

    python -m tests.support.kafka.kafka_consume 127.0.0.1:9092 read_committed orders payments
"""

from __future__ import annotations

import base64
import importlib
import json
import sys
from typing import Any


def consume(kafka: Any, address: str, topic: str, isolation_level: str) -> list[dict[str, Any]]:
    """The records from the log start to the current end, as that isolation level shows them."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address, isolation_level=isolation_level, enable_auto_commit=False, group_id=None
    )
    assigned = kafka.TopicPartition(topic, 0)
    lines: list[dict[str, Any]] = []
    consumer.assign([assigned])
    consumer.seek_to_beginning(assigned)
    end_offset = consumer.end_offsets([assigned])[assigned]
    while consumer.position(assigned) < end_offset:
        for records in consumer.poll(timeout_ms=1000).values():
            for record in records:
                line = {
                    "offset": record.offset,
                    # The golden data counts as librdkafka does, from 1.
                    "timestamp_type": record.timestamp_type + 1,
                    "timestamp": record.timestamp,
                    "key": _encoded(record.key),
                    "value": _encoded(record.value),
                    "headers": [[key, _encoded(value)] for key, value in record.headers],
                }
                lines.append(line)
    consumer.close()
    return lines


def _encoded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


if __name__ == "__main__":
    # The library has no types.
    library: Any = importlib.import_module("kafka")
    for name in sys.argv[3:]:
        sys.stdout.write(json.dumps(consume(library, sys.argv[1], name, sys.argv[2])) + "\n")
