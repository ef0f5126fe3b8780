"""A file in a log directory: what it knows of what was altered at run time may be out of date.

Whoever owns a store may alter the configuration, and that lies in its own directories. A server looks before
it claims a shard whether others have owned it since, and holds what may be out of date; an import claims
shards, too, and knows nothing of that configuration. So where others have owned a shard since, or the
directory is new and others have had the store, an import leaves this file, durable before the claim that says
from then on that nobody has. The next start goes by it, and removes it once what it has held is durable.
"""

from __future__ import annotations

from stratalog.base.atomic_file import replace_file
from stratalog.base.filesystem import FileSystem

OUTDATED_CONFIG_FILE = "config-outdated"
_TEXT = b"""\
# An import has found that others have owned the store since a server was started with this directory.
# The next start removes this file.
"""


def mark_config_outdated(filesystem: FileSystem, directory: str) -> None:
    """Durable when it returns. Raises OSError."""
    replace_file(filesystem, f"{directory}/{OUTDATED_CONFIG_FILE}", _TEXT)


def is_config_outdated(filesystem: FileSystem, directory: str) -> bool:
    """Raises OSError."""
    return filesystem.exists(f"{directory}/{OUTDATED_CONFIG_FILE}")


def unmark_config(filesystem: FileSystem, directory: str) -> None:
    """Durable when it returns. Raises OSError."""
    if is_config_outdated(filesystem, directory):
        filesystem.unlink(f"{directory}/{OUTDATED_CONFIG_FILE}")
        filesystem.sync_directory(directory)
