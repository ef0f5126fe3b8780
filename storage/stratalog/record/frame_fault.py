"""What exactly is wrong with a records section, once the kernels have said that something is.

The kernels answer for whole sections and only tell sound from broken. This walk is slower and says where and
what; it is taken for the error alone, and no further than its limit, so that nobody can keep the interpreter
busy with a section that is broken at its far end.
"""

from __future__ import annotations

from itertools import islice

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record.header import BatchHeader
from stratalog.record.record_frame import header_frames, header_name, record_frames

MAX_RECORDS_WALKED = 10_000


def frame_fault(payload: Buffer, header: BatchHeader) -> CorruptRecordError | None:
    """The error for the first fault among the first 10,000 records; None where it lies behind them.

    Fields: record_position (in the decompressed section), field and value, as far as there are such.
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
