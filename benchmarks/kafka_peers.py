"""Kafka's own programs and clients, as far as this machine has them.

A benchmark without its peer says so on its standard error, and leaves the rows out.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from tests.support.kafka.kafka_distribution import KAFKA_VERSION, KafkaDistribution, KafkaMissingError

KAFKA_CACHE = Path(__file__).resolve().parents[1] / ".cache" / "kafka"


def kafka_or_none() -> KafkaDistribution | None:
    """Kafka by its jars, which Maven fetches."""
    try:
        return KafkaDistribution.fetched(KAFKA_CACHE)
    except KafkaMissingError as missing:
        print(f"no comparison with Kafka {KAFKA_VERSION}: {missing}", file=sys.stderr)
        return None


def confluent_kafka_or_none() -> Any | None:
    """The package `confluent_kafka`: the Python client over librdkafka."""
    try:
        return importlib.import_module("confluent_kafka")
    except ImportError as missing:
        print(f"no comparison with confluent-kafka: {missing}; install the extra `dev`", file=sys.stderr)
        return None
