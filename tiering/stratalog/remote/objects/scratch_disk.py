"""The free space of the disk of scratch files, of which a part is promised to work that has begun.

A file grows after its work has looked at the disk, and several uploads and compactions look at once. So each
is promised all that it may write, before it begins, and no byte is promised twice. What it has written by
then counts as promised until it ends, and as used: the disk may seem fuller than it is, never emptier.

All scratch files of a process count as those of one disk, because nearly all of them are on the first one
with room (``ScratchSpace``). What logs write meanwhile is not known here.
"""

from __future__ import annotations

import threading

from stratalog.base.filesystem import FileSystem


class ScratchDisk:
    """Promises free space. Thread-safe: `_lock` guards what is promised."""

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem
        self._promised_bytes = 0
        self._lock = threading.Lock()

    @property
    def promised_bytes(self) -> int:
        """Bytes that are promised to work that has not ended."""
        return self._promised_bytes

    def free_bytes(self, directory: str) -> int:
        """Free space on the disk of the directory that is not promised; 0 if the disk cannot be read."""
        try:
            free_bytes = self._filesystem.free_bytes(directory)
        except OSError:
            return 0
        return max(0, free_bytes - self._promised_bytes)

    def promise(self, directory: str, size_bytes: int) -> bool:
        """Promise so many bytes; False, and nothing is promised, if fewer are free. `end` gives them back."""
        with self._lock:
            if self.free_bytes(directory) < size_bytes:
                return False
            self._promised_bytes += size_bytes
            return True

    def end(self, size_bytes: int) -> None:
        """Note that nothing more is written of what was promised."""
        with self._lock:
            self._promised_bytes -= size_bytes
            assert self._promised_bytes >= 0, "nothing is given back twice"
