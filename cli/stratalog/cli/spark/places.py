"""Places of files that a command reads or writes: URLs of object stores, or paths of directories."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote


def place_url(place: str) -> str:
    """The URL of a place; a path becomes that of a directory."""
    return place if "://" in place else f"file://{quote(str(Path(place).absolute()))}"
