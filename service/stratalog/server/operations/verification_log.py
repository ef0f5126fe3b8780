"""The last verification of the tiered data, for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.compaction.tier_verification import VerificationReport
from stratalog.remote.restore.metadata_scrub import FindingKind, Unreferenced


class EndedVerification(NamedTuple):
    """The result of the last finished verification. Immutable."""

    end_ms: int
    read_data: bool
    finding_counts: Mapping[FindingKind, int]
    """Every kind is there."""
    unreferenced: Unreferenced


class VerificationLog:
    """Remembers the last finished verification since the start. Thread-safe: it is replaced whole."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: EndedVerification | None = None

    @property
    def last(self) -> EndedVerification | None:
        return self._last

    def ended(self, report: VerificationReport, *, reads_data: bool) -> None:
        """Note the result of one."""
        self._last = EndedVerification(
            end_ms=self._clock.now_ms(),
            read_data=reads_data,
            finding_counts={kind: report.counts.get(kind, 0) for kind in FindingKind},
            unreferenced=report.unreferenced,
        )
