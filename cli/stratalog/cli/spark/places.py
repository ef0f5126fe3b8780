"""Places of files that a command reads or writes: URLs of object stores, or paths of directories."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import click

from stratalog.cli.options import require_unicode

PLACE_HELP = "a directory on a disk that all executors share, as a path or file:///dir, or s3://bucket/prefix"


def place_url(context: click.Context, parameter: click.Parameter, place: str) -> str:
    """The URL of a place, for a parameter that takes one: a path becomes that of a directory."""
    require_unicode(context, parameter, place)
    return place if "://" in place else f"file://{quote(str(Path(place).absolute()))}"
