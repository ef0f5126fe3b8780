"""Rebuilds the catalog when its head is lost: from its newest checkpoint, its history, and the names of
topics in the shards.

A topic that no checkpoint or history knows gets a configuration by which nothing goes, since nothing tells
whether it was kept for ever or compacted: a server with the default one would delete within minutes. It gets
as many partitions as the shards have of it, and a new hash key (the next compactions make its key streams
again).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from stratalog.remote.metadata.catalog.catalog_state import CatalogMachine, CatalogState
from stratalog.remote.metadata.catalog.topic_entry import HASH_KEY_BYTES, TopicEntry
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.restore.rebuild_report import RebuildReport
from stratalog.remote.restore.shard_rebuild import LOST_COMMITS
from stratalog.remote.restore.stored_log import FoundState, StoredLog

_LOST_PRODUCER_IDS = 1_000_000
"""More producer ids than the lost commits can have taken."""
_UNKNOWN_PRODUCER_IDS = 1 << 40
"""Producer ids go on here if nothing tells which were taken."""
UNKNOWN_CONFIG: Mapping[str, str] = MappingProxyType(
    {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}
)
"""Overrides of a topic whose configuration is lost. Retention and compaction delete nothing by them, whatever
the defaults of the server are. Local copies of what the object store has may go, by those defaults."""


class RebuiltCatalog(NamedTuple):
    """The catalog's state without its head, and how it was found."""

    state: CatalogState
    known: FoundState[CatalogState] | None
    report: RebuildReport


def rebuild_catalog(
    actor: StoreActor, log: StoredLog[CatalogState], shards: Iterable[ShardState], now_ms: int
) -> RebuiltCatalog:
    """Find the state; writes nothing. `shards`: their newest known states. `now_ms`: the time by the store's
    clock. Raises StoreError."""
    known = log.newest_state()
    before = CatalogState() if known is None else known.state
    states = tuple(shards)
    warnings: list[str] = []
    entries = before.entries.evolve()
    taken = {entry.name for entry in before.entries.values() if not entry.is_deleted}
    for topic_id, (name, partition_count) in sorted(_topics_of(states).items()):
        if topic_id in before.entries or any(topic_id in state.dropped_topics for state in states):
            continue
        free_name = name if name not in taken else f"{name[:200]}.rebuilt-{str(topic_id)[:8]}"
        taken.add(free_name)
        entries[topic_id] = entry = TopicEntry(
            name=free_name,
            topic_id=topic_id,
            partition_count=partition_count,
            config=UNKNOWN_CONFIG,
            hash_key=actor.ids.secret(HASH_KEY_BYTES),
        )
        warnings.append(_found_by_objects(entry))
        if free_name != name:
            warnings.append(f"topic {topic_id} was called {name}, which is another topic's name now")
    if known is None:
        warnings.append("the configuration of the server and all fencing tokens are lost")
    else:
        warnings.append(
            f"changes of the catalog after its commit {before.seq} are lost: topics that have no objects,"
            " configurations, deletions"
        )
    state = dataclasses.replace(
        before,
        seq=_new_seq(log, before, states),
        uuid=actor.ids.uuid(),
        time_ms=now_ms,
        checkpoint=None,
        history=None,
        entries=entries.finish(),
        next_producer_id=_UNKNOWN_PRODUCER_IDS
        if known is None
        else before.next_producer_id + _LOST_PRODUCER_IDS,
    )
    state = CatalogMachine().detached(dataclasses.replace(state, orphan_horizon_seq=state.seq))
    live = state.topics()
    report = RebuildReport(
        log="catalog",
        known_seq=before.seq,
        new_seq=state.seq,
        topic_count=len(live),
        partition_count=sum(entry.partition_count for entry in live.values()),
        warnings=(*log.problems, *warnings),
    )
    return RebuiltCatalog(state, known, report)


def _found_by_objects(entry: TopicEntry) -> str:
    """The warning about a topic that no checkpoint or history knows."""
    overrides = ", ".join(f"{key}={value}" for key, value in UNKNOWN_CONFIG.items())
    return (
        f"topic {entry.name} ({entry.topic_id}) is known by its objects alone: it has {entry.partition_count}"
        f" partitions now, and {overrides}, so that nothing goes; give it the configuration that it had"
        f" with `stratalog topic alter {entry.name} --add KEY=VALUE`"
    )


def _new_seq(log: StoredLog[CatalogState], before: CatalogState, shards: Iterable[ShardState]) -> int:
    """A number above every commit that a file or a shard tells of: shards refuse an older catalog."""
    return max((log.newest_seq(), before.seq, *(state.catalog_seq for state in shards))) + LOST_COMMITS


def _topics_of(shards: Iterable[ShardState]) -> dict[UUID, tuple[str, int]]:
    """Name and number of partitions of each topic with a slice. Those count that retention has emptied."""
    names: dict[UUID, str] = {}
    counts: dict[UUID, int] = {}
    for state in shards:
        for tip in state.partitions:
            counts[tip.topic_id] = max(counts.get(tip.topic_id, 0), tip.partition + 1)
            of_slices = [live.entry.topic for live in state.partition(tip).slices if live.entry.topic]
            if of_slices:
                names.setdefault(tip.topic_id, of_slices[-1])
    return {topic_id: (name, counts[topic_id]) for topic_id, name in names.items()}
