"""Writing a file as a whole, and reading a long one piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stratalog.base.filesystem import AppendFile, Buffer, FileSystem

_PIECE_BYTES = 1024 * 1024


def write_file(filesystem: FileSystem, path: str, pieces: Iterable[Buffer], *, durable: bool = True) -> None:
    """Let the file `path` hold these pieces, one behind the other, and nothing of what it held. Synced if
    `durable`, but for its name. Raises OSError; it may hold a part of them then."""
    file = filesystem.open_append(path)
    try:
        # A crash, or a write that failed, may have left something.
        file.truncate(0)
        for piece in pieces:
            file.append([piece])
        if durable:
            file.sync()
    finally:
        file.close()


def read_pieces(file: AppendFile, position: int, end_position: int) -> Iterator[bytes]:
    """The bytes from `position` up to `end_position`, which the file has, a mebibyte at a time. Raises
    OSError."""
    while position < end_position:
        piece = file.read_at(position, min(_PIECE_BYTES, end_position - position))
        assert piece, "the file is as long as that"
        yield piece
        position += len(piece)
