"""The file of what was altered at run time, in the data directory: small, and written whole each time.

::

    # comments, and empty lines, are skipped
    version=0
    checksum=1d2ef93b
    log.cleaner.threads=2
    log.retention.ms=-1

The checksum is the CRC-32C of the lines behind it, in hexadecimal, each with its line end. A crash leaves the
old file or the new one. A file whose bytes are not what was written stops the start: to go on by defaults
could delete records that a retention in this file keeps. A human who changes it takes the line of the
checksum away; then nothing is compared.
"""

from __future__ import annotations

from collections.abc import Mapping

from crc32c import crc32c

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem

BROKER_CONFIG_FILE = "broker-config.properties"
VERSION = "0"
_COMMENT = "# Altered at run time by `stratalog config alter --broker`. Take the checksum away to edit it.\n"


class BrokerConfigFile:
    """Not thread-safe: guarded by RuntimeConfig."""

    def __init__(self, filesystem: FileSystem, data_dir: str) -> None:
        self._filesystem = filesystem
        self.path = f"{data_dir}/{BROKER_CONFIG_FILE}"

    def read(self) -> dict[str, str]:
        """What was altered; nothing where there is no file. Raises DataDirectoryError."""
        try:
            data = self._filesystem.read_file(self.path)
        except (FileNotFoundError, NotADirectoryError):
            # Whoever locks the data directory says what is wrong with its name.
            return {}
        except OSError as failure:
            raise DataDirectoryError(
                "the configuration that was altered at run time, which is also what retention goes by, cannot"
                " be read; repair the disk, or start with another data directory as docs/operating.md says",
                path=self.path,
                reason=str(failure),
            ) from failure
        try:
            return parse_broker_config(data.decode())
        except ValueError as damage:
            raise DataDirectoryError(
                "the configuration that was altered at run time is damaged; correct the file and take its"
                " line `checksum=` away, or remove it to go by what the start is given",
                path=self.path,
                reason=str(damage),
            ) from None

    def write(self, overrides: Mapping[str, str]) -> None:
        """Durable when it returns. Raises DataDirectoryError; a restart finds the former one, or this."""
        try:
            replace_file(self._filesystem, self.path, format_broker_config(overrides).encode())
        except OSError as failure:
            raise DataDirectoryError(
                "the configuration cannot be written, and the server goes on by the former one; repair the"
                " disk and try again",
                path=self.path,
                reason=str(failure),
            ) from failure


def format_broker_config(overrides: Mapping[str, str]) -> str:
    """The text of the file."""
    body = _body(overrides)
    return f"{_COMMENT}version={VERSION}\nchecksum={crc32c(body.encode()):08x}\n{body}"


def parse_broker_config(text: str) -> dict[str, str]:
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
    if version != VERSION:
        raise ValueError(f"version is {version}, this software knows {VERSION}")
    checksum = pairs.pop("checksum", None)
    if checksum is not None and checksum != f"{crc32c(_body(pairs).encode()):08x}":
        raise ValueError("the checksum is not that of the lines")
    return pairs


def _body(overrides: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in sorted(overrides.items()))
