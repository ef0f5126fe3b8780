"""Partitions in which a change has failed, while it was made in others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import click
from google.rpc.status_pb2 import Status


class PartitionResult(Protocol):
    """The result of a change in one partition."""

    @property
    def partition(self) -> int: ...
    @property
    def error(self) -> Status: ...


def raise_failures(topic: str, failed: Sequence[PartitionResult]) -> None:
    """Raise the error of the first failed partition, if any, and print the others on standard error."""
    # Not above: `--help` needs no client.
    from stratalog.client.errors import error_of_status

    for result in failed[1:]:
        click.echo(f"{topic}-{result.partition}: {error_of_status(result.error)}", err=True)
    for result in failed[:1]:
        error = error_of_status(result.error)
        error.fields["partition"] = f"{topic}-{result.partition}"
        raise error
