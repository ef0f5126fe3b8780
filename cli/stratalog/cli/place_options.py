"""The options `--data-dir` and `--store`, which name the places of a server's data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Place = TypeVar("_Place", bound=str | Path | None)


def require_unicode(_context: click.Context, _parameter: click.Parameter, value: _Place) -> _Place:
    """Refuse a name that is not UTF-8, because names of places appear in messages and URLs."""
    try:
        str(value).encode()
    except UnicodeEncodeError:
        raise click.BadParameter("the name is not UTF-8, choose another one") from None
    return value


def require_unicode_each(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    """Refuse names as `require_unicode` does, for options that may be repeated."""
    return tuple(require_unicode(context, parameter, value) for value in values)


def data_dir_option(command: _Command) -> _Command:
    """Adds `--data-dir`, which becomes the parameter `data_dir`."""
    option = click.option(
        "--data-dir",
        callback=require_unicode,
        envvar="STRATALOG_DATA_DIR",
        show_envvar=True,
        required=True,
        metavar="DIR",
        help="Where the server's local logs live; made where it is missing. One process at a time.",
    )
    return option(command)


def store_option(command: _Command) -> _Command:
    """Adds `--store`, which becomes the parameter `store_url`; empty for the one beside the data
    directory.
    """
    option = click.option(
        "--store",
        "store_url",
        callback=require_unicode,
        envvar="STRATALOG_STORE",
        show_envvar=True,
        default="",
        metavar="URL",
        help="file:///dir or s3://bucket/prefix; credentials, region and endpoint as boto3 finds them."
        " Default: the directory DATA_DIR.store beside the data directory.",
    )
    return option(command)
