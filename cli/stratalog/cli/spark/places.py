"""Places of files that a command reads or writes: URLs of object stores, or paths of directories."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import click

from stratalog.base.errors import InvalidRequestError
from stratalog.cli.options import require_unicode

PLACE_HELP = "a directory on a disk that all executors share, as a path or file:///dir, or s3://bucket/prefix"


def place_url(context: click.Context, parameter: click.Parameter, place: str) -> str:
    """The URL of a place, for a parameter that takes one: a path becomes that of a directory."""
    require_unicode(context, parameter, place)
    return place if "://" in place else f"file://{quote(str(Path(place).absolute()))}"


def require_outside(place: str, store_url: str) -> None:
    """Raise InvalidRequestError if a place to write to lies inside of the store of the topics, or the store
    inside of the place: who copies, restores or deletes the one would take the other along. Raises
    InvalidConfigError for a URL that names no store."""
    files, store = _path_of(place), _path_of(store_url)
    # The same place is refused with what lies there.
    if files != store and (files.startswith(store) or store.startswith(files)):
        raise InvalidRequestError(
            "the place and the store of the topics lie one inside of the other; choose another place",
            place=place.partition("?")[0],
            store=store_url.partition("?")[0],
        )


def _path_of(url: str) -> str:
    """The URL without settings, with a slash at its end; of a directory its real path."""
    from stratalog.objectstore.open_store import store_directory

    bare = url.partition("?")[0]
    directory = store_directory(bare)
    return (bare if directory is None else os.path.realpath(directory)).rstrip("/") + "/"
