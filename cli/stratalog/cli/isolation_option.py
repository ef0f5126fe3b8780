"""The option that selects which records of transactions a reader gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from stratalog.client.isolation_level import IsolationLevel

_Command = TypeVar("_Command", bound=Callable[..., Any])


def isolation_option(command: _Command) -> _Command:
    """Adds `--isolation`, which becomes the parameter `isolation`, an IsolationLevel."""
    option = click.option(
        "--isolation",
        type=click.Choice([level.value for level in IsolationLevel]),
        default=IsolationLevel.READ_UNCOMMITTED.value,
        show_default=True,
        callback=_parse,
        help="With read_committed only up to the first transaction that is still open, and without aborted"
        " ones.",
    )
    return option(command)


def _parse(_context: click.Context, _parameter: click.Parameter, value: str) -> IsolationLevel:
    return IsolationLevel(value)
