"""Partitions in which a change has failed, while it was made in others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import click

from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicPartition


class PartitionResult(Protocol):
    """The result of a change in one partition."""

    @property
    def partition(self) -> int: ...
    @property
    def error(self) -> LogStoreError | None: ...


def raise_failures(topic: str, results: Sequence[PartitionResult]) -> None:
    """Raise the error of the first failed partition, if any, and print the others on standard error."""
    failed = [(one.partition, one.error) for one in results if one.error is not None]
    for partition, error in failed[1:]:
        click.echo(f"{topic}-{partition}: {error}", err=True)
    for partition, error in failed[:1]:
        error.fields = TopicPartition(topic, partition).error_fields | error.fields
        raise error
