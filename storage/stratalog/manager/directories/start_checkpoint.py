"""Where the logs of a directory start, in two files, so that damage of one shows no deleted record again.

Nothing else tells up to where records were deleted: of what was deleted inside a segment its files know
nothing. `log-start-offset-checkpoint` is in Kafka's form, by which most kinds of damage are seen, and some
are not. `log-start-offset-checkpoint.copy` has the same text below a checksum::

    1c291ca3                CRC-32C of what follows, in eight hexadecimal digits
    0                       as in the other file
    1
    orders 0 105823

The copy is written last: a change has happened once it is there. So it is what counts as long as it is whole;
the other one counts where it is damaged, or missing. Before that one is changed a copy of it is made: a
change that is refused half-way would count otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from crc32c import crc32c

from stratalog.base.atomic_file import replace_file
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import (
    LOG_START_OFFSET_FILE,
    OffsetCheckpoint,
    format_checkpoint,
    parse_checkpoint,
)

logger = logging.getLogger(__name__)

LOG_START_COPY_FILE = LOG_START_OFFSET_FILE + ".copy"
_CRC_DIGITS = 8


class StartCheckpoint:
    """Both files of one directory. Guarded by whoever has the directory: one caller at a time."""

    def __init__(self, filesystem: FileSystem, directory: str) -> None:
        self._filesystem = filesystem
        self._checkpoint = OffsetCheckpoint(filesystem, f"{directory}/{LOG_START_OFFSET_FILE}")
        self._copy_path = f"{directory}/{LOG_START_COPY_FILE}"
        # None where nobody has looked yet; and what counts where no whole copy says it.
        self._has_copy: bool | None = None
        self._uncopied: Mapping[TopicPartition, int] = {}

    def read(self) -> dict[TopicPartition, int]:
        """All entries; none where both files are missing or damaged. Raises OSError where one cannot be
        read."""
        # Looked at in any case: damage is told.
        offsets = self._checkpoint.read()
        try:
            copied = parse_start_copy(self._filesystem.read_file(self._copy_path))
        except FileNotFoundError:
            pass
        except ValueError as failure:
            logger.warning(
                "the copy of a checkpoint is damaged, and the checkpoint counts, path=`%s` reason=`%s`",
                self._copy_path,
                failure,
            )
        else:
            self._has_copy = True
            return copied
        self._has_copy, self._uncopied = False, dict(offsets)
        return offsets

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Durable when it returns. Raises OSError."""
        if self._has_copy is None:
            self.read()
        if not self._has_copy:
            self._write_copy(self._uncopied)
            self._has_copy = True
        self._checkpoint.write(offsets)
        self._write_copy(offsets)

    def _write_copy(self, offsets: Mapping[TopicPartition, int]) -> None:
        replace_file(self._filesystem, self._copy_path, format_start_copy(offsets))


def format_start_copy(offsets: Mapping[TopicPartition, int]) -> bytes:
    """What is in the copy."""
    text = format_checkpoint(offsets).encode()
    return f"{crc32c(text):0{_CRC_DIGITS}x}\n".encode() + text


def parse_start_copy(data: bytes) -> dict[TopicPartition, int]:
    """The entries of a copy. Raises ValueError where anything about it is wrong."""
    checksum, _, text = data.partition(b"\n")
    if checksum != f"{crc32c(text):0{_CRC_DIGITS}x}".encode():
        raise ValueError("its checksum does not match")
    return parse_checkpoint(text.decode())
