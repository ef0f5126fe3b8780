"""Finds the exact fault in a records section that the kernels have refused.

The kernels answer for whole sections, with sound or broken only. This walk is slower and finds the position
and the field. It runs for the error alone, and stops at a limit, so that a section that is broken at its far
end cannot keep the interpreter busy.
"""

from __future__ import annotations

from itertools import islice

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record.header import BatchHeader
from stratalog.record.record_frame import header_frames, header_name, record_frames

MAX_RECORDS_WALKED = 10_000


def frame_fault(payload: Buffer, header: BatchHeader) -> CorruptRecordError | None:
    """The error for the first fault among the first 10,000 records; None if the fault lies after them.

    Fields: record_position (in the decompressed section), field and value, as far as they apply.
    """
    data = bytes(payload)
    try:
        for frame in islice(record_frames(data, header.records_count), MAX_RECORDS_WALKED):
            for name_position, name_size, _, _ in header_frames(data, frame):
                header_name(data, name_position, name_size)
            if frame.offset_delta > header.last_offset_delta:
                return CorruptRecordError(
                    "a record lies behind the last offset of its batch",
                    record_position=frame.start,
                    field="offset_delta",
                    value=frame.offset_delta,
                )
    except CorruptRecordError as fault:
        return fault
    return None
