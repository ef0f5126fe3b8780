"""The options of commands that change keys of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from stratalog.cli.options import config_option

_Command = TypeVar("_Command", bound=Callable[..., Any])

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    config_option("--add", "--config", "add", text="Set this; may be repeated."),
    click.option(
        "--delete",
        "deleted",
        multiple=True,
        metavar="KEY",
        help="Remove the value that is set; may be repeated.",
    ),
    click.option("--dry-run", is_flag=True, help="Only check the changes."),
)


def change_options(command: _Command) -> _Command:
    """Adds the parameters `add`, `deleted` and `dry_run`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def changes_of(add: dict[str, str], deleted: tuple[str, ...]) -> dict[str, str | None]:
    """The changes, None for a key to remove. Raises click.UsageError for none, and for a key in both."""
    if not (add or deleted) or set(add) & set(deleted):
        raise click.UsageError("give --add KEY=VALUE or --delete KEY, each key once")
    return {**add, **dict.fromkeys(deleted)}
