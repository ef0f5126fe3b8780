"""Phase 1: which records of a partition are the last of their keys, as one bit a record.

The key streams of the run's slices are sorted by hash, so they can be merged by ranges of the hash, however
many keys there are: each stream shows a window; up to the smallest of the windows' bounds everything is in
view, so everything up to there can be decided, newest slice first. Then the windows that are used up move on.
Memory is one or two blocks a stream and one bit a record.

A slice whose key stream is missing, or was made with another hash key or strategy, is hashed from its data,
and its bytes are kept at hand for phase 2 (`SurvivorPlan.copies`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from stratalog.base.filesystem import Buffer
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.input_streams import InputStreams
from stratalog.compaction.key_run import KeyRun
from stratalog.compaction.plan.compaction_job import PartitionRun
from stratalog.compaction.scratch import Scratch
from stratalog.compaction.slice_hasher import SliceHasher
from stratalog.compaction.survivor_bits import new_bitmap
from stratalog.record.native.batch_kernels import merge_key_streams
from stratalog.record.native.kernels import merge_windows


class SurvivorPlan:
    """The survivors of one run. Not thread-safe: guarded by the job; a context manager that gives its scratch
    back.
    """

    def __init__(self) -> None:
        self.survivors: list[bytearray] = []
        """A bitmap for each slice of the run."""
        self.copies: dict[int, Scratch] = {}
        """By index of the slice: the bytes of those that had to be read in this phase already."""
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> SurvivorPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @staticmethod
    def of(
        run: PartitionRun,
        inputs: Mapping[str, InputStreams],
        make_scratch: Callable[[], Scratch],
        settings: CompactionSettings,
    ) -> SurvivorPlan:
        """Read the keys of a run and decide. Raises StoreCorruptError, CorruptRecordError and what the store
        raises.
        """
        plan = SurvivorPlan()
        survivors = _survivors_at_once(run, inputs)
        if survivors is not None:
            plan.survivors = survivors
            return plan
        with contextlib.ExitStack() as on_error:
            on_error.callback(plan._closing.close)
            key_runs: list[KeyRun] = []
            for index, live in enumerate(run.slices):
                streams = inputs[live.object_name]
                entry = live.entry
                bitmap = new_bitmap(entry.record_count)
                plan.survivors.append(bitmap)
                if entry.key_stream is not None and run.topic.hashing.made(entry.key_stream):
                    key_runs.append(KeyRun(streams.key_blocks(entry), bitmap))
                elif entry.record_count > 0:
                    key_runs += plan._hashed_runs(
                        index, run, streams, make_scratch, settings.hash_run_entries
                    )
            merge_key_runs(key_runs)
            on_error.pop_all()
        return plan

    def _hashed_runs(
        self,
        index: int,
        run: PartitionRun,
        streams: InputStreams,
        make_scratch: Callable[[], Scratch],
        max_run_entries: int,
    ) -> list[KeyRun]:
        entry = run.slices[index].entry
        copy = self.copies[index] = make_scratch()
        self._closing.callback(copy.close)
        hasher = SliceHasher(run.topic.hashing, entry.record_count, make_scratch, max_run_entries)
        self._closing.callback(hasher.close)
        return hasher.hash_slice(streams.slice_reader(entry), copy, self.survivors[index])


def _survivors_at_once(run: PartitionRun, inputs: Mapping[str, InputStreams]) -> list[bytearray] | None:
    """The survivors of a run whose key streams are all usable and small, with one call; None for others, and
    where something is wrong, which the long way finds again and names.
    """
    key_streams: list[tuple[Buffer, int, int, int]] = []
    for live in run.slices:
        stream = live.entry.key_stream
        if stream is None or not run.topic.hashing.made(stream):
            return None
        data = inputs[live.object_name].small_key_stream(stream)
        if data is None:
            return None
        key_streams.append((data, stream.entry_count, stream.crc, live.entry.record_count))
    return merge_key_streams(key_streams)


def merge_key_runs(key_runs: Sequence[KeyRun]) -> None:
    """Set the bit of the newest entry of each hash. `key_runs` are sorted from the oldest to the newest."""
    active: list[KeyRun] = [run for run in key_runs if not run.is_at_end]
    while active:
        limit = min((bound for run in active if (bound := run.bound) is not None), default=None)
        consumed = merge_windows([run.window for run in active], limit, [run.survivors for run in active])
        # The window that sets the limit is used up, so every round gets on.
        assert sum(consumed) > 0
        for run, count in zip(active, consumed, strict=True):
            run.consume(count)
        active = [run for run in active if not run.is_at_end]
