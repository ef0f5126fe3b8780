"""A proof names each broken promise of a compaction, and the objects that show it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.base.errors import UnknownTopicOrPartitionError
from stratalog.compaction.proof.key_stream_proof import (
    HAS_ANOTHER_RECORD,
    LACKS_A_KEYLESS,
    LACKS_A_RECORD,
)
from stratalog.compaction.proof.proof_report import ProofFault, ProofReport
from stratalog.log.append import log_validator
from stratalog.record.native.kernels import KeyEntries, sort_key_entries
from stratalog.remote.objects import key_stream, slice_builder
from tests.support.compaction.orders_log import OrdersLog


@pytest.fixture
def orders() -> OrdersLog:
    return OrdersLog()


def repeated(report: ProofReport) -> list[tuple[str, int, str, int]]:
    """The findings about keys that are there twice, which must be all."""
    assert report.finding_count == len(report.findings) == sum(report.counts.values())
    assert set(report.counts) <= {ProofFault.REPEATED_KEY}
    return [(one.object_name, one.offset, one.later_object_name, one.later_offset) for one in report.findings]


@pytest.mark.parametrize("reads_data", [True, False])
def test_a_compaction_that_keeps_two_records_of_a_key_is_found(orders: OrdersLog, reads_data: bool) -> None:
    """In one slice, which has a key stream as if all were well."""
    for keys in ((b"a", b"b"), (b"c", b"a"), (b"d",)):
        orders.upload(*keys)
    orders.claim_compacted(2)
    (output, dirty) = orders.slices
    report = orders.proof(reads_data=reads_data)
    assert repeated(report) == [(output.object_name, 0, output.object_name, 3)]
    (partition,) = report.partitions
    assert (partition.compacted_upto, partition.tiered_end_offset) == (4, 5)
    assert (partition.slice_count, partition.key_count, partition.repeated_count) == (1, 3, 1)
    assert partition.hashed_slice_count == 1, "its key stream has fewer entries than it has records"
    assert partition.dirty_bytes == dirty.entry.data_bytes
    assert partition.size_bytes == dirty.entry.data_bytes + output.entry.data_bytes


@pytest.mark.parametrize("reads_data", [True, False])
def test_a_key_in_two_objects_is_found_by_the_key_streams(orders: OrdersLog, reads_data: bool) -> None:
    for keys in ((b"a", b"b"), (b"c",), (b"d", b"a"), (b"b", b"a")):
        orders.upload(*keys)
    orders.claim_compacted(1, 1, 1, 1)
    first, _, third, fourth = (live.object_name for live in orders.slices)
    report = orders.proof(reads_data=reads_data)
    assert sorted(repeated(report)) == sorted(
        [(first, 0, third, 4), (third, 4, fourth, 6), (first, 1, fourth, 5)]
    )
    (partition,) = report.partitions
    assert partition.hashed_slice_count == 0
    assert (partition.key_count, partition.repeated_count) == (4, 3)


def test_what_is_not_said_to_be_compacted_may_hold_a_key_twice(orders: OrdersLog) -> None:
    for keys in ((b"a", b"b"), (b"a", b"b", b"a")):
        orders.upload(*keys)
    orders.claim_compacted(1)
    report = orders.proof()
    assert report.finding_count == 0
    assert (report.key_stream_count, report.record_count) == (2, 5)
    (partition,) = report.partitions
    assert (partition.compacted_upto, partition.key_count) == (2, 2)


def test_more_keys_than_a_report_names_are_counted(orders: OrdersLog) -> None:
    keys = [b"%d" % number for number in range(150)]
    orders.upload(*keys, *keys)
    orders.claim_compacted()
    report = orders.proof()
    assert report.finding_count == report.counts[ProofFault.REPEATED_KEY] == 150
    assert len(report.findings) == 100


@pytest.mark.parametrize("reads_data", [True, False])
def test_keys_of_many_blocks_and_windows_are_compared(orders: OrdersLog, reads_data: bool) -> None:
    """The key streams have two and three blocks."""
    orders.upload(*[b"a-%d" % number for number in range(7_000)])
    orders.upload(*[b"b-%d" % number for number in range(9_000)], b"a-6543")
    orders.claim_compacted(1, 1)
    first, second = (live.object_name for live in orders.slices)
    report = orders.proof(reads_data=reads_data, is_small=False)
    assert repeated(report) == [(first, 6_543, second, 16_000)]
    assert report.partitions[0].key_count == 16_000


@pytest.mark.parametrize("reads_data", [True, False])
def test_a_record_below_log_start_repeats_nothing(orders: OrdersLog, reads_data: bool) -> None:
    """It is still in its slice, and in the key stream of that."""
    orders.upload(b"a", b"b", b"c")
    orders.upload(b"a", b"b")
    orders.claim_compacted(1, 1)
    orders.advance_log_start(1)
    first, second = (live.object_name for live in orders.slices)
    report = orders.proof(reads_data=reads_data)
    assert repeated(report) == [(first, 1, second, 4)]
    (partition,) = report.partitions
    assert (partition.key_count, partition.hashed_slice_count) == (3, 1)
    orders.advance_log_start(2)
    assert orders.proof(reads_data=reads_data).finding_count == 0


def test_key_streams_that_were_made_with_another_hash_key_are_not_used(
    orders: OrdersLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No compaction uses them either. The slices are hashed."""
    orders.upload(b"a", b"b")
    orders.upload(b"c", b"a")
    orders.claim_compacted(1, 1)
    monkeypatch.setattr(key_stream.KeyHashing, "hash_key_id", 5)
    report = orders.proof()
    assert [(one.offset, one.later_offset) for one in report.findings] == [(0, 3)]
    assert report.key_stream_count == 0
    assert report.partitions[0].hashed_slice_count == 2


def require_nothing(*_: object) -> None:
    """Take the place of what makes sure that records have keys."""


def lacking(entries: KeyEntries) -> KeyEntries:
    """Without the entry of the last record."""
    return entries.of_ordinals(set(entries.ordinal) - {max(entries.ordinal)})


def older(entries: KeyEntries) -> KeyEntries:
    """An older record in the place of the last one."""
    last = list(entries.ordinal).index(max(entries.ordinal))
    entries.ordinal[last] -= 1
    return entries


def other_version(entries: KeyEntries) -> KeyEntries:
    """The last record with the version of another one."""
    assert entries.version is not None
    entries.version[list(entries.ordinal).index(max(entries.ordinal))] -= 1
    return entries


def tombstone(entries: KeyEntries) -> KeyEntries:
    """A record with a value as a tombstone."""
    entries.tombstone[list(entries.ordinal).index(0)] = 1
    return entries


@pytest.mark.parametrize(
    ("lie", "offset", "reason"),
    [(lacking, 2, LACKS_A_RECORD), (older, 1, HAS_ANOTHER_RECORD), (tombstone, 0, LACKS_A_RECORD)],
)
def test_a_key_stream_that_lies_is_found_before_a_compaction_goes_by_it(
    orders: OrdersLog,
    monkeypatch: pytest.MonkeyPatch,
    lie: Callable[[KeyEntries], KeyEntries],
    offset: int,
    reason: str,
) -> None:
    """Its checksums are right, so nothing else notices."""

    def sorted_falsely(entries: KeyEntries) -> KeyEntries:
        return lie(sort_key_entries(entries))

    orders.upload(b"x")
    with monkeypatch.context() as patch:
        patch.setattr(slice_builder, "sort_key_entries", sorted_falsely)
        live = orders.upload(b"a", b"b", b"b")
    report = orders.proof()
    (finding,) = report.findings
    assert (finding.kind, finding.object_name) == (ProofFault.KEY_STREAM, live.object_name)
    assert (finding.offset, finding.reason) == (live.base_offset + offset, reason)
    assert orders.proof(reads_data=False).findings == (), "key streams are trusted then"


def test_a_key_stream_with_another_version_than_its_record_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders = OrdersLog({"compaction.strategy": "timestamp"})
    orders.upload(b"x", b"x")
    assert not orders.proof().findings

    def sorted_falsely(entries: KeyEntries) -> KeyEntries:
        return other_version(sort_key_entries(entries))

    with monkeypatch.context() as patch:
        patch.setattr(slice_builder, "sort_key_entries", sorted_falsely)
        live = orders.upload(b"a", b"b")
    (finding,) = orders.proof().findings
    assert (finding.kind, finding.object_name) == (ProofFault.KEY_STREAM, live.object_name)
    assert finding.offset == live.base_offset + 1


def test_a_key_stream_beside_a_record_without_a_key_is_found(
    orders: OrdersLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction would take the record for an older one."""
    with monkeypatch.context() as patch:
        patch.setattr(log_validator, "require_keys", require_nothing)
        patch.setattr(slice_builder.SliceBuilder, "_forget_keys", require_nothing)
        live = orders.upload(b"a", None)
    assert live.entry.key_stream is not None
    (finding,) = orders.proof().findings
    assert (finding.kind, finding.reason) == (ProofFault.KEY_STREAM, LACKS_A_KEYLESS)


def test_records_without_a_key_are_no_keys(orders: OrdersLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_validator, "require_keys", require_nothing)
    orders.upload(None, b"a", None)
    orders.claim_compacted()
    report = orders.proof()
    assert report.finding_count == 0
    (partition,) = report.partitions
    assert (partition.key_count, partition.hashed_slice_count) == (1, 1)


@pytest.mark.parametrize("reads_data", [True, False])
def test_damage_is_a_finding_and_the_proof_goes_on(orders: OrdersLog, reads_data: bool) -> None:
    live = orders.upload(b"a", b"b")
    orders.claim_compacted()
    (live,) = orders.slices
    key = orders.logs.metadata.layout.data_key(live.object_name)
    intact = orders.site.bucket.get(key).data
    stream = live.entry.key_stream
    assert stream is not None
    for position, is_found in ((stream.position + 20, True), (live.entry.data_position + 70, reads_data)):
        damaged = bytearray(intact)
        damaged[position] ^= 1
        orders.site.bucket.put(key, bytes(damaged))
        report = orders.proof(reads_data=reads_data)
        assert {one.kind for one in report.findings} == ({ProofFault.DAMAGED} if is_found else set())
        assert all(one.partition == 0 and one.topic == "orders" for one in report.findings)
    orders.site.bucket.delete_many([key])
    report = orders.proof(reads_data=reads_data)
    assert {one.kind for one in report.findings} == {ProofFault.MISSING}


def test_an_object_that_was_replaced_meanwhile_is_no_finding(orders: OrdersLog) -> None:
    """The proof looks at the shard again."""
    orders.upload(b"a", b"b")
    orders.upload(b"c")
    orders.claim_compacted(1)
    stale = orders.logs.metadata.state()
    names = [live.object_name for live in orders.slices]
    orders.claim_compacted()
    layout = orders.logs.metadata.layout
    orders.site.bucket.delete_many([layout.data_key(name) for name in names])
    orders.logs.metadata.state = lambda: stale  # type: ignore[method-assign]  # it was opened then
    report = orders.proof()
    assert report.finding_count == 0
    (partition,) = report.partitions
    assert (partition.compacted_upto, partition.key_count) == (3, 3)


def test_a_topic_that_the_store_does_not_have_is_refused(orders: OrdersLog) -> None:
    with pytest.raises(UnknownTopicOrPartitionError) as refused:
        orders.proof(topics=["orders", "nope"])
    assert refused.value.fields["topic"] == "nope"
