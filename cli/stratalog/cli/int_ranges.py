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
OFFSET_OR_END = click.IntRange(-1, _INT64_MAX)
"""-1 is the end, as in Kafka."""
TIMESTAMP_MS = click.IntRange(0, _INT64_MAX)
COUNT = click.IntRange(1, _INT64_MAX)
CALL_COUNT = click.IntRange(1, 1_000_000)
"""Far more calls than one process serves."""
SECONDS = click.IntRange(1, _INT32_MAX)
"""Up to 68 years."""
SECONDS_OR_NEVER = click.IntRange(0, _INT32_MAX)
"""0 is never."""
MEMORY_MIB = click.IntRange(64, _INT32_MAX)
DISK_MIB = click.IntRange(0, _INT32_MAX)
"""0 is none."""
LEAST_SILENCE_S = 6
"""Longer than the five seconds between two looks of a server at its store."""


def silence_seconds(_context: click.Context, _parameter: click.Parameter, seconds: int) -> int:
    """Accept 0 for never, or at least `LEAST_SILENCE_S`. Raises click.BadParameter."""
    if 0 < seconds < LEAST_SILENCE_S:
        raise click.BadParameter(
            f"{seconds} is too short; give at least {LEAST_SILENCE_S} seconds, or 0 for never"
        )
    return seconds


def shard_numbers(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """The numbers of shards in a text such as `0,2`; none for an empty one. Raises click.BadParameter."""
    numbers = text.split(",") if text else []
    if not all(number.isdecimal() and len(number) <= 4 for number in numbers):
        raise click.BadParameter("give numbers of shards with commas between them, for example 0,2")
    return tuple(map(int, numbers))
