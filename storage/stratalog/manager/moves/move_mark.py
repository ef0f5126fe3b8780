"""What a directory says about the move of a partition, for a start that finds the partition twice.

`move.metadata` is in the copy from the beginning, and says of which directories it takes the place::

    version: 0
    partition: orders-3
    move: 7f1c2d60a1f94e0b9d1f2f6f7b3f5a11
    sources: 66OiJamjSDoWdGb695vWvA

As long as the copy's directory is named `-future` it means nothing but that somebody wanted the move. Once it
has the partition's name it is the partition, and what a source still has is removed. A source is named until
it is known to be gone for good: a disk that was away may come back with it.

`move.void` is in a source, where nobody knows whether the rename of the copy is durable because the copy's
disk failed at that moment: copies of these moves count for nothing::

    version: 0
    moves: 7f1c2d60a1f94e0b9d1f2f6f7b3f5a11
"""

from __future__ import annotations

import re
from typing import NamedTuple
from uuid import UUID

from stratalog.base.atomic_file import replace_file
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.manager.directories.data_directory import parse_partition_name

MOVE_MARK_FILE = "move.metadata"
MOVE_VOID_FILE = "move.void"
_VERSION = 0
_MARK = re.compile(
    rf"version: {_VERSION}\npartition: (\S+)\nmove: ([0-9a-f]{{32}})\nsources:((?: [^\s]+)+)\n"
)
_VOID = re.compile(rf"version: {_VERSION}\nmoves:((?: [0-9a-f]{{32}})+)\n")


class MoveMark(NamedTuple):
    """What is in `move.metadata`."""

    partition: TopicPartition
    move_id: UUID
    source_ids: tuple[str, ...]
    """directory.id of each directory that may have an older copy."""


def read_move_mark(filesystem: FileSystem, directory: str) -> MoveMark | None:
    """None where the directory has none, or one that nobody can read: it is written as a whole. Raises
    OSError."""
    match = _MARK.fullmatch(_read(filesystem, f"{directory}/{MOVE_MARK_FILE}"))
    partition = parse_partition_name(match[1]) if match is not None else None
    if match is None or partition is None:
        return None
    return MoveMark(partition, UUID(hex=match[2]), tuple(match[3].split()))


def write_move_mark(filesystem: FileSystem, directory: str, mark: MoveMark) -> None:
    """Durable when it returns, as far as the directory's own name is. Raises OSError."""
    assert mark.source_ids
    text = (
        f"version: {_VERSION}\npartition: {mark.partition}\nmove: {mark.move_id.hex}\n"
        f"sources: {' '.join(mark.source_ids)}\n"
    )
    replace_file(filesystem, f"{directory}/{MOVE_MARK_FILE}", text.encode())


def remove_move_source(filesystem: FileSystem, directory: str, source_id: str) -> None:
    """That source has no older copy any more. Durable when it returns. Raises OSError."""
    mark = read_move_mark(filesystem, directory)
    if mark is None or source_id not in mark.source_ids:
        return
    others = tuple(other for other in mark.source_ids if other != source_id)
    if others:
        write_move_mark(filesystem, directory, mark._replace(source_ids=others))
        return
    filesystem.unlink(f"{directory}/{MOVE_MARK_FILE}")
    filesystem.sync_directory(directory)


def read_move_voids(filesystem: FileSystem, directory: str) -> frozenset[UUID]:
    """The moves of which no copy counts. Raises OSError."""
    match = _VOID.fullmatch(_read(filesystem, f"{directory}/{MOVE_VOID_FILE}"))
    return frozenset(map(UUID, match[1].split())) if match is not None else frozenset()


def write_move_void(filesystem: FileSystem, directory: str, move_id: UUID) -> None:
    """No copy of this move counts any more. Durable when it returns. Raises OSError."""
    moves = sorted({*read_move_voids(filesystem, directory), move_id})
    text = f"version: {_VERSION}\nmoves: {' '.join(move.hex for move in moves)}\n"
    replace_file(filesystem, f"{directory}/{MOVE_VOID_FILE}", text.encode())


def _read(filesystem: FileSystem, path: str) -> str:
    """Empty where the file is missing."""
    try:
        return filesystem.read_file(path).decode("ascii", errors="replace")
    except FileNotFoundError:
        return ""
