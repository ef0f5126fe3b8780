"""Rebuilds the lost heads of a store. No server and no job may work on the store meanwhile.

`plan` finds what the heads would have, and writes nothing; `write` puts the heads, the catalog's first. A
head that is there is never replaced: a damaged one has to be moved away before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from stratalog.base.errors import PreconditionFailedError, StoreNotUsableError
from stratalog.objectstore.probe import require_conditional_writes
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.catalog.catalog_state import CatalogMachine, CatalogState
from stratalog.remote.metadata.head.head_actions import Action
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.metadata.ownership.seen_heads import REBUILD_OWNER
from stratalog.remote.metadata.shard.metadata_log import MetadataLog, ShardMachine
from stratalog.remote.metadata.shard.shard_judge import judge_claim
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.objects.object_directory import read_directory
from stratalog.remote.restore.catalog_rebuild import RebuiltCatalog, rebuild_catalog
from stratalog.remote.restore.new_head import Beginning, put_new_head
from stratalog.remote.restore.rebuild_report import RebuildReport
from stratalog.remote.restore.shard_rebuild import RebuiltShard, ShardRebuild
from stratalog.remote.restore.stored_log import FoundState, StoredLog
from stratalog.remote.store_layout import IDENTITY_KEY, StoreLayout


class RebuildPlan(NamedTuple):
    """The heads that are lost, rebuilt; nothing is written yet. Immutable."""

    catalog: RebuiltCatalog | None
    """None if the catalog has its head."""
    shards: tuple[RebuiltShard, ...]

    @property
    def reports(self) -> tuple[RebuildReport, ...]:
        of_catalog = () if self.catalog is None else (self.catalog.report,)
        return (*of_catalog, *(shard.report for shard in self.shards))


class HeadRebuild:
    """Rebuilds the lost heads of one store. Not thread-safe: one command uses it."""

    def __init__(self, actor: StoreActor) -> None:
        self._actor = actor
        self._store = actor.store

    def plan(self) -> RebuildPlan:
        """Find the lost heads and what they would have. Raises PreconditionFailedError if no head is lost,
        StoreNotUsableError if newer software is needed, StoreError."""
        now_ms = self._store.get(IDENTITY_KEY).date_ms
        log = self._catalog_log()
        has_catalog = log.head() is not None
        known: CatalogState | None
        if has_catalog:
            known = Catalog.open(self._actor, read_only=True).state()
        else:
            found = log.newest_state()
            known = None if found is None else found.state
        shards = [
            self._rebuild(shard, known, now_ms)
            for shard in range(self._actor.identity.shard_count)
            if self._log(shard).head() is None
        ]
        if has_catalog and not shards:
            raise PreconditionFailedError(
                "no head of this store is lost, so none is rebuilt; to rebuild a damaged or an older"
                " one, move it to another key first",
                store=self._store.url,
            )
        return RebuildPlan(None if has_catalog else self._rebuild_catalog(shards, now_ms), tuple(shards))

    def _rebuild(self, shard: int, catalog: CatalogState | None, now_ms: int) -> RebuiltShard:
        rebuilt = ShardRebuild(self._actor, self._log(shard), catalog, now_ms).run()
        _require_known_actions(rebuilt.state, rebuilt.report.log)
        rebuilt.state.check()
        return rebuilt

    def _rebuild_catalog(self, lost: Sequence[RebuiltShard], now_ms: int) -> RebuiltCatalog:
        states = {shard.number: shard.state for shard in lost}
        for shard in range(self._actor.identity.shard_count):
            if shard not in states:
                load = partial(read_directory, self._store, StoreLayout(shard))
                states[shard] = MetadataLog.open(self._actor, shard, load, read_only=True).state()
        log = self._catalog_log()
        rebuilt = rebuild_catalog(self._actor, log, states.values(), now_ms)
        _require_known_actions(rebuilt.state, rebuilt.report.log)
        rebuilt.state.check()
        return rebuilt

    def _catalog_log(self) -> StoredLog[CatalogState]:
        return StoredLog(self._store, StoreLayout(None), CatalogMachine(), self._actor.loader)

    def _log(self, shard: int) -> StoredLog[ShardState]:
        return StoredLog(self._store, StoreLayout(shard), self._machine(shard), self._actor.loader)

    def write(self, plan: RebuildPlan) -> None:
        """Put the heads. Raises PreconditionFailedError if there is one by now, StoreError. A call that
        failed may be repeated with a new plan; heads that it has put stay."""
        require_conditional_writes(self._store, self._actor.ids)
        if plan.catalog is not None:
            state, beginning = plan.catalog.state, _beginning(plan.catalog.known)
            put_new_head(self._actor, StoreLayout(None), CatalogMachine(), state, beginning)
        for shard in plan.shards:
            claim = judge_claim(shard.state, REBUILD_OWNER, shard.claim_uuid, shard.epoch, "").actions
            layout, machine = StoreLayout(shard.number), self._machine(shard.number)
            put_new_head(self._actor, layout, machine, shard.state, _beginning(shard.known, claim))

    def _machine(self, shard: int) -> ShardMachine:
        return ShardMachine(partial(read_directory, self._store, StoreLayout(shard)))


def _beginning(found: FoundState[Any] | None, actions: Sequence[Action] = ()) -> Beginning:
    if found is None:
        return Beginning(actions=actions)
    return Beginning(found.history, found.root, actions, found.metadata_version)


def _require_known_actions(state: HeadState, log: str) -> None:
    if state.unknown_action is not None:
        raise StoreNotUsableError(
            "newer software has committed here; upgrade before rebuilding the head",
            log=log,
            action=state.unknown_action,
        )
