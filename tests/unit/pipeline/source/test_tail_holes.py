"""Which holes in the answers of a server a tail scan takes for lost records."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog.base.errors import OffsetOutOfRangeError
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.messages import FetchedPartition
from stratalog.pipeline.source.tail_scan import TailScan
from stratalog.pipeline.source.tail_span import TailSpan
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.live_slice import GapReason
from stratalog.remote.metadata.shard.shard_judge import LostRange
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from tests.support.spark.plain_store import PlainStore

SPAN = TailSpan(
    topic="t",
    topic_id="0",
    partition=0,
    first_offset=3,
    end_offset=9,
    local_start_offset=3,
    size_bytes=1,
)


class Server:
    """The connection to a server that answers once: it has the offsets from 6 on, and passes 3, 4 and 5."""

    address = "h:1"

    def __init__(self, log_start_offset: int, local_log_start_offset: int, topic_id: str = "0") -> None:
        self._starts = log_start_offset, local_log_start_offset
        self._topic_id = topic_id

    def fetch(self, positions: object, **options: object) -> list[FetchedPartition]:
        del positions, options
        records = [Record(offset, 1, b"k", b"v") for offset in range(6, 9)]
        return [
            FetchedPartition(
                topic="t",
                partition=0,
                batches=encode_batch(records, base_offset=6),
                fetch_offset=3,
                next_fetch_offset=9,
                log_start_offset=self._starts[0],
                local_log_start_offset=self._starts[1],
                high_watermark=9,
                last_stable_offset=9,
                aborted_transactions=(),
                topic_id=self._topic_id,
                leader_epoch=1,
                last_epoch=1,
                error=None,
            )
        ]


def scanned(found: PlainStore, log_start_offset: int, local_log_start_offset: int) -> list[int]:
    """The offsets of a stream's batch."""
    server: Any = Server(log_start_offset, local_log_start_offset)

    def tiered_now(span: TailSpan) -> TieredPartition:
        assert span is SPAN
        return found.tiered.partition(found.tips["t"][0])

    scan = TailScan(
        server,
        ("offset",),
        tiered_now,
        isolation=IsolationLevel.READ_UNCOMMITTED,
        fails_on_data_loss=True,
        is_one_moment=False,
    )
    return [row["offset"] for batch in scan.scan([SPAN]) for row in batch.to_pylist()]


@pytest.fixture
def found() -> PlainStore:
    """A topic t whose first three records are tiered."""
    built = PlainStore()
    built.create("t")
    built.upload({("t", 0): 3})
    return built


@pytest.mark.parametrize("tiered_count", range(4))
def test_what_is_neither_on_the_disk_nor_tiered_is_lost(found: PlainStore, tiered_count: int) -> None:
    if tiered_count:
        found.upload({("t", 0): tiered_count})
    if tiered_count == 3:
        assert scanned(found, 0, 6) == [6, 7, 8], "a compaction has emptied them"
        return
    with pytest.raises(OffsetOutOfRangeError) as error:
        scanned(found, 0, 6)
    assert (error.value.fields["offset"], error.value.fields["end_offset"]) == (3 + tiered_count, 6)


@pytest.mark.parametrize("starts", [(0, 3), (6, 6), (9, 9)])
def test_holes_on_the_disk_and_what_the_log_start_passed_meanwhile_are_no_loss(
    found: PlainStore, starts: tuple[int, int]
) -> None:
    assert scanned(found, *starts) == [6, 7, 8]


@pytest.mark.parametrize("reason", GapReason)
def test_a_recorded_loss_is_one_unless_retention_had_the_right_to_it(
    found: PlainStore, reason: GapReason
) -> None:
    found.tiered.lose(LostRange(found.tips["t"][0], 3, 6, reason))
    if reason is GapReason.EXPIRED:
        assert scanned(found, 0, 6) == [6, 7, 8]
        return
    with pytest.raises(OffsetOutOfRangeError) as error:
        scanned(found, 0, 6)
    fields = error.value.fields
    assert (fields["offset"], fields["end_offset"], fields["reason"]) == (3, 6, reason.value)


def test_no_row_of_a_topic_that_was_created_anew_is_read(
    found: PlainStore, caplog: pytest.LogCaptureFixture
) -> None:
    server: Any = Server(0, 0, topic_id="1")
    scan = TailScan(
        server,
        ("offset",),
        lambda _: found.tiered.partition(found.tips["t"][0]),
        isolation=IsolationLevel.READ_UNCOMMITTED,
        fails_on_data_loss=False,
        is_one_moment=False,
    )
    assert list(scan.scan([SPAN])) == []
    [warning] = caplog.messages
    assert "the topic was created anew" in warning
