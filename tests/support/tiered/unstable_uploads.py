"""Uploads that go beyond the last stable offset.

Today's stop there, but objects may hold transactions that are open at their end, and readers are ready for
that.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from stratalog.log.read import log_reader
from stratalog.log.read.segment_info import SegmentSource, upload_sources
from stratalog.segment.log_segment import LogSegment


@contextmanager
def unstable_uploads() -> Generator[None]:
    """For as long as the block lasts, all that is sealed may be uploaded; the caller has flushed it."""

    def all_sealed(
        sealed: Sequence[LogSegment], first_offset: int, _end_offset: int
    ) -> tuple[SegmentSource, ...]:
        return upload_sources(sealed, first_offset, sys.maxsize)

    with patch.object(log_reader, "upload_sources", all_sealed):
        yield
