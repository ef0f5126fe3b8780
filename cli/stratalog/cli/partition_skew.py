"""The skew of a topic: how much larger its largest partition is than the mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratalog.cli.byte_size import ByteSize
from stratalog.cli.output import counted

if TYPE_CHECKING:
    from stratalog.client import values


def skew_text(logs: Sequence[values.PartitionLog]) -> str:
    """One line about the records and the bytes of the partitions that are not offline; empty for less than
    two partitions, and for a topic without records."""
    sizes = {
        log.partition: (log.high_watermark - log.log_start_offset, _size_bytes(log))
        for log in logs
        if log.offline is None
    }
    records = {number: count for number, (count, _) in sizes.items()}
    size_bytes = {number: size for number, (_, size) in sizes.items()}
    total_count, total_bytes = sum(records.values()), sum(size_bytes.values())
    if len(sizes) < 2 or total_count == 0 or total_bytes == 0:
        return ""
    most, largest = max(records, key=records.__getitem__), max(size_bytes, key=size_bytes.__getitem__)
    return (
        f"skew: partition {most} has {records[most]:,} of {counted(total_count, 'record')}"
        f" ({_times_mean(records[most], total_count, len(sizes))}), partition {largest} has"
        f" {ByteSize(size_bytes[largest])} of {ByteSize(total_bytes)}"
        f" ({_times_mean(size_bytes[largest], total_bytes, len(sizes))})"
    )


def _size_bytes(log: values.PartitionLog) -> int:
    """The size of the partition in both tiers; what lies in both counts once."""
    if log.pending_upload_bytes < 0:
        return log.local_size_bytes
    return log.tiered_size_bytes + log.pending_upload_bytes


def _times_mean(value: int, total: int, count: int) -> str:
    return f"{value * count / total:.1f} times the mean"
