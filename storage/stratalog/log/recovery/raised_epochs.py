"""Corrects leader epochs that go back in a broker's log, by raising them.

A topic's epochs begin at 0 again if a cluster is made anew over old log directories. The broker goes on with
the log, forgets the higher epochs in its file, and writes batches with lower ones behind the old::

    batches          0..19: epoch 17    20..29: epoch 0    30..: epoch 1
    the file         0 20, 1 30
    batches after    all of them: epoch 17

Here epochs never go back: copies of a log are compared by them, and they show damage, because the checksum
does not cover them. So such batches get the highest epoch before theirs. Records and offsets stay the same,
and later batches have a higher epoch anyway.

This happens only if the file does not know the epoch of the first batches (or is missing: then a broker's
recovery reads the batches, too). Otherwise a difference between a batch and the file is damage of one of
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.file_contents import read_pieces, write_file
from stratalog.base.filesystem import AppendFile
from stratalog.log.leader_epoch_cache import EpochEntry, LeaderEpochCache
from stratalog.log.recovery.known_epochs import is_newer, require_epoch
from stratalog.record.batch import crc_matches
from stratalog.record.header import LEADER_EPOCH_POSITION, MAGIC_POSITION, BatchHeader
from stratalog.segment.batch_walk import walk
from stratalog.segment.file_names import CLEANED_SUFFIX
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_resources import SegmentResources


class _Lowered(NamedTuple):
    """A batch with a lower epoch than one before it, and its new epoch."""

    position: int
    leader_epoch: int


class EpochRaise:
    """Corrects the epochs of one log whose files are not open yet. Used by one thread, once."""

    def __init__(self, resources: SegmentResources, directory: str, *, was_clean: bool) -> None:
        """`was_clean`: the broker has closed the log, so its file has every epoch."""
        self._resources = resources
        self._filesystem = resources.filesystem
        self._directory = directory
        self._was_clean = was_clean
        self._entries: list[EpochEntry] = []
        self._latest_epoch = 0
        self._raised_from: int | None = None

    def run(self, segments: Sequence[LogSegment]) -> int | None:
        """Raise the epochs in new files, because the broker may share the old ones. Return the offset of the
        first raised batch, or None. Durable when it returns.

        Raises DataDirectoryError if batches contradict the file of epochs, OSError.
        """
        known = self._known()
        if known.entries and (not segments or known.entries[0].start_offset <= segments[0].base_offset):
            return None
        for segment in segments:
            lowered = list(self._lowered(segment, known))
            if lowered:
                self._rewrite(segment, lowered)
        if self._raised_from is not None:
            epochs = LeaderEpochCache(self._filesystem, self._directory, self._entries)
            epochs.flush()
            self._filesystem.sync_directory(self._directory)
        return self._raised_from

    def _known(self) -> LeaderEpochCache:
        try:
            return LeaderEpochCache.load(self._filesystem, self._directory)
        except CorruptRecordError:
            return LeaderEpochCache(self._filesystem, self._directory)

    def _lowered(self, segment: LogSegment, known: LeaderEpochCache) -> Iterator[_Lowered]:
        """The batches of the segment to raise. Skips damaged ones, whose epoch may be wrong."""
        with self._resources.files.use(segment.path) as file:
            for position, header in self._sound(segment, file):
                may_be_newer = not self._was_clean and is_newer(header, known)
                if not may_be_newer:
                    require_epoch(segment, header, known)
                if header.leader_epoch < self._latest_epoch:
                    if self._raised_from is None:
                        self._raised_from = header.base_offset
                    self._note(header)
                    yield _Lowered(position, self._latest_epoch)
                else:
                    self._latest_epoch = header.leader_epoch
                    self._note(header)

    def _note(self, header: BatchHeader) -> None:
        """Note that the batch has the latest epoch."""
        if not self._entries or self._entries[-1].epoch != self._latest_epoch:
            self._entries.append(EpochEntry(self._latest_epoch, header.base_offset))

    def _sound(self, segment: LogSegment, file: AppendFile) -> Iterator[tuple[int, BatchHeader]]:
        try:
            for position, header in walk(
                file, 0, segment.size_bytes, segment.base_offset, epochs_ascend=False
            ):
                data = file.read_at(position, header.size_in_bytes)
                if len(data) == header.size_in_bytes and crc_matches(data, 0, header):
                    yield position, header
        except CorruptRecordError:
            # Recovery and reads find the damage behind.
            return

    def _rewrite(self, segment: LogSegment, lowered: Sequence[_Lowered]) -> None:
        """Write the segment under another name first: the broker may share the file."""
        copy_path = segment.path + CLEANED_SUFFIX
        if self._filesystem.exists(copy_path):
            self._filesystem.unlink(copy_path)
        with self._resources.files.use(segment.path) as file:
            write_file(self._filesystem, copy_path, _with_epochs(file, lowered))
        self._resources.files.forget(segment.path)
        self._filesystem.rename(copy_path, segment.path)


def _with_epochs(file: AppendFile, lowered: Sequence[_Lowered]) -> Iterator[bytes]:
    """The bytes of the file, with other epochs for these batches."""
    position = 0
    for item in lowered:
        yield from read_pieces(file, position, item.position + LEADER_EPOCH_POSITION)
        yield item.leader_epoch.to_bytes(MAGIC_POSITION - LEADER_EPOCH_POSITION, "big")
        position = item.position + MAGIC_POSITION
    yield from read_pieces(file, position, file.size())
