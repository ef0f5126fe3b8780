"""The file of what was altered at run time: small, and written whole each time.

::

    # comments, and empty lines, are skipped
    version=1
    checksum=1d2ef93b
    generation=5
    log.cleaner.threads=2
    log.retention.ms=-1

Each alteration has a higher generation than the one before it: copies of the file lie in all log directories,
see `broker_config_copies`. A start that knew nothing of what had been altered has begun a file with the line
`stand_in=true`, and one that knew only what others may have altered since has written `stand_in=newer`, see
`held_config`; each alteration keeps it. The checksum is the CRC-32C of the lines behind
it, in hexadecimal, each with its line end. A crash leaves the old file or the new one. A human who changes
the file takes the line of the checksum away; then nothing is compared. Version 0 had no generations: all of
it is of generation 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from crc32c import crc32c

from stratalog.base.atomic_file import replace_file
from stratalog.base.filesystem import FileSystem

BROKER_CONFIG_FILE = "broker-config.properties"
VERSION = "1"
_VERSION_WITHOUT_GENERATIONS = "0"
_COMMENT = """\
# Generation {generation} of what `stratalog config alter --broker` has altered; all log directories have it.
# To edit it stop the server, raise the generation in one of them, and take the line of the checksum away.
"""
_GENERATION = "generation"
_STAND_IN = "stand_in"
_TRUE = "true"
_NEWER = "newer"
# In the comment and in its line, so that no single damage makes it look older.
_ANY_GENERATION = re.compile(r"(?i)generation[ =]([0-9]{1,18})\b")


class StoredConfig(NamedTuple):
    """What a file says."""

    overrides: Mapping[str, str]
    generation: int
    is_edited: bool = False
    """A human has taken the checksum away."""
    is_stand_in: bool = False
    """It was begun without what had been altered before."""
    replaces_older: bool = False
    """A stand-in of when others had owned the store: what copies of older generations say is out of date."""

    @property
    def gives_way(self) -> bool:
        """A stand-in for whatever is found, of any generation."""
        return self.is_stand_in and not self.replaces_older


class DamagedConfigError(Exception):
    """The bytes of a file are not what was written."""

    def __init__(self, reason: str, generation: int | None) -> None:
        """`generation`: the highest that it may have been of; None where nobody can tell."""
        super().__init__(reason)
        self.generation = generation


class BrokerConfigFile:
    """One copy. Not thread-safe: guarded by RuntimeConfig."""

    def __init__(self, filesystem: FileSystem, directory: str) -> None:
        self._filesystem = filesystem
        self.directory = directory
        self.path = f"{directory}/{BROKER_CONFIG_FILE}"

    def read(self) -> StoredConfig | None:
        """None where there is no file. Raises DamagedConfigError, OSError."""
        try:
            data = self._filesystem.read_file(self.path)
        except (FileNotFoundError, NotADirectoryError):
            # Whoever locks the directory says what is wrong with its name.
            return None
        try:
            return parse_broker_config(data.decode())
        except ValueError as damage:
            found = [int(text) for text in _ANY_GENERATION.findall(data.decode(errors="replace"))]
            raise DamagedConfigError(str(damage), max(found, default=None)) from None

    def write(self, stored: StoredConfig) -> None:
        """Durable when it returns. Raises OSError; a restart finds the former one, or this."""
        replace_file(self._filesystem, self.path, format_broker_config(stored).encode())


def format_broker_config(stored: StoredConfig) -> str:
    """The text of the file."""
    body = _body(stored.overrides, stored.generation, _stand_in_value(stored))
    comment = _COMMENT.format(generation=stored.generation)
    return f"{comment}version={VERSION}\nchecksum={crc32c(body.encode()):08x}\n{body}"


def parse_broker_config(text: str) -> StoredConfig:
    """Raises ValueError, which says what is wrong."""
    lines = [line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    pairs: dict[str, str] = {}
    for line in lines:
        name, separator, value = line.partition("=")
        if not separator:
            raise ValueError(f"`{line[:80]}` is not KEY=VALUE")
        if name.strip() in pairs:
            raise ValueError(f"{name.strip()} is there twice")
        pairs[name.strip()] = value.strip()
    version = pairs.pop("version", None)
    if version not in (VERSION, _VERSION_WITHOUT_GENERATIONS):
        raise ValueError(f"version is {version}, this software knows {VERSION}")
    checksum = pairs.pop("checksum", None)
    generation = pairs.pop(_GENERATION, None)
    if generation is not None and not (generation.isascii() and generation.isdigit()):
        raise ValueError(f"generation is {generation[:80]}, which is not a number")
    stand_in = pairs.pop(_STAND_IN, None)
    if stand_in not in (None, _TRUE, _NEWER):
        raise ValueError(f"{_STAND_IN} is {stand_in[:80]}, and can only be {_TRUE} or {_NEWER}")
    if generation is None and version == VERSION and checksum is not None:
        raise ValueError("the line of the generation is not there")
    if checksum is not None:
        number = None if generation is None else int(generation)
        body = _body(pairs, number, stand_in)
        if checksum != f"{crc32c(body.encode()):08x}":
            raise ValueError("the checksum is not that of the lines")
    return StoredConfig(
        pairs,
        int(generation or 0),
        is_edited=checksum is None,
        is_stand_in=stand_in is not None,
        replaces_older=stand_in == _NEWER,
    )


def _stand_in_value(stored: StoredConfig) -> str | None:
    if not stored.is_stand_in:
        return None
    return _NEWER if stored.replaces_older else _TRUE


def _body(overrides: Mapping[str, str], generation: int | None, stand_in: str | None) -> str:
    first = "" if generation is None else f"{_GENERATION}={generation}\n"
    if stand_in is not None:
        first += f"{_STAND_IN}={stand_in}\n"
    return first + "".join(f"{name}={value}\n" for name, value in sorted(overrides.items()))
