"""Idempotent producers of a compacted log: who comes back is known, whatever was made of its batches."""

from __future__ import annotations

import dataclasses

from stratalog.record.record import Record
from tests.support.cleaner.compacted_log import CONFIG, CompactedLog

SMALL = dataclasses.replace(CONFIG, segment_bytes=300)


def test_the_batch_of_a_producer_that_was_forgotten_goes() -> None:
    history = CompactedLog(SMALL)
    for producer_id in range(10):
        history.append([Record(0, history.now_ms, b"k", b"v")], producer_id=producer_id)
    history.log.set_producer_id_expiration_ms(1000)
    history.machine.clock.advance(2000)
    history.log.remove_expired_producers()
    history.put("k=last")
    history.clean_all()
    history.put("k=really")
    history.clean_all()
    assert not [header for header in history.headers() if header.has_producer_id]
