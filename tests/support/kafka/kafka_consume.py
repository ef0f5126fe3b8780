"""Prints a partition of a Kafka broker as lines of JSON, in the form of the golden data.

A program, because the client library warns of things that are its own business::

    python -m tests.support.kafka.kafka_consume 127.0.0.1:9092 orders 0 read_committed
"""

from __future__ import annotations

import base64
import importlib
import json
import sys
from typing import Any


def consume(address: str, topic: str, partition: int, isolation_level: str) -> None:
    """From the log start to the end of now, as that isolation level sees it."""
    # It has no types.
    kafka: Any = importlib.import_module("kafka")
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address, isolation_level=isolation_level, enable_auto_commit=False, group_id=None
    )
    assigned = kafka.TopicPartition(topic, partition)
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
                sys.stdout.write(json.dumps(line) + "\n")
    consumer.close()


def _encoded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


if __name__ == "__main__":
    consume(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
