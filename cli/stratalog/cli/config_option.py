"""`--config KEY=VALUE`, for every command that gives topics or a server a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

TOPIC_HELP = "Kafka's names, for example cleanup.policy=compact; may be repeated."


def config_option(
    name: str = "--config", *, text: str = TOPIC_HELP, envvar: str | None = None
) -> Callable[[_Command], _Command]:
    """Adds an option with the help `text`, which may be repeated and becomes a dictionary. Its environment
    variable has pairs with spaces between them.
    """
    return click.option(
        name,
        callback=_parse,
        multiple=True,
        envvar=envvar,
        show_envvar=envvar is not None,
        metavar="KEY=VALUE",
        help=text,
    )


def _parse(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    config: dict[str, str] = {}
    for value in values:
        name, separator, setting = value.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE, for example retention.ms=-1")
        config[name.strip()] = setting.strip()
    return config
