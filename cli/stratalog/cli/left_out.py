"""Partitions that a command cannot read and leaves out, while it shows the others."""

from __future__ import annotations

import click

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition


class LeftOut:
    """Names each partition on standard error once, and makes the command fail at its end. Not thread-safe."""

    def __init__(self, *, is_allowed: bool = True) -> None:
        """Without `is_allowed` the first one ends the command: a command that never ends could not report it
        at its end."""
        self._is_allowed = is_allowed
        self._partitions: set[TopicPartition] = set()

    def add(self, partition: TopicPartition, reason: DataDirectoryError) -> None:
        """Leave out this partition. Raises DataDirectoryError if that is not allowed."""
        if not self._is_allowed:
            raise DataDirectoryError(reason.message, **reason.fields | partition.error_fields)
        if partition not in self._partitions:
            self._partitions.add(partition)
            hint = f"`stratalog topic describe {partition.topic}` shows the reason"
            click.echo(f"{partition} cannot be read, {hint}: {reason}", err=True)

    def require_none(self) -> None:
        """Refuse to go on without all partitions. Raises DataDirectoryError if a partition was left out."""
        if self._partitions:
            raise DataDirectoryError(
                "partitions that cannot be read were left out; mend the faults that are named above",
                partitions=",".join(map(str, sorted(self._partitions))),
            )
