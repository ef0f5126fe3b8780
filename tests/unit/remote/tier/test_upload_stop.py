"""An upload that is stopped, at each place where it looks: objects that were committed stay, the next pass
brings the rest.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest

from stratalog.base.errors import StoppingError
from stratalog.record.record import Record
from stratalog.segment.log_segment import LogSegment
from tests.support.cleaner.stop_at_look import StopAtLook
from tests.support.tiered.tiered_logs import TieredLogs
from tests.support.tiered.tiered_site import TieredSite

PARTITION_COUNT = 2
BATCH_COUNT = 6
EXPECTED = [[b"%d" % number * 20 for number in range(BATCH_COUNT)]] * PARTITION_COUNT


def test_a_stop_ends_the_proof_of_a_large_segment() -> None:
    """A segment may have gigabytes, and all of it is proven before the first batch is sent."""
    site = TieredSite()
    logs = site.start()
    logs.create_topic("t", 1)
    (log,) = logs.logs.values()
    for _ in range(20):
        logs.append(log, [Record(0, 1000, b"key", b"x" * 20_000)])
    logs.seal()
    logs.close()
    logs = site.start(stop=StopAtLook(10))
    with (
        patch.object(LogSegment, "read_bytes", side_effect=AssertionError("the proof has not ended")),
        pytest.raises(StoppingError),
    ):
        logs.upload()


def machine() -> TieredSite:
    """A disk with rolled segments, whose upload takes several objects and several reads for each."""
    site = TieredSite(max_object_bytes=500, read_bytes=150)
    logs = site.start()
    logs.create_topic("t", PARTITION_COUNT)
    for log in logs.logs.values():
        for number in range(BATCH_COUNT):
            logs.append(log, [Record(0, 1000, b"key", b"%d" % number * 20)])
    logs.seal()
    logs.close()
    return site


def values(logs: TieredLogs) -> list[list[bytes | None]]:
    return [[record.value for record in logs.tiered_records(log)] for log in logs.logs.values()]


def test_an_upload_ends_where_it_looks_and_the_next_one_goes_on() -> None:
    watched = StopAtLook(0)
    logs = machine().start(stop=watched)
    assert logs.upload().object_count == 3
    assert values(logs) == EXPECTED
    committed_counts: set[int] = set()
    for at in range(1, watched.look_count + 1):
        site, stop = machine(), StopAtLook(at)
        logs = site.start(stop=stop)
        with pytest.raises(StoppingError):
            logs.upload()
        assert stop.look_count == at, "and asks for nothing any more"
        assert site.disk.list_directory("/spool") == []
        live = logs.metadata.refresh().objects
        committed_counts.add(len(live))
        found = values(logs)
        assert all(part == whole[: len(part)] for part, whole in zip(found, EXPECTED, strict=True))
        logs.close()
        logs = site.start()
        logs.upload()
        assert values(logs) == EXPECTED
        assert set(live) <= set(logs.metadata.state().objects), "what was committed by then stays"
    assert committed_counts == {0, 1, 2}
