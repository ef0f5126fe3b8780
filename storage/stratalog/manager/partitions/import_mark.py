"""`import.metadata`: a partition's directory that was taken over from a broker says so, for as long as it is
there::

    version: 0
    epoch: 12

The epoch is the one that the server's data directory had claimed when it took the log over. The batches carry
epochs that the broker gave, which say nothing of who has owned the shard: up to the end of the import they
count as batches of this epoch.

The file is also how the next import knows what one that was cut off has left.
"""

from __future__ import annotations

import re

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem

IMPORT_MARK_FILE = "import.metadata"
_VERSION = 0
_TEXT = re.compile(rf"version: {_VERSION}\nepoch: ([0-9]{{1,10}})\n")


def parse_import_mark(data: bytes) -> int:
    """The epoch. Raises ValueError where it is anything else."""
    match = _TEXT.fullmatch(data.decode("ascii", errors="replace"))
    if match is None:
        raise ValueError("not the mark of an import in a known version")
    return int(match[1])


def read_import_mark(filesystem: FileSystem, directory: str) -> int | None:
    """The epoch under which the directory was imported; None where it was not.

    Raises DataDirectoryError where the file is damaged, OSError.
    """
    path = f"{directory}/{IMPORT_MARK_FILE}"
    try:
        return parse_import_mark(filesystem.read_file(path))
    except FileNotFoundError:
        return None
    except ValueError:
        raise DataDirectoryError(
            "the file that says when a partition was imported has been damaged; restore it, or move the"
            " directory away and make an empty one in its place",
            path=path,
        ) from None


def write_import_mark(filesystem: FileSystem, directory: str, epoch: int) -> None:
    """Durable when it returns. Raises OSError."""
    text = f"version: {_VERSION}\nepoch: {epoch}\n"
    replace_file(filesystem, f"{directory}/{IMPORT_MARK_FILE}", text.encode())
