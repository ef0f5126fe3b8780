"""The leader epochs of a log: the first offset of each.

If two copies of a log differ, they differ from the end of some epoch on. Each asks the other for the end of
an epoch that it knows, and so finds the last offset that both have. The file is Kafka's, text::

    0             version
    2             how many lines follow
    0 0           epoch, its start offset
    7 105640

Both columns ascend strictly; an epoch without a batch has no entry. The epoch of a batch must be in the file
before the batch is in the log: `assign`, then `flush`, then the append. If a crash takes the batch, its entry
does no harm, because opening a log truncates the cache to the log's end.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import FileSystem
from stratalog.record.header import MAX_OFFSET
from stratalog.segment.batch_read import EpochSpan

LEADER_EPOCH_FILE = "leader-epoch-checkpoint"
_VERSION = 0
_TEXT = re.compile(r"([0-9]+)\n([0-9]+)\n((?:[0-9]+ [0-9]+\n)*)")
_MAX_EPOCH = 2**31 - 1


class EpochEntry(NamedTuple):
    """The first batch of `epoch` begins at `start_offset`."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """`end_offset`: exclusive."""

    epoch: int
    end_offset: int


class LeaderEpochCache:
    """Changes are guarded by UnifiedLog.lock; questions are thread-safe beside them."""

    def __init__(self, filesystem: FileSystem, directory: str, entries: Sequence[EpochEntry] = ()) -> None:
        """Begin with these entries. Raises CorruptRecordError if the entries do not ascend."""
        self._filesystem = filesystem
        self._path = f"{directory}/{LEADER_EPOCH_FILE}"
        self._entries = tuple(entries)
        self._flushed: tuple[EpochEntry, ...] | None = None
        _require_ascending(self._entries)

    @staticmethod
    def load(filesystem: FileSystem, directory: str) -> LeaderEpochCache:
        """Read the file; a missing one is empty.

        Raises CorruptRecordError if it is damaged (the epochs can be read from the log's batches), OSError.
        """
        try:
            entries = parse_epochs(filesystem.read_file(f"{directory}/{LEADER_EPOCH_FILE}"))
        except FileNotFoundError:
            return LeaderEpochCache(filesystem, directory)
        cache = LeaderEpochCache(filesystem, directory, entries)
        cache._flushed = cache._entries
        return cache

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """Oldest first."""
        return self._entries

    @property
    def latest_epoch(self) -> int | None:
        entries = self._entries
        return entries[-1].epoch if entries else None

    def assign(self, epoch: int, offset: int) -> None:
        """Note that the batch at `offset` has this epoch. In memory until `flush`.

        Raises CorruptRecordError for a negative epoch, and for one below that of an earlier batch.
        """
        # An epoch that begins here or above has no batch, because this batch is the last one.
        kept = self._entries[: bisect_right(self._entries, offset - 1, key=_start_offset)]
        latest_epoch = kept[-1].epoch if kept else -1
        if not 0 <= epoch <= _MAX_EPOCH or epoch < latest_epoch:
            raise CorruptRecordError(
                "a batch has no leader epoch, or a lower one than the batch before it",
                offset=offset,
                epoch=epoch,
                latest_epoch=latest_epoch,
            )
        self._entries = kept if epoch == latest_epoch else (*kept, EpochEntry(epoch, offset))

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd | None:
        """The end of `epoch`, or else of the highest epoch below it that the log has.

        For an epoch below all of them: the start of the first one. None if the log knows no epoch as high.
        """
        entries = self._entries
        count = bisect_right(entries, epoch, key=_epoch)
        if count < len(entries):
            return EpochEnd(entries[count - 1].epoch if count else epoch, entries[count].start_offset)
        if entries and entries[-1].epoch == epoch:
            return EpochEnd(epoch, log_end_offset)
        return None

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch of the batch at `offset`; None below the first known one."""
        entries = self._entries
        count = bisect_right(entries, offset, key=_start_offset)
        return entries[count - 1].epoch if count else None

    def span_at(self, offset: int) -> EpochSpan:
        """The epoch of the batch at `offset`, -1 if it is not known, and the start of the next one."""
        entries = self._entries
        if entries and entries[-1].start_offset <= offset:
            return EpochSpan(entries[-1].epoch, MAX_OFFSET)
        count = bisect_right(entries, offset, key=_start_offset)
        if not count:
            # The log may have been cut at the first entry, in the midst of a batch.
            return EpochSpan(-1, MAX_OFFSET)
        return EpochSpan(entries[count - 1].epoch, entries[count].start_offset)

    def entries_in_range(self, start_offset: int, end_offset: int) -> tuple[EpochEntry, ...]:
        """The epochs of the batches in [start_offset, end_offset), the first cut to begin there."""
        return _from_start(_to_end(self._entries, end_offset), start_offset)

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs from `end_offset` on. In memory until `flush`."""
        self._entries = _to_end(self._entries, end_offset)

    def truncate_from_start(self, start_offset: int) -> None:
        """Let the log begin at `start_offset`, in the epoch that it has there. In memory until `flush`."""
        self._entries = _from_start(self._entries, start_offset)

    def replace(self, entries: Sequence[EpochEntry]) -> None:
        """Replace all epochs. In memory until `flush`.

        Raises CorruptRecordError, with nothing changed, if they do not ascend.
        """
        _require_ascending(entries)
        self._entries = tuple(entries)

    def clear(self) -> None:
        """Forget all. In memory until `flush`."""
        self._entries = ()

    def flush(self) -> None:
        """Write the file if the epochs have changed; durable when it returns. Raises OSError, and the next
        call tries again."""
        entries = self._entries
        if entries != self._flushed:
            replace_file(self._filesystem, self._path, format_epochs(entries))
            self._flushed = entries

    def relocate(self, directory: str) -> None:
        """Use the file in that directory, which has these epochs."""
        self._path = f"{directory}/{LEADER_EPOCH_FILE}"
        self._flushed = self._entries

    def check(self) -> None:
        """Assert that epochs and offsets ascend."""
        _require_ascending(self._entries)


def format_epochs(entries: Sequence[EpochEntry]) -> bytes:
    """The contents of the file."""
    lines = [str(_VERSION), str(len(entries)), *(f"{entry.epoch} {entry.start_offset}" for entry in entries)]
    return ("\n".join(lines) + "\n").encode()


def parse_epochs(data: bytes) -> tuple[EpochEntry, ...]:
    """The entries of the file. Raises CorruptRecordError if anything about it is wrong."""
    match = _TEXT.fullmatch(data.decode("ascii", errors="replace"))
    lines = match[3].splitlines() if match else []
    if match is None or match[1] != str(_VERSION) or match[2] != str(len(lines)):
        raise CorruptRecordError(
            "the leader epochs are not of a known version or not complete; make them again from the log",
            size=len(data),
        )
    entries: list[EpochEntry] = []
    for line in lines:
        epoch, _, start_offset = line.partition(" ")
        # Longer numbers are out of range, and slow to parse.
        if len(epoch) > len(str(_MAX_EPOCH)) or len(start_offset) > len(str(MAX_OFFSET)):
            raise CorruptRecordError("a leader epoch is out of range", line=line[:40])
        entries.append(EpochEntry(int(epoch), int(start_offset)))
    _require_ascending(entries)
    return tuple(entries)


def _require_ascending(entries: Sequence[EpochEntry]) -> None:
    for before, after in pairwise((EpochEntry(-1, -1), *entries)):
        if not (
            before.epoch < after.epoch <= _MAX_EPOCH
            and before.start_offset < after.start_offset <= MAX_OFFSET
        ):
            raise CorruptRecordError("leader epochs do not ascend", before=tuple(before), after=tuple(after))


def _to_end(entries: tuple[EpochEntry, ...], end_offset: int) -> tuple[EpochEntry, ...]:
    return entries[: bisect_right(entries, end_offset - 1, key=_start_offset)]


def _from_start(entries: tuple[EpochEntry, ...], start_offset: int) -> tuple[EpochEntry, ...]:
    count = bisect_right(entries, start_offset, key=_start_offset)
    if not count:
        return entries
    return (EpochEntry(entries[count - 1].epoch, start_offset), *entries[count:])


def _epoch(entry: EpochEntry) -> int:
    return entry.epoch


def _start_offset(entry: EpochEntry) -> int:
    return entry.start_offset
