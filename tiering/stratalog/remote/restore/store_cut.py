"""The state of a whole store at one moment: of the catalog and of every shard, by checkpoints and history.

The logs of a store commit independently of each other, so the moment is a time: each log is taken up to its
newest commit by then. A commit of one log stands for its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from stratalog.base.errors import (
    ObjectArchivedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreCorruptError,
)
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.catalog.catalog_state import CatalogMachine, CatalogState
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.shard.metadata_log import ShardMachine
from stratalog.remote.metadata.shard.shard_builder import LoadDirectory
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.objects.object_directory import read_directory
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.restore.partition_tiling import LostOffsets
from stratalog.remote.restore.shard_replay import Replayed, ShardReplay
from stratalog.remote.restore.stored_log import StoredLog
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout

MAX_NAMED_COUNT = 10
"""Files that an error names; it counts all."""


class Until(NamedTuple):
    """The end of what is restored: a time, a commit of one log, or one of each. Without any it is now."""

    time_ms: int | None = None
    """Milliseconds since 1970, by the clocks of the writers."""
    seq: int | None = None
    shard: int | None = None
    """The shard of the commit; None for the catalog."""
    seqs: tuple[int, ...] = ()
    """The commits of the catalog and of each shard."""


class CutMoment(NamedTuple):
    """A moment, as a commit of each log of a store: of the catalog, then of the shards. Immutable."""

    heads: tuple[Head, ...]
    """The heads that were read to find the commits."""
    seqs: tuple[int, ...]

    @property
    def catalog_seq(self) -> int:
        return self.seqs[0]

    @property
    def catalog_head(self) -> Head:
        return self.heads[0]

    def shard_seq(self, shard: int) -> int:
        return self.seqs[shard + 1]

    def shard_head(self, shard: int) -> Head:
        return self.heads[shard + 1]


class StoreCut(NamedTuple):
    """The states of a store's logs at one moment. Immutable."""

    catalog: CatalogState
    shards: tuple[ShardState, ...]
    """The shards, by number."""
    lost: tuple[LostOffsets, ...]
    """Offsets that were live then and whose objects are gone; gaps stand for them in the states."""
    gone: tuple[str, ...]
    """Objects that are gone, or whose directories are damaged, and that were live then; nothing else tells of
    their slices."""
    incomplete_shards: frozenset[int]
    """The shards of these objects."""
    next_producer_id: int
    """The one of the newest catalog: ids below may be in records of the cut."""
    problems: tuple[str, ...]
    """Damaged files that were passed over; a text for people each."""


class StoreCutter:
    """Cuts a store at a moment, without a change of it. Not thread-safe: one command uses it."""

    def __init__(
        self, store: ObjectStore, identity: StoreIdentity, copies: ObjectStore | None = None
    ) -> None:
        """`copies` has objects that an earlier attempt to restore the store has copied."""
        self._stores = (store,) if copies is None else (store, copies)
        self._damaged: dict[str, str] | None = None
        """Texts about the objects whose directories are damaged; None where that is an error."""
        self._catalog = StoredLog(store, StoreLayout(None), CatalogMachine())
        self._loads = [partial(self._directory, StoreLayout(shard)) for shard in range(identity.shard_count)]
        self._shards = [
            StoredLog(store, StoreLayout(shard), ShardMachine(load)) for shard, load in enumerate(self._loads)
        ]

    def moment(self, until: Until) -> CutMoment:
        """The commits at that moment; 0 for a log that had none. Raises PreconditionFailedError if the
        history does not reach back to it, StoreCorruptError if a head is lost, StoreError.
        """
        logs: list[StoredLog[Any]] = [self._catalog, *self._shards]
        heads = [_head_of(log) for log in logs]
        if until.seqs:
            if len(until.seqs) != len(logs) or any(
                seq > head.seq for seq, head in zip(until.seqs, heads, strict=True)
            ):
                raise PreconditionFailedError(
                    "the store does not have these commits; look whether it is the right one",
                    commits=",".join(map(str, until.seqs)),
                )
            return CutMoment(tuple(heads), until.seqs)
        time_ms, position = until.time_ms, 0
        if until.seq is not None:
            position = 0 if until.shard is None else until.shard + 1
            if position >= len(logs):
                raise PreconditionFailedError(
                    "there is no such shard; name one of this store's", shard=until.shard
                )
            time_ms = _time_of(logs[position], heads[position], until.seq)
        seqs = [
            head.seq if time_ms is None else log.seq_at(head, time_ms)
            for log, head in zip(logs, heads, strict=True)
        ]
        if until.seq is not None:
            seqs[position] = until.seq
        return CutMoment(tuple(heads), tuple(seqs))

    def catalog(self, moment: CutMoment) -> CatalogState:
        """The catalog at a moment. Raises as `cut`."""
        return self._catalog.state_at(moment.catalog_head, moment.catalog_seq)

    def shard(self, moment: CutMoment, shard: int) -> Replayed:
        """A shard at a moment. Raises as `cut`."""
        head, seq = moment.shard_head(shard), moment.shard_seq(shard)
        return _shard_at(self._shards[shard], self._loads[shard], head, seq)

    def cut(self, until: Until) -> StoreCut:
        """The state at that moment. Raises PreconditionFailedError if checkpoints and history do not lead
        there any more, StoreCorruptError if a head is lost, ObjectArchivedError with all files that the store
        has archived if one of them is needed for the plan, StoreError.

        An object whose directory is damaged counts as gone where only the directory tells of its slices.
        """
        self._damaged = {}
        try:
            return self._cut(until, self._damaged)
        except ObjectArchivedError as error:
            raise self._all_archived(error) from error

    def _cut(self, until: Until, damaged: dict[str, str]) -> StoreCut:
        moment = self.moment(until)
        logs: list[StoredLog[Any]] = [self._catalog, *self._shards]
        replayed = [self.shard(moment, shard) for shard in range(len(self._shards))]
        newest = self._catalog.state_at(moment.catalog_head, moment.catalog_head.seq)
        gone = {name for one in replayed for name in one.gone}
        return StoreCut(
            catalog=self.catalog(moment),
            shards=tuple(one.state for one in replayed),
            lost=tuple(lost for one in replayed for lost in one.lost),
            gone=tuple(name for one in replayed for name in one.gone),
            incomplete_shards=frozenset(shard for shard, one in enumerate(replayed) if one.gone),
            next_producer_id=newest.next_producer_id,
            problems=(
                *(problem for log in logs for problem in log.problems),
                *(text for name, text in sorted(damaged.items()) if name in gone),
            ),
        )

    def _directory(self, layout: StoreLayout, ref: ObjectRef) -> Sequence[SliceEntry]:
        """The directory of an object from the first store that has it. Raises as `read_directory`; for a cut
        also ObjectNotFoundError if it is damaged."""
        failure: ObjectNotFoundError | StoreCorruptError | None = None
        for store in self._stores:
            try:
                return read_directory(store, layout, ref)
            except ObjectNotFoundError as error:
                failure = failure or error
            except StoreCorruptError as error:
                failure = error
        assert failure is not None, "there is a store"
        if self._damaged is None or isinstance(failure, ObjectNotFoundError):
            raise failure
        key = layout.data_key(ref.name)
        self._damaged[ref.name] = (
            f"{key} counts as gone, because its directory is damaged, and no checkpoint has its slices yet;"
            f" if there is a copy of it, put that back first: {failure}"
        )
        raise ObjectNotFoundError("the directory of an object is damaged; restore it from a copy", key=key)

    def _all_archived(self, error: ObjectArchivedError) -> ObjectArchivedError:
        """The error with all archived files that listings show: a restore from the archive takes hours."""
        logs: list[StoredLog[Any]] = [self._catalog, *self._shards]
        keys = [info.key for log in logs for info in log.store.list(log.layout.prefix) if info.is_archived]
        if not keys:
            return error
        named = ",".join(keys[:MAX_NAMED_COUNT])
        return ObjectArchivedError(
            "the plan needs a file that is archived; end the bucket's lifecycle rule that took it there,"
            " restore all that are archived (`aws s3api restore-object`), and plan again",
            **error.fields | {"archived_count": len(keys), "archived": named},
        )


def _head_of(log: StoredLog[Any]) -> Head:
    head = log.head()
    if head is None:
        raise StoreCorruptError(
            "a head is lost; rebuild it first, with `stratalog tier rebuild-head`", key=log.layout.head_key
        )
    return head


def _shard_at(log: StoredLog[ShardState], load: LoadDirectory, head: Head, seq: int) -> Replayed:
    """The shard after a commit; without the objects that are gone, where one of them is needed."""
    try:
        return Replayed(log.state_at(head, seq), (), ())
    except ObjectNotFoundError:
        state = log.checkpoint_before(head, seq)
        replay = ShardReplay(state, load)
        for commit in log.commits_between(head, state.seq, seq):
            replay.apply(commit)
        return replay.finish()


def _time_of(log: StoredLog[Any], head: Head, seq: int) -> int:
    commit = log.commits(seq - 1, seq, head).get(seq)
    if commit is None:
        raise PreconditionFailedError(
            "that commit is neither in the head nor in the history; choose another one",
            log=log.layout.prefix,
            commit=seq,
            newest_commit=head.seq,
        )
    return commit.time_ms
