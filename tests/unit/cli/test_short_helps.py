"""The table of commands in a help says the same as the help of each command, and fits into 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from stratalog.cli.commands.log_commands import log
from stratalog.cli.commands.server_commands import server
from stratalog.cli.commands.tier_commands import tier
from stratalog.cli.lazy_group import LazyGroup
from stratalog.cli.main import stratalog

SHORTEST_COLUMN = 61
"""Columns for the help in the table of `log-dirs`, whose commands have the longest names."""


def first_sentence(command: click.Command) -> str:
    return command.get_short_help_str(limit=1000)


def commands_below(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield command
        if isinstance(command, click.Group):
            yield from commands_below(command)


@pytest.mark.parametrize("group", [stratalog, log, server, tier])
def test_a_command_has_one_short_help(group: LazyGroup) -> None:
    context = click.Context(group)
    shown = {name: text for name, (_, text) in group.commands_by_name.items()}
    own = {name: group.get_command(context, name) for name in shown}

    assert shown == {name: first_sentence(command) for name, command in own.items() if command is not None}


def test_short_helps_are_not_cut_off() -> None:
    assert [
        first_sentence(command)
        for command in commands_below(stratalog)
        if command.get_short_help_str(limit=SHORTEST_COLUMN) != first_sentence(command)
    ] == []
