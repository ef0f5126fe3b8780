"""The whole numbers that options take: never more than the wire and the files have room for.

Every option that takes a number has one of these ranges, so that whatever is outside is told where it was
typed. Partitions and counts of them are int32, offsets are int64, as in Kafka.
"""

from __future__ import annotations

import click

_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1

PARTITION = click.IntRange(0, _INT32_MAX)
PARTITION_COUNT = click.IntRange(1, _INT32_MAX)
OFFSET = click.IntRange(0, _INT64_MAX)
OFFSET_OR_END = click.IntRange(-1, _INT64_MAX)
"""With Kafka's -1 for the end, wherever that is."""
TIMESTAMP_MS = click.IntRange(0, _INT64_MAX)
COUNT = click.IntRange(1, _INT64_MAX)
SECONDS = click.IntRange(1, _INT32_MAX)
"""Up to 68 years."""
SECONDS_OR_NEVER = click.IntRange(0, _INT32_MAX)
"""With 0 for never."""
MEMORY_MIB = click.IntRange(64, _INT32_MAX)
LEAST_SILENCE_S = 6
"""A server looks at its store every five seconds, and a silence is longer than that."""


def silence_seconds(_context: click.Context, _parameter: click.Parameter, seconds: int) -> int:
    """0 for never, or so long that a silence is told from the time between two looks. Raises
    click.BadParameter.
    """
    if 0 < seconds < LEAST_SILENCE_S:
        raise click.BadParameter(
            f"{seconds} is too short; give at least {LEAST_SILENCE_S} seconds, or 0 for never"
        )
    return seconds
