"""The producers of a partition, and its open transactions.

For each producer the last five batches (see `producer_state_entry`); for the log the transactions, by their
first offset::

    ongoing       no marker yet
    unreplicated  ended, but the marker is not below the high watermark: it may still be lost

The first unstable offset is the first offset of the oldest of both. Readers of committed records stop there:
every transaction below has ended for good.

State follows the log: `append` moves it by one batch, by the same rule for a leader, a follower and a
recovery. So the state at an offset depends only on the log below it, and on producers that have expired, or
were forgotten for new ones. A snapshot has only the newest batch of each producer, and no unreplicated
transactions. A reload that knows the high watermark begins below it, and so finds the latter again.

Crash: only the snapshots are durable. Opening a log loads one and replays the batches behind it.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping

from stratalog.base.errors import LimitExceededError, OverloadedError
from stratalog.log.producers.producer_batch import ProducerBatch
from stratalog.log.producers.producer_fold import CompletedTransaction, ProducerFold
from stratalog.log.producers.producer_room import IDLE_MS, ProducerRoom
from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.log.producers.producer_snapshot_files import ProducerSnapshotFiles
from stratalog.log.producers.producer_state_entry import ProducerStateEntry


class ProducerStateManager:
    """The producers and open transactions of a log. Guarded by UnifiedLog.lock; `first_unstable_offset` may
    be asked beside a change."""

    def __init__(self, snapshot_files: ProducerSnapshotFiles, *, producer_id_expiration_ms: int) -> None:
        """Empty, at offset 0: `truncate_and_reload` follows. `producer_id_expiration_ms`: a producer that is
        idle for so long is forgotten."""
        self.snapshot_files = snapshot_files
        self.expiration_ms = producer_id_expiration_ms
        self._fold = ProducerFold(ProducerSnapshot(0, ()))
        self._room: ProducerRoom | None = None
        # By producer the room's time of its last append or, for one that was loaded, of the loading, oldest
        # first. The records' own times do not tell who is idle: they may be of a past that is copied now.
        # The producers of the fold while there is a room, which counts them; empty without one.
        self._active_ms: OrderedDict[int, int] = OrderedDict()
        # (first offset, marker's offset) as a heap. An entry that the high watermark has passed leaves when
        # it is on top.
        self._unreplicated: list[tuple[int, int]] = []
        self._high_watermark = 0
        self._map_end_offset = 0
        self._last_snapshot_offset = 0
        self._first_unstable_offset: int | None = None

    @property
    def producers(self) -> Mapping[int, ProducerStateEntry]:
        """The producers by id. A view: it moves with the state."""
        return self._fold.producers

    @property
    def map_end_offset(self) -> int:
        """The state is that of the log below this offset."""
        return self._map_end_offset

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction that is open or may still be lost; None without one."""
        return self._first_unstable_offset

    @property
    def first_undecided_offset(self) -> int | None:
        """First offset of the oldest open transaction; None without one."""
        return self._fold.first_undecided_offset

    @property
    def open_transactions(self) -> tuple[tuple[int, int], ...]:
        """Producer id and first offset of each, oldest first."""
        return self._fold.open_transactions

    def entry(self, producer_id: int) -> ProducerStateEntry:
        """The entry of that producer; see `ProducerStateEntry.is_unknown` for an unknown one."""
        return self._fold.entry(producer_id)

    def append(self, batch: ProducerBatch) -> CompletedTransaction | None:
        """Follow the next batch of the log; return the transaction that it ends, if any.

        Refuses no batch: the batches of a log are facts. A leader asks `ProducerAppend` first.
        """
        assert batch.header.next_offset > self._map_end_offset
        self._map_end_offset = batch.header.next_offset
        completed = self._fold.follow(batch)
        if self._room is not None and batch.header.producer_id in self.producers:
            self._note_active([batch.header.producer_id], self._room)
        if completed is not None:
            heapq.heappush(self._unreplicated, (completed.first_offset, completed.last_offset))
        self._note_first_unstable_offset()
        return completed

    def update_map_end_offset(self, offset: int) -> None:
        """Note that no batch between the last one and `offset` has a producer."""
        assert offset >= self._map_end_offset
        self._map_end_offset = offset

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Note that markers below `high_watermark` cannot be lost any more."""
        self._high_watermark = max(self._high_watermark, high_watermark)
        if self._unreplicated:
            self._note_first_unstable_offset()

    def on_log_start_offset_incremented(self, log_start_offset: int) -> None:
        """Note that the records below `log_start_offset` are deleted. Their producers stay known."""
        self.on_high_watermark_updated(log_start_offset)
        self._map_end_offset = max(self._map_end_offset, log_start_offset)

    def _note_first_unstable_offset(self) -> None:
        heap = self._unreplicated
        while heap and heap[0][1] < self._high_watermark:
            heapq.heappop(heap)
        undecided = self.first_undecided_offset
        if heap and (undecided is None or heap[0][0] < undecided):
            undecided = heap[0][0]
        self._first_unstable_offset = undecided

    def remove_expired_producers(self, now_ms: int) -> None:
        """Forget the producers that have been idle for too long, by the timestamp of their last batch.

        A producer with an open transaction stays.
        """
        entries = self._fold.producers.values()
        self._forget([entry.producer_id for entry in entries if self._is_expired(entry, now_ms)])

    def count_in(self, room: ProducerRoom) -> None:
        """Take part in the bounds of these logs, until `leave_room`. All producers count as active now."""
        assert self._room is None
        self._room = room
        self._note_active(self.producers, room)

    def leave_room(self) -> None:
        """Count no more: the log is closed. May be called twice."""
        room, self._room = self._room, None
        if room is not None:
            room.add(-len(self._active_ms))
            self._active_ms.clear()

    def require_room(self, new_count: int, staged: Collection[int]) -> None:
        """Make room for so many producers that are not known. Those that have been idle for longest are
        forgotten, as if they had expired, but none of the `staged` ones, none that has an open transaction,
        and none at all if that would not be enough.

        Raises LimitExceededError if too many of this log were active lately. Raises OverloadedError if all
        logs know too many: those of other logs may be forgotten soon.
        """
        room = self._room
        if room is None:
            return
        log_excess = len(self.producers) + new_count - room.max_log_count
        missing_count = max(log_excess, room.count + new_count - room.max_total_count)
        if missing_count <= 0:
            return
        may_go = (one for one in self._idle_ids(room, IDLE_MS) if one not in staged)
        idle = [*itertools.islice(may_go, missing_count)]
        if len(idle) == missing_count:
            self._forget(idle)
            return
        if log_excess > len(idle):
            raise LimitExceededError(
                "the partition knows as many producers as it may, all of which have written lately; use fewer"
                " producers, append without an id, or raise max-partition-producer-count of the server",
                producer_count=len(self.producers) + new_count,
                max_producer_count=room.max_log_count,
            )
        raise OverloadedError(
            "the partitions of the server know as many producers as they may; send again when idle ones are"
            " forgotten, use fewer producers, append without an id, or raise its max-producer-count",
            producer_count=room.count + new_count,
            max_producer_count=room.max_total_count,
        )

    def forget_idle(self, idle_ms: int, max_count: int) -> int:
        """Forget at most `max_count` producers that have appended nothing for `idle_ms`, those that have been
        idle for longest, but none that has an open transaction. Returns their number."""
        if self._room is None:
            return 0
        idle = [*itertools.islice(self._idle_ids(self._room, idle_ms), max_count)]
        self._forget(idle)
        return len(idle)

    def _idle_ids(self, room: ProducerRoom, idle_ms: int) -> Iterator[int]:
        """The producers without an open transaction that have been idle for so long, those that have been for
        longest first."""
        last_ms = room.elapsed_ms() - idle_ms
        for producer_id, active_ms in self._active_ms.items():
            if active_ms > last_ms:
                return
            if self.producers[producer_id].current_txn_first_offset is None:
                yield producer_id

    def _forget(self, producer_ids: Collection[int]) -> None:
        """Forget these producers, none of which has an open transaction."""
        self._fold.forget(producer_ids)
        if self._room is not None and producer_ids:
            for producer_id in producer_ids:
                del self._active_ms[producer_id]
            self._room.add(-len(producer_ids))

    def _note_active(self, producer_ids: Iterable[int], room: ProducerRoom) -> None:
        """Note that these producers are active now, and let the room count those that are new."""
        now_ms, former_count = room.elapsed_ms(), len(self._active_ms)
        for producer_id in producer_ids:
            self._active_ms[producer_id] = now_ms
            self._active_ms.move_to_end(producer_id)
        if len(self._active_ms) != former_count:
            room.add(len(self._active_ms) - former_count)

    def _is_expired(self, entry: ProducerStateEntry, now_ms: int) -> bool:
        return (
            entry.current_txn_first_offset is None and now_ms - entry.last_timestamp_ms >= self.expiration_ms
        )

    def snapshot(self) -> ProducerSnapshot:
        """The state as it is now."""
        return self._fold.snapshot(self._map_end_offset)

    def take_snapshot(self, *, durable: bool = True) -> None:
        """Write the state to a file, unless there is one for this offset; see `ProducerSnapshotFiles.write`.

        Raises OSError.
        """
        if self._map_end_offset > self._last_snapshot_offset:
            self.snapshot_files.write(self.snapshot(), durable=durable)
            self._last_snapshot_offset = self._map_end_offset

    def truncate_and_reload(
        self,
        local_start_offset: int,
        log_end_offset: int,
        now_ms: int,
        *,
        high_watermark: int | None = None,
    ) -> None:
        """Cut the state to the local segments, [local_start_offset, log_end_offset). Removes snapshots
        outside, durably.

        If that changes the state, this loads the newest snapshot at or below `high_watermark` (None: at or
        below the end), without expired producers, and the caller replays the log from `map_end_offset` on.
        Without a snapshot the caller replays all local segments. Raises OSError.
        """
        self.snapshot_files.remove_outside(local_start_offset, log_end_offset)
        if self._map_end_offset == log_end_offset:
            self.on_log_start_offset_incremented(local_start_offset)
        else:
            loadable_end_offset = log_end_offset
            if high_watermark is not None:
                loadable_end_offset = min(log_end_offset, high_watermark)
            self._load(local_start_offset, loadable_end_offset, now_ms)
        self._last_snapshot_offset = max(self.snapshot_files.latest or 0, local_start_offset)

    def restore(self, snapshot: ProducerSnapshot, now_ms: int) -> None:
        """Take over the state below an empty log, which begins at the snapshot. Writes the snapshot; durable
        when it returns. Raises OSError."""
        self.snapshot_files.write(snapshot)
        self._load(snapshot.end_offset, snapshot.end_offset, now_ms)
        self._last_snapshot_offset = snapshot.end_offset

    def _load(self, local_start_offset: int, loadable_end_offset: int, now_ms: int) -> None:
        loaded = self.snapshot_files.newest_at_or_below(loadable_end_offset)
        entries = () if loaded is None else loaded.entries
        known = tuple(entry for entry in entries if not self._is_expired(entry, now_ms))
        self._reset(ProducerSnapshot(local_start_offset if loaded is None else loaded.end_offset, known))

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Forget everything; the log begins anew at `offset`. Removes all snapshots, durably. Raises
        OSError."""
        self.snapshot_files.remove_outside(-1, -1)
        self._reset(ProducerSnapshot(offset, ()))
        self._last_snapshot_offset = 0

    def _reset(self, snapshot: ProducerSnapshot) -> None:
        room = self._room
        self.leave_room()
        self._fold = ProducerFold(snapshot)
        if room is not None:
            self.count_in(room)
        self._unreplicated.clear()
        self._high_watermark = 0
        self._map_end_offset = snapshot.end_offset
        self._note_first_unstable_offset()

    def check(self) -> None:
        """Assert that producers, transactions and offsets agree."""
        self._fold.check(self._map_end_offset)
        assert self._active_ms.keys() == (set() if self._room is None else self.producers.keys())
        assert [*self._active_ms.values()] == sorted(self._active_ms.values())
        assert all(first < marker < self._map_end_offset for first, marker in self._unreplicated)
        unreplicated = [first for first, marker in self._unreplicated if marker >= self._high_watermark]
        undecided = [first for _, first in self._fold.open_transactions]
        assert self._first_unstable_offset == min([*undecided, *unreplicated], default=None)
        offsets = self.snapshot_files.offsets
        assert list(offsets) == sorted(set(offsets))
