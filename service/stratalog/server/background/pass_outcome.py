"""The outcome of one pass of a background task, for its log line, its metrics and `tier status`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from stratalog.base.errors import LogStoreError

NOTHING: Mapping[str, int] = MappingProxyType({})
NO_SHARDS: Mapping[int, LogStoreError] = MappingProxyType({})


@dataclasses.dataclass(frozen=True, slots=True)
class Backlog:
    """The work that a pass has left for later ones. Immutable."""

    count: int = 0
    """Pieces of work, such as files that wait to be deleted, or partitions with something to upload."""
    size_bytes: int = 0
    record_count: int = 0
    oldest_ms: int = -1
    """Since when the oldest piece has waited, in milliseconds since 1970 UTC; -1 if nothing waits or it has
    no time."""

    def plus(self, other: Backlog) -> Backlog:
        """Both together."""
        times_ms = [one.oldest_ms for one in (self, other) if one.oldest_ms >= 0]
        return Backlog(
            self.count + other.count,
            self.size_bytes + other.size_bytes,
            self.record_count + other.record_count,
            min(times_ms, default=-1),
        )


class PassOutcome(NamedTuple):
    """The outcome of one pass that did not raise. Immutable."""

    done: Mapping[str, int] = NOTHING
    """Amounts of finished work by a plural noun, such as `{"objects": 2, "bytes": 4096}`. A pass without any
    was idle."""
    refusals: Mapping[str, int] = NOTHING
    """Pieces of work that a rule refused, by a stable word for the reason, such as `clock`, `pinned` or
    `stale-configuration`. The word is a label of a metric."""
    failures: tuple[str, ...] = ()
    """Failures of single partitions or files, which do not stop the others; a text for people each."""
    backlog: Backlog = Backlog()
    failed_shards: Mapping[int, LogStoreError] = NO_SHARDS
    """Shards without a result, by number, beside others that have one."""
    is_postponed: bool = False
    """Whether the pass has waited for a better time, and looked at nothing: neither a success nor a
    failure."""
    remark: str = ""
    """A condition under which the pass has worked, for people; empty for none."""

    @property
    def is_idle(self) -> bool:
        return not any(self.done.values())

    @property
    def text(self) -> str:
        """A line for people: the finished work, the refusals by reason, the backlog, and the remark."""
        parts = [", ".join(_counted(amount, noun) for noun, amount in self.done.items() if amount)]
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.refusals.items() if count)
        parts += [f"refused {reasons}"] if reasons else []
        parts += [f"{len(self.failures)} failed"] if self.failures else []
        parts += [f"shard {number} failed" for number in sorted(self.failed_shards)]
        left = self.backlog
        if left.count:
            parts.append(f"{left.count} left with {_counted(left.size_bytes, 'bytes')}")
        parts.append(self.remark)
        return "; ".join(part for part in parts if part) or "nothing to do"


def _counted(amount: int, noun: str) -> str:
    return f"{amount} {noun.removesuffix('s') if amount == 1 else noun}"
