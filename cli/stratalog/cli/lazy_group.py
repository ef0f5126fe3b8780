"""A click group whose commands are imported when they run."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

EXIT_INTERRUPTED = 130
SHORT_HELP_LENGTH = 66
"""The longest help of a command in a table that fits into 80 columns."""


class LazyGroup(click.Group):
    """Imports commands when they run: `name -> ("module:attribute", short help)` below `stratalog.cli`."""

    def __init__(
        self, *args: Any, commands_by_name: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.commands_by_name = dict(commands_by_name or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands_by_name, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; returns None if its module is not installed."""
        if cmd_name not in self.commands_by_name:
            return super().get_command(ctx, cmd_name)
        module_name, _, attribute = self.commands_by_name[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(f"stratalog.cli.{module_name}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Ctrl-C ends it with exit code 130, without a message of click."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands from the short helps, without imports."""
        rows = [(name, short_help) for name, (_, short_help) in self.commands_by_name.items()]
        rows += [
            (name, command.get_short_help_str(limit=SHORT_HELP_LENGTH))
            for name, command in sorted(self.commands.items())
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
