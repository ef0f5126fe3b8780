"""A reader that begins at the start of a log and follows it to its end, meeting committed records only."""

from __future__ import annotations

import struct

from stratalog.base.errors import OffsetOutOfRangeError
from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.log.unified_log import UnifiedLog
from tests.support.logs.log_consumer import committed_records
from tests.support.torture.keyed_ledger import KeyedLedger, KeyedView

_FETCH_BYTES = 64 * 1024


class TortureReader:
    """Reads one log again and again. Used by one thread."""

    def __init__(self, log: UnifiedLog) -> None:
        self._log = log
        self._offset = log.offsets.log_start_offset
        self.view = KeyedView(log.topic_partition, self._offset)

    def read_on(self) -> bool:
        """Read what one fetch gives; False where the reader has caught up. Raises AssertionError where it is
        not in order."""
        end_offset = self._log.offsets.last_stable_offset
        if self._offset >= end_offset:
            return False
        try:
            fetched = self._log.reader.read(self._offset, _FETCH_BYTES, Isolation.TXN_COMMITTED)
        except OffsetOutOfRangeError:
            # Retention was quicker, as it may be, or who deletes records.
            assert self._offset < self._log.offsets.log_start_offset, (
                f"{self._log.topic_partition} at {self._offset}"
            )
            self._offset = self._log.offsets.log_start_offset
            return True
        self._take(fetched)
        self._offset = fetched.next_offset
        return True

    def read_to_end(self) -> None:
        while self.read_on():
            pass

    def differences(self, ledger: KeyedLedger) -> list[str]:
        """Where it differs from what it is to be; once it has read to the end."""
        last_values = ledger.last_values(self._log.topic_partition)
        return self.view.differences(last_values, self._log.offsets.log_start_offset)

    def _take(self, fetched: FetchData) -> None:
        for record in committed_records(fetched, self._offset):
            assert record.key is not None
            _, number = record.headers[0]
            assert number is not None
            self.view.take(record.offset, record.key, record.value, int(struct.unpack(">q", number)[0]))
