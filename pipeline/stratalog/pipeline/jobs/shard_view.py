"""A store as a task reads it, or as a driver writes to it."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import NamedTuple

from stratalog.base.errors import UnknownTopicOrPartitionError
from stratalog.base.randomness import system_random
from stratalog.pipeline.jobs.task_place import TaskMeans
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.catalog.topic_entry import TopicEntry
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.metadata.ownership.head_witness import catalog_as_witness
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.objects.object_directory import read_directory
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout


class StoreView(NamedTuple):
    """An open store."""

    actor: StoreActor
    catalog: Catalog
    writes: bool
    """Whether its shards may be written to."""

    @property
    def shard_count(self) -> int:
        return self.actor.identity.shard_count

    def topics(self, names: Collection[str]) -> dict[str, TopicEntry]:
        """The topics of these names, or all without any. Raises UnknownTopicOrPartitionError."""
        known = self.catalog.topics()
        for name in names:
            if name not in known:
                raise UnknownTopicOrPartitionError(
                    "the store has no topic of this name; correct it", topic=name
                )
        return {name: entry for name, entry in known.items() if not names or name in names}

    def shard(self, number: int) -> MetadataLog:
        """The metadata of a shard. Raises StoreError."""
        load_directory = partial(read_directory, self.actor.store, StoreLayout(number))
        return MetadataLog.open(
            self.actor,
            number,
            load_directory,
            read_only=not self.writes,
            witness=catalog_as_witness(self.catalog),
        )


def open_view(means: TaskMeans, *, writes: bool = False) -> StoreView:
    """Open the store, to read it unless `writes`. Raises StoreError."""
    actor = StoreActor(
        store=means.store,
        clock=means.clock,
        random_source=system_random(),
        ids=means.ids,
        identity=StoreIdentity.open(means.store),
        writer=Writer("spark", str(means.ids.uuid())),
    )
    return StoreView(actor, Catalog.open(actor, read_only=not writes), writes)
