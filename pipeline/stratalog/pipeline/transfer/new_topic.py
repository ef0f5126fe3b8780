"""A topic that begins with objects: they are published in its shards first, and the topic is created last.

    1  objects are written, which no commit names                  orphans
    2  log starts, then objects, are committed to the shards       slices of an id that no catalog knows
    3  the topic is created in the catalog                         all of it is there, at once

The id is fresh. So until 3 no server has the partitions, none adds to them, and no reader sees them. An `add`
needs the current epoch of its shard: that keeps a former owner from adding behind the records of the next
one. Here nothing is between two owners, and the current epoch is taken from the head; a claim meanwhile is a
reason to try again. A server that learns of the topic reads the heads of its shards before it opens logs, and
goes on behind the objects.

If 2 or 3 fails, the id is created under another name and deleted at once, so that the shards may drop the
slices. A machine that dies within 2 leaves them; `stratalog tier verify` shows them as those of an unknown
topic.
"""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar
from uuid import UUID

from stratalog.base.errors import (
    LogStoreError,
    NotOwnerError,
    StoreUnavailableError,
    TopicAlreadyExistsError,
)
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.probe import require_conditional_writes
from stratalog.pipeline.jobs.shard_view import StoreView, open_view
from stratalog.pipeline.jobs.task_place import TaskMeans
from stratalog.remote.metadata.catalog.catalog_bounds import MAX_BOUNDS
from stratalog.remote.metadata.catalog.topic_entry import require_partition_count, require_topic_name
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.store_layout import shard_of

logger = logging.getLogger(__name__)

R = TypeVar("R")

_ATTEMPTS = 5


class WrittenObject(NamedTuple):
    """An object in a shard's data, which no commit names yet."""

    shard: int
    ref: ObjectRef
    entries: tuple[SliceEntry, ...]


class ObjectPlace(NamedTuple):
    """The state of an object's shard that its writer must know."""

    shard: int
    birth: int
    """The newest commit."""
    epoch: int


class NewTopic:
    """A topic that is not there yet. Not thread-safe: one job uses it, once."""

    def __init__(self, means: TaskMeans, name: str, partition_count: int, config: Mapping[str, str]) -> None:
        """Check that the topic can be created. `config`: its own keys. Raises TopicAlreadyExistsError,
        InvalidRequestError, LimitExceededError, StoreError."""
        self.name = name
        self.topic_id: UUID = means.ids.uuid()
        self._config = dict(config)
        self._partition_count = partition_count
        self._ids = means.ids
        require_conditional_writes(means.store, means.ids)
        self._view: StoreView = open_view(means, writes=True)
        require_partition_count(partition_count)
        topics = self._view.catalog.topics()
        if name in topics:
            raise TopicAlreadyExistsError("the topic is there already; choose another name", topic=name)
        require_topic_name(name, topics)
        MAX_BOUNDS.require_room(
            self._view.catalog.state(), partition_count, remedy="use another store: no store has more"
        )
        shards = {self._shard_of(number) for number in range(partition_count)}
        self._shards: dict[int, MetadataLog] = {number: self._view.shard(number) for number in sorted(shards)}

    @property
    def store_id(self) -> UUID:
        return self._view.actor.identity.store_id

    def place(self, partition: int) -> ObjectPlace:
        """The place of an object with a slice of the partition."""
        metadata = self._shards[self._shard_of(partition)]
        state = metadata.state()
        return ObjectPlace(metadata.shard, state.seq, state.epoch)

    def publish(self, starts: Mapping[int, int], objects: Sequence[WrittenObject]) -> None:
        """Create the topic with these objects; `starts` has the first offset of each partition. Slices of a
        partition follow each other. Objects of a shard are in the order of their slices.

        Raises TopicAlreadyExistsError if the name was taken meanwhile, StoreError, NotOwnerError if owners
        change again and again; then nothing is left, unless the store fails again.
        """
        try:
            self._commit_slices(starts, objects)
            self._create()
        except BaseException:
            self._bury()
            raise

    def _shard_of(self, partition: int) -> int:
        return shard_of(TopicIdPartition(self.topic_id, partition), self._view.shard_count)

    def _commit_slices(self, starts: Mapping[int, int], objects: Sequence[WrittenObject]) -> None:
        moved: dict[int, dict[TopicIdPartition, int]] = defaultdict(dict)
        for number, offset in starts.items():
            if offset > 0:
                moved[self._shard_of(number)][TopicIdPartition(self.topic_id, number)] = offset
        by_shard: dict[int, list[tuple[ObjectRef, Sequence[SliceEntry]]]] = defaultdict(list)
        for one in objects:
            by_shard[one.shard].append((one.ref, one.entries))
        for shard, metadata in self._shards.items():
            if moved[shard]:
                _under_epoch(metadata, partial(_advance, metadata, moved[shard]))
            if by_shard[shard]:
                _under_epoch(metadata, partial(metadata.add, by_shard[shard]))
            _require_landed(metadata, moved[shard], by_shard[shard])

    def _create(self) -> None:
        # The id makes another try safe after an unknown outcome.
        create = partial(self._view.catalog.create, topic_id=self.topic_id)
        _repeated(partial(create, self.name, self._partition_count, self._config))

    def _bury(self) -> None:
        """Let the shards drop the slices. An id that the catalog knows by its own name was created after all,
        and stays."""
        catalog, topic_id = self._view.catalog, self.topic_id
        name = f"import-{self._ids.uuid()}"
        try:
            _repeated(partial(catalog.create, name, self._partition_count, topic_id=topic_id))
            _repeated(partial(catalog.delete, topic_id))
            for metadata in self._shards.values():
                seq = _repeated(partial(catalog.confirm_deleted, topic_id))
                _repeated(partial(metadata.drop_partitions, topic_id, seq))
        except LogStoreError as error:
            logger.warning(
                "slices of an import that has failed may be left in the store, topic_id=`%s`: %s",
                self.topic_id,
                error,
            )


def _advance(metadata: MetadataLog, starts: Mapping[TopicIdPartition, int], epoch: int) -> None:
    metadata.advance_log_start(starts, epoch=epoch, catalog_seq=None)


def _under_epoch(metadata: MetadataLog, commit: Callable[[int], R]) -> R:
    """Commit under the current epoch; again, if another server has claimed the shard meanwhile."""

    def attempt() -> R:
        return commit(metadata.refresh().epoch)

    for _ in range(_ATTEMPTS - 1):
        with suppress(NotOwnerError):
            return _repeated(attempt)
    return _repeated(attempt)


def _repeated(commit: Callable[[], R]) -> R:
    """Commit; again after an unknown outcome, which the commit finds out."""
    for attempt in itertools.count(1):
        try:
            return commit()
        except StoreUnavailableError:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError("the loop returns or raises")


def _require_landed(
    metadata: MetadataLog,
    starts: Mapping[TopicIdPartition, int],
    objects: Sequence[tuple[ObjectRef, Sequence[SliceEntry]]],
) -> None:
    """Raise StoreUnavailableError unless all slices are live, and all partitions begin where they should."""
    state = metadata.refresh()
    ends: dict[TopicIdPartition, int] = dict(starts)
    for _, entries in objects:
        ends |= {entry.topic_id_partition: entry.end_offset for entry in entries}
    for tip, end_offset in ends.items():
        found = state.partition(tip)
        if (found.log_start_offset, found.tiered_end_offset) != (starts.get(tip, 0), end_offset):
            raise StoreUnavailableError(
                "the store did not take all objects of the import: it took longer than the collector's grace,"
                " or the store failed in between; import again",
                **tip.error_fields,
                end_offset=end_offset,
                tiered_end_offset=found.tiered_end_offset,
            )
