"""The end of tiers whose local logs are long or damaged."""

from __future__ import annotations

from stratalog.base.errors import CorruptRecordError
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.record.record import Record
from stratalog.remote.tier.tier_drop import LOCAL_DAMAGE, LOCAL_PROOF, DropReport, TierDrop
from tests.support.tiered.tiered_logs import TieredLogs
from tests.support.tiered.tiered_site import TieredSite

COUNT = 3
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def uploaded(site: TieredSite, proven_bytes: int) -> TieredLogs:
    """Two logs with `COUNT` segments of one record each, on the disk and in the store."""
    logs = site.start()
    logs.create_topic("t", 2, {"retention.ms": "-1"})
    for _ in range(COUNT):
        for log in logs.logs.values():
            logs.append(log, [Record(0, site.clock.now_ms(), b"k", bytes(100))])
        logs.seal()
    logs.upload()
    logs.tier_drop = TierDrop(logs.metadata, logs.turns, proven_bytes=proven_bytes)
    return logs


def slice_count(logs: TieredLogs, partition: TopicPartition) -> int:
    tip = TopicIdPartition(logs.logs[partition].topic_id, partition.partition)
    return len(logs.metadata.refresh().partition(tip).slices)


def test_long_logs_leave_their_tiers_over_several_calls() -> None:
    logs = uploaded(TieredSite(), 1)
    reports: list[DropReport] = []
    while not reports or reports[-1].refused:
        assert len(reports) < 2 * COUNT
        reports.append(logs.drop_tiers())
    assert len(reports) == 2 * COUNT, "each call reads one batch"
    assert {one.reason for report in reports for one in report.refused} == {LOCAL_PROOF}
    assert [one for report in reports for one in report.dropped] == [FIRST, SECOND]
    assert (slice_count(logs, FIRST), slice_count(logs, SECOND)) == (0, 0)


def test_a_damaged_log_keeps_its_tier_and_the_other_one_goes() -> None:
    site = TieredSite()
    logs = uploaded(site, 1 << 20)
    [path] = [path for path in site.disk.contents() if path.endswith(f"t-0/{1:020d}.log")]
    damaged = bytearray(site.disk.read_file(path))
    damaged[-1] ^= 1
    file = site.disk.open_append(path)
    file.truncate(0)
    file.append([bytes(damaged)])
    file.close()
    before = slice_count(logs, FIRST)
    for dropped in ((SECOND,), ()):
        report = logs.drop_tiers()
        assert report.dropped == dropped
        [refused] = report.refused
        assert (refused.topic_partition, refused.reason) == (FIRST, LOCAL_DAMAGE)
        assert isinstance(refused.damage, CorruptRecordError)
        assert (slice_count(logs, FIRST), slice_count(logs, SECOND)) == (before, 0)
    log = logs.logs[FIRST]
    assert log.offsets.tiered_end_offset == COUNT, "the log counts its records as tiered ones"
    log.offsets.check()
