"""The ranges of whole numbers that options take, no larger than the fields of the wire and of files.

Every option with a number has one of these ranges, so that click refuses others and names the option.
Partitions and counts of partitions are int32, offsets are int64, as in Kafka.
"""

from __future__ import annotations

import click

_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1

PARTITION = click.IntRange(0, _INT32_MAX)
PARTITION_COUNT = click.IntRange(1, _INT32_MAX)
OFFSET = click.IntRange(0, _INT64_MAX)
COUNT = click.IntRange(1, _INT64_MAX)
SECONDS = click.IntRange(1, _INT32_MAX)
"""Up to 68 years."""
