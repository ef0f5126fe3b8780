"""A file that is dumped, and its neighbours."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from stratalog.base.filesystem import FileSystem

# Kafka names the files of a segment after its base offset. A crash may leave the suffix of a replacement.
OFFSET_NAME = re.compile(r"([0-9]{20})(\.[a-z]+)(\.deleted|\.swap|\.cleaned)?", re.ASCII)


class DumpedFile(NamedTuple):
    """A path, where to read it, and the offset in its name (0 without one)."""

    filesystem: FileSystem
    path: str
    offset: int = 0

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def directory(self) -> str:
        return os.path.dirname(self.path)

    def beside(self, suffix: str) -> str:
        """Path of the same segment's file with `suffix`, in the same state of replacement."""
        match = OFFSET_NAME.fullmatch(self.name)
        assert match is not None
        return f"{self.directory}/{match[1]}{suffix}{match[3] or ''}"
