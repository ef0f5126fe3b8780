"""Records of batches, a run of them at a time, so that a reader's memory does not grow with what it reads.

A batch of a few kilobytes may hold a gigabyte, and a record of seven bytes takes hundreds as an object. So of
many batches one at a time is decompressed, when its turn comes, and a large one becomes objects piece by
piece. Small batches come together: dealing with each by itself would take longer than decoding it.

All functions are thread-safe; the buffers must not change as long as there is more to come. They raise
CorruptRecordError where a batch's turn comes that is wrong, behind the records of all batches before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record.batch import (
    DEFAULT_MAX_DECOMPRESSED,
    batches,
    checked_payload,
    records_payload,
    require_crc_as_read,
)
from stratalog.record.header import BatchHeader, parse_header
from stratalog.record.native import kernels
from stratalog.record.record import Record

RUN_COUNT = 16 * 1024
"""Records of a run at most."""

RUN_BYTES = 2 * 1024 * 1024
"""What they take in their batches, at most; but a record is never cut."""


class RecordRun(NamedTuple):
    """Records that lie one behind the other; one at least."""

    records: list[Record]
    has_more: bool
    """Whether another batch, or more of the same, follows."""


def record_runs(
    buffer: Buffer,
    is_wanted: Callable[[BatchHeader], bool],
    *,
    max_bytes: int = DEFAULT_MAX_DECOMPRESSED,
) -> Iterator[RecordRun]:
    """The records of a buffer of whole batches, of those that are wanted.

    `is_wanted` is asked once of each batch, in their order, when its checksum was compared: what it decides
    by may be damaged as well. `max_bytes` bounds each batch. At any time one batch at most is decompressed,
    and a run is under way beside those that the caller keeps.
    """
    run: list[Record] = []
    run_bytes = 0
    wanted = (located for located in _proven_batches(buffer) if is_wanted(located[1]))
    try:
        upcoming = next(wanted, None)
        while upcoming is not None:
            position, header = upcoming
            payload = records_payload(buffer, position, header, max_bytes=max_bytes)
            if run_bytes + len(payload) <= RUN_BYTES and len(run) + header.records_count <= RUN_COUNT:
                run_bytes += len(payload)
                run += _decoded(payload, header.records_count, header)
            else:
                for records, size_bytes in _pieces(payload, header):
                    if run:
                        yield RecordRun(run, has_more=True)
                    run, run_bytes = records, size_bytes
                    # A large record would stay in memory beside those that follow.
                    del records
            del payload
            upcoming = next(wanted, None)
            if run_bytes >= RUN_BYTES:
                yield RecordRun(run, has_more=upcoming is not None)
                run, run_bytes = [], 0
    except CorruptRecordError:
        if run:
            yield RecordRun(run, has_more=True)
        raise
    if run:
        yield RecordRun(run, has_more=False)


def batch_records(
    buffer: Buffer, position: int = 0, *, max_bytes: int = DEFAULT_MAX_DECOMPRESSED
) -> Iterator[Record]:
    """The records of the batch at `position`, one by one. A control batch's are markers."""
    header = parse_header(buffer, position)
    payload = checked_payload(buffer, position, header, max_bytes)
    for records, _ in _pieces(payload, header):
        yield from records


def payload_spans(payload: Buffer, records_count: int) -> Iterator[tuple[Buffer, int]]:
    """The records section of a batch, cut between records into what makes a run each, and how many are in
    it. The last one has what is left, so that who decodes it finds what does not belong there.
    """
    if records_count <= RUN_COUNT and len(payload) <= RUN_BYTES:
        yield payload, records_count
        return
    view = memoryview(payload)
    position = 0
    while True:
        count, end_position = kernels.span_records(payload, position, RUN_COUNT, RUN_BYTES)
        if count >= records_count:
            yield view[position:], records_count
            return
        yield view[position:end_position], count
        position = end_position
        records_count -= count


def _proven_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    for position, header in batches(buffer):
        require_crc_as_read(buffer, position, header)
        yield position, header


def _pieces(payload: Buffer, header: BatchHeader) -> Iterator[tuple[list[Record], int]]:
    """Records that make a run, and their bytes in the batch."""
    last_offset = header.base_offset - 1
    for section, count in payload_spans(payload, header.records_count):
        records = _decoded(section, count, header)
        # Within a section this is proved by the kernel.
        if records and records[0].offset <= last_offset:
            raise CorruptRecordError(
                "the offsets of the records do not increase",
                base_offset=header.base_offset,
                offset=records[0].offset,
            )
        last_offset = records[-1].offset if records else last_offset
        yield records, len(section)
        del records


def _decoded(section: Buffer, count: int, header: BatchHeader) -> list[Record]:
    return kernels.decode_records(
        section, count, header.base_offset, header.base_timestamp, header.append_time_ms
    )
