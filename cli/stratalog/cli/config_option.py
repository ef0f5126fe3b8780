"""`--config KEY=VALUE`, for every command that gives topics a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def config_option(command: _Command) -> _Command:
    """Adds `--config`, which may be repeated and becomes the parameter `config`, a dictionary."""
    option = click.option(
        "--config",
        callback=_parse,
        multiple=True,
        metavar="KEY=VALUE",
        help="Kafka's names, for example cleanup.policy=compact; may be repeated.",
    )
    return option(command)


def _parse(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    config: dict[str, str] = {}
    for value in values:
        name, separator, setting = value.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE, for example retention.ms=-1")
        config[name.strip()] = setting.strip()
    return config
