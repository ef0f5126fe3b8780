"""Takes one rule of the tiers away at a time: the lives of `test_tier_model` must notice.

Each rule is broken in the real code, by putting something else in its place. A rule has the first seed that
noticed it when it was written; where the code has changed since, another one close by does.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from stratalog.base.errors import LogStoreError
from stratalog.log.append_info import AppendInfo
from stratalog.log.log_segments import LogSegments
from stratalog.log.retention import retention
from stratalog.log.retention.retention import RetentionBounds
from stratalog.remote.metadata.head.head_log import HeadLog
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.metadata.ownership import ownership
from stratalog.remote.metadata.shard import shard_judge
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.objects.slice_index import SliceIndex
from stratalog.remote.read.slice_source import SliceSource
from stratalog.remote.tier.orphan_sweep import OrphanSweep, SweepReport
from stratalog.server.append.commit_waiters import CommitWaiters
from stratalog.server.append.partition_writer import PartitionWriter
from stratalog.server.append.pending_append import PendingAppend, resolve
from stratalog.server.partitions import record_deletion
from stratalog.server.partitions.opening import partition_opener
from tests.support.tier_model.tier_life import live

pytestmark = pytest.mark.usefixtures("quiet_servers")

Break = Callable[[pytest.MonkeyPatch], None]
_SEEDS = 40
_STEPS = 150


def deleting_what_is_not_tiered(patch: pytest.MonkeyPatch) -> None:
    def all_sealed(segments: LogSegments, offsets: RetentionBounds) -> int:
        return retention.below_offset(segments, offsets.high_watermark)

    patch.setattr(retention, "tiered", all_sealed)


def deleting_records_locally_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(record_deletion, "_commit_in", answering({}))


def acknowledging_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    true_add = CommitWaiters.add

    def add(
        self: CommitWaiters, appended: Sequence[tuple[PendingAppend, AppendInfo]], _: Callable[[], int]
    ) -> None:
        true_add(self, appended, lambda: sys.maxsize)

    patch.setattr(CommitWaiters, "add", add)


def acknowledging_before_the_fsync(patch: pytest.MonkeyPatch) -> None:
    def flush(self: PartitionWriter, waiting: list[tuple[PendingAppend, AppendInfo]]) -> None:
        resolve(waiting)

    patch.setattr(PartitionWriter, "_flush", flush)


def without_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard_judge, "require_epoch", answering(None))


def without_if_match(patch: pytest.MonkeyPatch) -> None:
    def put(self: HeadLog[ShardState], data: bytes, etag: str) -> str:
        return self.store.put(self.layout.head_key, data)

    patch.setattr(HeadLog, "_put", put)


def trusting_every_local_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ownership, "_reason_to_stop", answering(""))


def deleting_what_inline_commits_bring(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeadState, "is_deletable", answering(True))


def forgetting_producers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(partition_opener, "restore_log", answering(False))


def leaving_orphans(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OrphanSweep, "run", answering(SweepReport()))


def sharing_indexes(patch: pytest.MonkeyPatch) -> None:
    """A reader knows an index by the place of its slice, where an empty slice and the next one both are."""
    true_index = SliceSource.index
    known: dict[SliceSource, dict[tuple[str, int], SliceIndex]] = defaultdict(dict)

    def index(self: SliceSource, live: LiveSlice) -> SliceIndex:
        key = self.key(live.object_name), live.entry.data_position
        if key not in known[self]:
            known[self][key] = true_index(self, live)
        return known[self][key]

    patch.setattr(SliceSource, "index", index)


def answering(answer: object) -> Callable[..., object]:
    """A rule that says the same whatever it is asked."""

    def say(*_: object, **__: object) -> object:
        return answer

    return say


class Broken(NamedTuple):
    """A rule that is gone, and the lives that notice."""

    take_away: Break
    is_stormy: bool = False
    first_seed: int = 0


BROKEN: dict[str, Broken] = {
    "local segments go only if they are tiered": Broken(deleting_what_is_not_tiered),
    "a log start is committed": Broken(deleting_records_locally_only),
    "object is acknowledged after the commit": Broken(acknowledging_before_the_commit),
    "disk is acknowledged after the fsync": Broken(acknowledging_before_the_fsync, first_seed=1),
    "an upload is of the owner": Broken(without_epochs, first_seed=1),
    "a head is replaced as it was read": Broken(without_if_match, is_stormy=True, first_seed=3),
    "a log of a former owner is set aside": Broken(trusting_every_local_log, first_seed=1),
    "what inline commits bring stays": Broken(deleting_what_inline_commits_bring, first_seed=56),
    "producers are restored": Broken(forgetting_producers),
    "orphans are collected": Broken(leaving_orphans, is_stormy=True, first_seed=1),
    "each slice has an index of its own": Broken(sharing_indexes, is_stormy=True, first_seed=168),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_noticed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_away, is_stormy, first_seed = BROKEN[rule]
    take_away(monkeypatch)
    for seed in range(first_seed, first_seed + _SEEDS):
        try:
            live(seed, is_stormy=is_stormy, steps=_STEPS)
        except (AssertionError, LogStoreError):
            return
    pytest.fail(f"the lives do not notice that it is gone: {rule}")
