"""The option `--config KEY=VALUE` of commands that configure topics or a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

TOPIC_HELP = "Kafka's names, for example cleanup.policy=compact; may be repeated."


def config_option(
    name: str = "--config", *, text: str = TOPIC_HELP, envvar: str | None = None
) -> Callable[[_Command], _Command]:
    """Adds the repeatable option, whose pairs become a dictionary. Its environment variable separates pairs
    by spaces. `text` is its help.
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
