"""Writes a whole file, and reads a long one in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stratalog.base.filesystem import AppendFile, Buffer, FileSystem

_PIECE_BYTES = 1024 * 1024


def write_file(filesystem: FileSystem, path: str, pieces: Iterable[Buffer], *, durable: bool = True) -> None:
    """Replace the contents of the file `path` by these pieces. If `durable`, syncs the contents, not the
    name. Raises OSError; the file may then have a part of the pieces."""
    file = filesystem.open_append(path)
    try:
        # A crash or a failed write may have left bytes.
        file.truncate(0)
        for piece in pieces:
            file.append([piece])
        if durable:
            file.sync()
    finally:
        file.close()


def read_pieces(file: AppendFile, position: int, end_position: int) -> Iterator[bytes]:
    """Yield the bytes from `position` to `end_position`, which the file has, a mebibyte at a time. Raises
    OSError."""
    while position < end_position:
        piece = file.read_at(position, min(_PIECE_BYTES, end_position - position))
        assert piece, "the file is as long as that"
        yield piece
        position += len(piece)
