"""A producer that writes keys of its own to all partitions, in transactions and without."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

from stratalog.base.clock import Clock
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from tests.support.torture.keyed_ledger import KeyedLedger, LastValue

LEADER_EPOCH = 1
KEY_COUNT = 150
NUMBER_HEADER = "n"
"""Each record carries which value of its key it is."""
_CODECS = (Codec.NONE, Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.LZ4, Codec.SNAPPY, Codec.GZIP)


class TortureProducer:
    """Writes into one log. Used by one thread. It writes as idempotent producer `2 * number`, and in
    transactions as the next."""

    def __init__(
        self,
        clock: Clock,
        random_source: random.Random,
        logs: Callable[[], Sequence[UnifiedLog]],
        ledger: KeyedLedger,
        number: int,
    ) -> None:
        self._clock = clock
        self._random = random_source
        self._logs = logs
        self._ledger = ledger
        self._number = number
        self._sequences: dict[tuple[UnifiedLog, int], int] = {}
        self._next_number = 0
        self.batch_count = 0
        self.committed_count = 0
        self.aborted_count = 0

    def step(self) -> bool:
        """A batch, or a whole transaction; False where there is no log to write to. Raises what the log
        raises."""
        logs = self._logs()
        if not logs:
            return False
        self._write_to(self._random.choice(logs))
        return True

    def _write_to(self, log: UnifiedLog) -> None:
        if self._random.random() < 0.5:
            self._ledger.note(log.topic_partition, self._append(log, is_transactional=False))
            if self._random.random() < 0.02:
                log.flusher.flush()
            return
        values: dict[bytes, LastValue] = {}
        for _ in range(self._random.randint(1, 4)):
            values |= self._append(log, is_transactional=True)
        is_committed = self._random.random() < 0.7
        # Noted before, because a reader may be quicker than this thread.
        if is_committed:
            self._ledger.note(log.topic_partition, values)
        log.appender.append_end_transaction_marker(
            2 * self._number + 1, 0, 0, committed=is_committed, leader_epoch=LEADER_EPOCH
        )
        self.committed_count += is_committed
        self.aborted_count += not is_committed

    def _append(self, log: UnifiedLog, *, is_transactional: bool) -> dict[bytes, LastValue]:
        records = [self._record() for _ in range(self._random.randint(1, 20))]
        producer_id = 2 * self._number + is_transactional
        sequence = self._sequences.get((log, producer_id), 0)
        batch = encode_batch(
            records,
            codec=self._random.choice(_CODECS),
            producer=BatchProducer(producer_id, 0, sequence, is_transactional),
        )
        info = log.appender.append_as_leader(batch, LEADER_EPOCH)
        self._sequences[log, producer_id] = sequence + len(records)
        self.batch_count += 1
        return {
            record.key: LastValue(info.base_offset + delta, record.value)
            for delta, record in enumerate(records)
            if record.key is not None
        }

    def _record(self) -> Record:
        key = b"%d-%d" % (self._number, self._random.randrange(KEY_COUNT))
        number = self._next_number
        self._next_number += 1
        value = None
        if self._random.random() > 0.1:
            value = struct.pack(">q", number) + self._random.randbytes(self._random.choice((0, 20, 200)))
        return Record(0, self._clock.now_ms(), key, value, ((NUMBER_HEADER, struct.pack(">q", number)),))
