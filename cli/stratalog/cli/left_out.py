"""Partitions that a command cannot read and leaves out, while it shows the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.client.client import Client, OffsetQuery
from stratalog.client.errors import error_of_status
from stratalog.client.isolation_level import IsolationLevel
from stratalog.v1 import log_pb2


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
            raise DataDirectoryError(reason.message, **{**reason.fields, "partition": str(partition)})
        if partition not in self._partitions:
            self._partitions.add(partition)
            hint = f"`stratalog topic describe {partition.topic}` shows the reason"
            click.echo(f"{partition} cannot be read, {hint}: {reason}", err=True)

    async def answers(
        self, client: Client, queries: Sequence[OffsetQuery], isolation: IsolationLevel
    ) -> list[log_pb2.OffsetAnswer]:
        """The answers of the partitions that can be read. Raises the error of a query that failed for another
        reason."""
        found: list[log_pb2.OffsetAnswer] = []
        for answer in await client.offset_answers(queries, isolation=isolation):
            if not answer.HasField("error"):
                found.append(answer)
                continue
            error = error_of_status(answer.error)
            if not isinstance(error, DataDirectoryError):
                raise error
            self.add(TopicPartition(answer.topic, answer.partition), error)
        return found

    async def offsets(
        self,
        client: Client,
        partitions: Iterable[TopicPartition],
        spec: log_pb2.OffsetSpec.ValueType,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, int]:
        """The named offset of each partition that can be read."""
        answers = await self.answers(client, [(one, spec, None) for one in partitions], isolation)
        return {TopicPartition(answer.topic, answer.partition): answer.offset for answer in answers}

    def require_none(self) -> None:
        """Refuse to go on without all partitions. Raises DataDirectoryError if a partition was left out."""
        if self._partitions:
            raise DataDirectoryError(
                "partitions that cannot be read were left out; mend the faults that are named above",
                partitions=",".join(map(str, sorted(self._partitions))),
            )
