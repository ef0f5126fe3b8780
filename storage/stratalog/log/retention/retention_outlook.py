"""The decisions of retention in words: which data goes now, by which rule, and what goes next and when.

The rules themselves are in `retention` and, for data in the object store, in ``stratalog.remote.tier``. This
module only describes their decisions.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from stratalog.log.log_config import UNLIMITED

NEVER = -1
"""The time or the size of data that does not go by it."""


class ExpiryRule(enum.Enum):
    """The rule by which data goes."""

    LOG_START = "log start"
    RETENTION_BYTES = "retention.bytes"
    RETENTION_MS = "retention.ms"
    LOCAL_RETENTION_BYTES = "local.retention.bytes"
    LOCAL_RETENTION_MS = "local.retention.ms"
    COMPACTION = "compaction"
    """The object store has a compacted copy."""


class ExpiredUnit(NamedTuple):
    """A segment or a slice that goes now."""

    rule: ExpiryRule
    base_offset: int
    end_offset: int
    size_bytes: int


class NextExpiry(NamedTuple):
    """The oldest segment or slice that stays."""

    base_offset: int
    end_offset: int
    size_bytes: int
    time_ms: int
    """The time from which on it is too old; `NEVER` if it does not go by time."""
    missing_bytes: int
    """The size of further records with which it is too much; `NEVER` if it does not go by size."""
    reason: str
    """Why it stays for now."""


class RetentionOutlook(NamedTuple):
    """The data of one tier that retention deletes, and the data that stays."""

    expired: tuple[ExpiredUnit, ...] = ()
    kept_bytes: int = 0
    next: NextExpiry | None = None


class RetentionLimits(NamedTuple):
    """The limits of one tier, and the names of their keys."""

    retention_ms: int
    retention_bytes: int
    prefix: str = ""
    """`local.` for the keys of local retention."""


class KeptUnit(NamedTuple):
    """The oldest segment or slice that stays, as the rules saw it."""

    base_offset: int
    end_offset: int
    size_bytes: int
    newest_ms: int
    """The time of its newest record; `NEVER` if no record has a time, or damage hides it."""
    behind_bytes: int
    """Size of all data behind it."""


def utc_text(time_ms: int) -> str:
    """A time in words, for people."""
    try:
        return datetime.fromtimestamp(time_ms // 1000, UTC).isoformat(sep=" ")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} milliseconds after 1970"


def next_expiry(
    kept: KeptUnit, limits: RetentionLimits, now_ms: int | None, exemption: str = ""
) -> NextExpiry:
    """When the unit goes. `now_ms` is None if no clock is trusted: then it does not go by time. `exemption`:
    why no limit holds for it."""
    time_ms = missing_bytes = NEVER
    reasons: list[str] = [exemption] if exemption else []
    if not exemption and limits.retention_ms != UNLIMITED:
        time_ms, reason = _time_of(kept, limits, now_ms)
        reasons.append(reason)
    if not exemption and limits.retention_bytes != UNLIMITED:
        missing_bytes = max(0, limits.retention_bytes - kept.behind_bytes)
        reasons.append(f"without it less than {limits.prefix}retention.bytes would be left")
    unlimited = f"{limits.prefix}retention.ms and {limits.prefix}retention.bytes have no limit"
    return NextExpiry(
        base_offset=kept.base_offset,
        end_offset=kept.end_offset,
        size_bytes=kept.size_bytes,
        time_ms=time_ms,
        missing_bytes=missing_bytes,
        reason="; ".join(reasons) or unlimited,
    )


def _time_of(kept: KeptUnit, limits: RetentionLimits, now_ms: int | None) -> tuple[int, str]:
    """When the unit is too old, and why it stays until then."""
    key = f"{limits.prefix}retention.ms"
    if now_ms is None:
        return NEVER, (
            f"nothing goes by {key}, {limits.retention_ms}, while the clocks of this server and of the store"
            " differ too much"
        )
    if kept.newest_ms < 0:
        return NEVER, "the age of its records is not known"
    reason = (
        f"its newest record is in the future, {utc_text(kept.newest_ms)}"
        if kept.newest_ms > now_ms
        else f"its newest record is not older than {key}, {limits.retention_ms}"
    )
    return kept.newest_ms + limits.retention_ms + 1, reason


def rules_of_counts(
    below_count: int, oversize_count: int, aged_count: int, compacted_count: int, *, is_local: bool
) -> Sequence[ExpiryRule]:
    """The rule of each unit, from the oldest on, where each count includes the counts before it. `is_local`:
    those of local retention."""
    size = ExpiryRule.LOCAL_RETENTION_BYTES if is_local else ExpiryRule.RETENTION_BYTES
    age = ExpiryRule.LOCAL_RETENTION_MS if is_local else ExpiryRule.RETENTION_MS
    return [
        *[ExpiryRule.LOG_START] * below_count,
        *[size] * (oversize_count - below_count),
        *[age] * (aged_count - oversize_count),
        *[ExpiryRule.COMPACTION] * (compacted_count - aged_count),
    ]
