"""A pin that another thread with the same log ends amid a collection."""

from __future__ import annotations

import itertools

import pytest

from stratalog.base.errors import PreconditionFailedError
from stratalog.remote.metadata.head.head_log import CommitSettings
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.tier.collector import Collector
from stratalog.remote.tier.replaced_files import ReplacedFiles
from tests.support.tiered.tiered_site import TieredSite

DAY_MS = 24 * 3_600_000


def end_pin_at_look(metadata: MetadataLog, pin: int, number: int) -> None:
    """End the pin just before that look at the state at hand."""
    looks, read_state = itertools.count(1), metadata.state

    def state() -> ShardState:
        if next(looks) == number:
            metadata.unpin(pin)
        return read_state()

    metadata.state = state  # type: ignore[method-assign]  # as another thread does


def test_a_pin_that_ends_amid_a_collection_lets_no_list_go_unsaid() -> None:
    """Whenever it ends: what the pin has held stays, or no later pin of that state is granted."""
    outcomes: set[bool] = set()
    for number in range(1, 20):
        site = TieredSite(commit_settings=CommitSettings(fold_by_itself=False))
        metadata = site.start().metadata
        metadata.claim("owner", site.ids.uuid())
        metadata.fold()
        seq, until_ms = metadata.state().seq, site.clock.now_ms() + 9 * DAY_MS
        pin = metadata.pin_commit("job", until_ms, seq)
        metadata.claim("owner", site.ids.uuid())
        metadata.fold()
        files = ReplacedFiles(site.store, metadata.layout).read(metadata.state().replacements[-1])
        assert files
        needed = {file.key(metadata.layout) for file in files}
        site.clock.advance(DAY_MS)
        end_pin_at_look(metadata, pin, number)
        Collector(site.store, metadata, None).run()
        is_whole = needed <= {info.key for info in site.store.list("shards/0000/")}
        outcomes.add(is_whole)
        if not is_whole:
            with pytest.raises(PreconditionFailedError):
                metadata.pin_commit("late", until_ms, seq)
    assert outcomes == {True, False}
