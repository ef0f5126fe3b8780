"""The result of a proof of compacted partitions."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

MAX_FINDING_COUNT = 1000
"""Findings that a report has; it counts all."""


class ProofFault(enum.StrEnum):
    """The kinds of findings."""

    REPEATED_KEY = "repeated-key"
    """Below `compacted_upto` two records have one key."""
    KEY_STREAM = "key-stream"
    """The key stream of a slice is not that of its records. The next compaction would go by it."""
    DAMAGED = "damaged"
    """The data or key stream of a slice cannot be read, or fails its checksum: it is not proved."""
    MISSING = "missing"
    """The object of a slice is not in the store."""


class ProofFinding(NamedTuple):
    """A broken promise, or what keeps one from being proved."""

    kind: ProofFault
    topic: str
    partition: int
    object_name: str
    offset: int
    """That of the older record of the key, of the record that the key stream lacks or should not have, or the
    base offset of the slice."""
    reason: str = ""
    later_object_name: str = ""
    later_offset: int = -1
    """The later record of the key."""


class ProvedPartition(NamedTuple):
    """A partition, as the metadata log has it, and the keys that were found."""

    topic: str
    partition: int
    log_start_offset: int
    compacted_upto: int
    tiered_end_offset: int
    slice_count: int = 0
    """Slices with records below `compacted_upto`."""
    hashed_slice_count: int = 0
    """Those whose keys were hashed from their data, for want of a key stream that has each record."""
    key_count: int = 0
    """Different keys below `compacted_upto`. Those of records below log start may be among them, if they are
    still in the first slice."""
    repeated_count: int = 0
    """Records below `compacted_upto` behind which another one of their key lies."""
    size_bytes: int = 0
    """Data of all slices."""
    dirty_bytes: int = 0
    """Data of the slices that end above `compacted_upto`."""


_NO_COUNTS: Mapping[ProofFault, int] = MappingProxyType({})


class ProofReport(NamedTuple):
    """The result of a proof, or its progress."""

    partitions: tuple[ProvedPartition, ...] = ()
    key_stream_count: int = 0
    """Key streams that were compared with the data of their slices."""
    record_count: int = 0
    """The records of these."""
    done_bytes: int = 0
    """Data of partitions, or of slices, that are done."""
    finding_count: int = 0
    findings: tuple[ProofFinding, ...] = ()
    counts: Mapping[ProofFault, int] = _NO_COUNTS
    """Findings by kind."""

    @staticmethod
    def of_finding(finding: ProofFinding) -> ProofReport:
        """A report of that alone."""
        return ProofReport(finding_count=1, findings=(finding,), counts={finding.kind: 1})

    def plus(self, other: ProofReport) -> ProofReport:
        """Both together."""
        return ProofReport(
            partitions=self.partitions + other.partitions,
            key_stream_count=self.key_stream_count + other.key_stream_count,
            record_count=self.record_count + other.record_count,
            done_bytes=self.done_bytes + other.done_bytes,
            finding_count=self.finding_count + other.finding_count,
            findings=(*self.findings, *other.findings)[:MAX_FINDING_COUNT],
            counts=Counter(self.counts) + Counter(other.counts),
        )
