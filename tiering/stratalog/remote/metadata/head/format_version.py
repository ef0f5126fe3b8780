"""The version of everything that the metadata writes, and who may read and write what it finds.

Each JSON object carries two numbers: the lowest version whose software may read it, and the lowest whose
software may change it (fold it, or put a commit on top). A new field that old software may lose sight of but
not lose raises neither, because unknown fields are kept; a new action that changes what is live raises both.
"""

from __future__ import annotations

from stratalog.base.errors import StoreNotUsableError
from stratalog.remote.metadata.head.json_document import JsonFields

FORMAT_VERSION = 1


def require_readable(fields: JsonFields) -> None:
    """Raises StoreNotUsableError where the object may be read by newer software only."""
    version = fields.integer("read_version", minimum=1)
    if version > FORMAT_VERSION:
        raise StoreNotUsableError(
            "this was written for newer software; upgrade before reading it",
            what=fields.what,
            read_version=version,
            supported_version=FORMAT_VERSION,
        )


def require_writable(write_version: int, what: str) -> None:
    """Raises StoreNotUsableError where only newer software may put a commit on top."""
    if write_version > FORMAT_VERSION:
        raise StoreNotUsableError(
            "only newer software may write here; upgrade, or go on reading",
            what=what,
            write_version=write_version,
            supported_version=FORMAT_VERSION,
        )
