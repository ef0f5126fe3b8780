"""Random topics, and random batches for them."""

from __future__ import annotations

from random import Random

from stratalog.base.types import Durability
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from tests.support.tier_model.partition_ledger import UNLIMITED, TopicPlan

HOUR_MS = 3_600_000
_KEYS = tuple(b"key-%d" % number for number in range(5))


def random_topic(random: Random, name: str) -> TopicPlan:
    """A topic with small segments; most are tiered."""
    is_tiered = random.random() < 0.85
    policy = random.choice(("delete", "delete", "compact", "compact,delete"))
    levels = [Durability.OS, Durability.DISK] + [Durability.OBJECT] * is_tiered
    level = random.choice(levels)
    expires = "delete" in policy
    retention_ms = random.choice((UNLIMITED, 2 * HOUR_MS)) if expires else UNLIMITED
    retention_bytes = random.choice((UNLIMITED, UNLIMITED, 4_000)) if expires else UNLIMITED
    config = {
        "cleanup.policy": policy,
        "remote.storage.enable": str(is_tiered).lower(),
        "min.durability": level.config_value,
        "segment.bytes": "1024",
        "index.interval.bytes": str(random.choice((1, 200, 4096))),
        "retention.ms": str(retention_ms),
        "retention.bytes": str(retention_bytes),
        "delete.retention.ms": str(random.choice((0, 60_000))),
        "min.cleanable.dirty.ratio": "0",
        "file.delete.delay.ms": str(random.choice((0, 1_000))),
        "remote.copy.max.age.ms": str(random.choice((1_000, HOUR_MS))),
    }
    if is_tiered:
        config["local.retention.bytes"] = str(random.choice((-2, 0, 2_000)))
        config["local.retention.ms"] = str(random.choice((-2, 60_000)))
        bounds = (("local.retention.bytes", retention_bytes), ("local.retention.ms", retention_ms))
        for name_of_bound, total in bounds:
            if 0 <= total < int(config[name_of_bound]):
                config[name_of_bound] = "-2"
    return TopicPlan(
        name=name,
        config=config,
        level=level,
        is_tiered=is_tiered,
        is_compacted="compact" in policy,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
    )


def random_batch(
    random: Random, now_ms: int, number: int, producer: BatchProducer
) -> tuple[list[Record], bytes]:
    """Records that no other batch has, and the batch of them. `number` counts the batches."""
    records = [
        Record(
            index,
            now_ms - random.randrange(3_000),
            random.choice(_KEYS),
            None if random.random() < 0.2 else b"%d-%d " % (number, index) + b"v" * random.choice((5, 150)),
        )
        for index in range(random.choice((1, 1, 2, 5)))
    ]
    return records, encode_batch(records, producer=producer)
