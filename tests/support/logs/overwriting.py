"""Files that change behind the back of whoever has them open."""

from __future__ import annotations

from stratalog.base.filesystem import Buffer, FileSystem


def overwrite(filesystem: FileSystem, path: str, data: Buffer) -> None:
    """Let the file hold just that; it stays the same file. Raises OSError."""
    file = filesystem.open_append(path)
    try:
        file.truncate(0)
        file.append([data])
    finally:
        file.close()


def flip(filesystem: FileSystem, path: str, position: int, bit: int = 0) -> None:
    """Change a bit of the byte at `position`. Raises OSError."""
    data = bytearray(filesystem.read_file(path))
    data[position] ^= 1 << bit
    overwrite(filesystem, path, data)
