"""Files that change while others have them open."""

from __future__ import annotations

from stratalog.base.filesystem import Buffer, FileSystem


def overwrite(filesystem: FileSystem, path: str, data: Buffer, *, durable: bool = False) -> None:
    """Let the file hold just that; it stays the same file, or is made. Raises OSError."""
    file = filesystem.open_append(path)
    try:
        file.truncate(0)
        file.append([data])
        if durable:
            file.sync()
    finally:
        file.close()


def flip(filesystem: FileSystem, path: str, position: int, bit: int = 0) -> None:
    """Change a bit of the byte at `position`. Raises OSError."""
    data = bytearray(filesystem.read_file(path))
    data[position] ^= 1 << bit
    overwrite(filesystem, path, data)
