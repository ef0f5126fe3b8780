"""The catalog: topics come, change and go, and a destructive action gets its number here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from uuid import UUID

import pytest

from stratalog.base.errors import (
    FencingTokenMismatchError,
    InvalidRequestError,
    PreconditionFailedError,
    StoreCorruptError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    UnsupportedOperationError,
)
from stratalog.remote.json_document import JsonFields
from stratalog.remote.metadata.catalog.catalog_state import CatalogMachine, CatalogState
from stratalog.remote.metadata.catalog.topic_entry import require_topic_name
from stratalog.remote.metadata.head.checkpoint import CheckpointFolder, CheckpointRoot
from stratalog.remote.metadata.head.checkpoint_page import PageRef
from stratalog.remote.metadata.head.document_ref import DocumentRef
from stratalog.remote.metadata.head.head_log import CommitSettings
from stratalog.remote.metadata.head.head_state import WaitingFiles
from stratalog.remote.metadata.head.page_loader import PageLoader
from stratalog.remote.store_layout import StoreLayout, format_checkpoint_name
from stratalog.testing.manual_clock import ManualClock
from tests.support.stored_fields import stored_fields
from tests.support.stored_heads import head_bytes
from tests.support.tiered.checkpoint_pages import page_of_rows, put_page, reference
from tests.support.tiered.current_keys import waiting_files
from tests.support.tiered.metadata_harness import MetadataHarness

HEAD = "catalog/head"
THIRTY_DAYS_MS = 30 * 24 * 3600 * 1000
MISSING = UUID(int=1)


def test_a_new_topic_has_an_id_and_a_hash_key(harness: MetadataHarness) -> None:
    catalog = harness.catalog()
    entry = catalog.create("orders", 3, {"cleanup.policy": "compact"})
    assert (entry.name, entry.partition_count, dict(entry.config)) == (
        "orders",
        3,
        {"cleanup.policy": "compact"},
    )
    assert len(entry.hash_key) == 16
    assert not entry.is_deleted
    assert catalog.topics() == {"orders": entry}
    assert catalog.by_id(entry.topic_id) == entry
    assert catalog.seq == 1
    assert harness.catalog().topics() == {"orders": entry}, "and from the bytes"
    catalog.check()


def test_the_hash_key_is_a_secret(harness: MetadataHarness) -> None:
    entry = harness.catalog().create("orders", 1)
    assert "hash_key" not in repr(entry)
    assert repr(entry.hash_key) not in repr(entry)
    stored = dict(stored_fields(harness.store.get(HEAD).data, HEAD).values)
    commits = stored["commits"]
    assert isinstance(commits, list)
    commits[0]["actions"][0]["hash_key"] = "c2VjcmV0"
    harness.store.put(HEAD, head_bytes(stored))
    with pytest.raises(StoreCorruptError) as caught:
        harness.catalog()
    assert "c2VjcmV0" not in str(caught.value)


def test_no_two_topics_share_a_name(harness: MetadataHarness) -> None:
    catalog = harness.catalog()
    first = catalog.create("orders", 1)
    with pytest.raises(TopicAlreadyExistsError):
        catalog.create("orders", 1)
    catalog.delete(first.topic_id)
    second = catalog.create("orders", 2)
    assert second.topic_id != first.topic_id
    assert second.hash_key != first.hash_key
    assert catalog.topics() == {"orders": second}
    known = catalog.by_id(first.topic_id)
    assert known is not None
    assert known.deleted_ms == harness.clock.now_ms()
    catalog.check()


def test_names_are_kafkas() -> None:
    letters = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    names = {f"a{chr(code)}": chr(code) in letters for code in range(0x300)}
    names |= {"": False, ".": False, "..": False, "...": True, "x" * 249: True, "x" * 250: False}
    for name, is_valid in names.items():
        with nullcontext() if is_valid else pytest.raises(InvalidRequestError):
            require_topic_name(name, ["another"])


def test_names_that_metrics_cannot_tell_apart(harness: MetadataHarness) -> None:
    catalog = harness.catalog()
    entry = catalog.create("a.b", 1)
    with pytest.raises(InvalidRequestError) as caught:
        catalog.create("a_b", 1)
    assert caught.value.fields["existing_topic"] == "a.b"
    catalog.delete(entry.topic_id)
    catalog.create("a_b", 1)


def test_alter_sets_the_whole_configuration(harness: MetadataHarness) -> None:
    catalog = harness.catalog()
    entry = catalog.create("orders", 2, {"retention.ms": "1", "segment.bytes": "2"})
    altered = catalog.alter(entry.topic_id, config={"retention.ms": "5"})
    assert dict(altered.config) == {"retention.ms": "5"}
    assert altered.partition_count == 2
    assert altered.hash_key == entry.hash_key
    assert catalog.alter(entry.topic_id, partition_count=4).partition_count == 4
    assert dict(catalog.topics()["orders"].config) == {"retention.ms": "5"}
    seq = catalog.seq
    assert catalog.alter(entry.topic_id, partition_count=4) == catalog.topics()["orders"]
    assert catalog.seq == seq, "nothing to commit"


def test_partitions_only_grow(harness: MetadataHarness) -> None:
    catalog = harness.catalog()
    entry = catalog.create("orders", 2)
    for count in (1, 0, -1, 100_001):
        with pytest.raises(InvalidRequestError):
            catalog.alter(entry.topic_id, partition_count=count)
    for count in (0, -1, 100_001):
        with pytest.raises(InvalidRequestError):
            catalog.create("other", count)


def test_unknown_and_deleted_topics_are_refused(harness: MetadataHarness) -> None:
    catalog = harness.catalog()
    gone = catalog.create("orders", 1)
    catalog.delete(gone.topic_id)
    seq = catalog.seq
    catalog.delete(gone.topic_id)
    assert catalog.seq == seq, "deleted already"
    with pytest.raises(UnknownTopicOrPartitionError):
        catalog.delete(MISSING)
    for topic_id in (MISSING, gone.topic_id):
        with pytest.raises(UnknownTopicOrPartitionError):
            catalog.alter(topic_id, partition_count=2)


def test_deleted_topics_are_forgotten_after_thirty_days(harness: MetadataHarness) -> None:
    catalog = harness.catalog()
    first, second, third = (catalog.create(name, 1) for name in ("a", "b", "c"))
    catalog.delete(first.topic_id)
    harness.clock.advance(THIRTY_DAYS_MS)
    catalog.delete(second.topic_id)
    assert catalog.by_id(first.topic_id) is not None
    harness.clock.advance(1)
    catalog.delete(third.topic_id)
    assert catalog.by_id(first.topic_id) is None
    assert catalog.by_id(second.topic_id) is not None
    assert harness.catalog().state() == catalog.state()


def test_the_servers_configuration_changes_by_compare_and_swap(harness: MetadataHarness) -> None:
    one, two = harness.catalog(), harness.catalog()
    assert one.state().server_config == {}
    one.alter_server_config(lambda config: {**config, "a": "1"})
    # The other one has not read that commit: its change is made again, on top of it.
    assert two.alter_server_config(lambda config: {**config, "b": "2"}) == {"a": "1", "b": "2"}
    assert one.refresh().server_config == {"a": "1", "b": "2"}
    seq = one.seq
    assert one.alter_server_config(lambda config: config) == {"a": "1", "b": "2"}
    assert one.seq == seq, "an equal configuration commits nothing"

    def refuse(config: Mapping[str, str]) -> Mapping[str, str]:
        raise InvalidRequestError("refused", config=config)

    with pytest.raises(InvalidRequestError):
        one.alter_server_config(refuse)
    assert one.seq == seq
    assert one.fold() == seq + 1
    for opened in (harness.catalog(), harness.catalog(read_only=True)):
        assert opened.state() == one.state()
        assert opened.state().server_config == {"a": "1", "b": "2"}


def test_producer_ids_are_taken_in_blocks_that_never_overlap(harness: MetadataHarness) -> None:
    one, two = harness.catalog(), harness.catalog()
    assert one.state().next_producer_id == 0
    assert one.take_producer_ids(1000) == range(1000)
    # The other one has not read that commit.
    assert two.take_producer_ids(10) == range(1000, 1010)
    assert one.take_producer_ids(1) == range(1010, 1011)
    assert one.fold() is not None
    for opened in (harness.catalog(), harness.catalog(read_only=True)):
        assert opened.state() == one.state()
        assert opened.state().next_producer_id == 1011
    assert harness.catalog().take_producer_ids(2) == range(1011, 1013)


def test_a_topic_takes_the_producer_ids_of_its_batches_with_its_creation(harness: MetadataHarness) -> None:
    catalog = harness.catalog()
    catalog.create("imported", 1, next_producer_id=501)
    assert (catalog.seq, catalog.state().next_producer_id) == (1, 501)
    catalog.create("older", 1, next_producer_id=17)
    assert catalog.state().next_producer_id == 501, "it never falls"
    assert harness.catalog().take_producer_ids(3) == range(501, 504)
    with pytest.raises(TopicAlreadyExistsError):
        catalog.create("older", 1, next_producer_id=9000)
    assert catalog.state().next_producer_id == 504, "a topic that is refused takes nothing"


def test_producer_ids_end(harness: MetadataHarness) -> None:
    catalog = harness.catalog()
    catalog.create("imported", 1, next_producer_id=2**63 - 1 - 5)
    with pytest.raises(UnsupportedOperationError) as caught:
        catalog.take_producer_ids(6)
    assert caught.value.fields == {"next_producer_id": 2**63 - 1 - 5}
    assert catalog.take_producer_ids(5)[-1] == 2**63 - 2
    assert harness.catalog().state().next_producer_id == 2**63 - 1


@pytest.mark.parametrize("damaged", [0, 5, 10, -1, 2**63, True, 10.0, "11", None])
def test_damaged_producer_ids_are_found(harness: MetadataHarness, damaged: object) -> None:
    """In a commit: a number of another form, and one that takes ids again."""
    catalog = harness.catalog()
    catalog.take_producer_ids(10)
    catalog.take_producer_ids(10)
    stored = dict(stored_fields(harness.store.get(HEAD).data, HEAD).values)
    commits = stored["commits"]
    assert isinstance(commits, list)
    commits[1]["actions"][0]["next_producer_id"] = damaged
    harness.store.put(HEAD, head_bytes(stored))
    with pytest.raises(StoreCorruptError):
        harness.catalog()


def read_state(root: dict[str, object], topic: dict[str, object] | None) -> CatalogState:
    """The state of a checkpoint with these fields of the root, and with this topic if there is one."""
    harness = MetadataHarness()
    name = format_checkpoint_name(3, harness.ids.uuid())
    pages: list[PageRef] = []
    if topic is not None:
        page = page_of_rows([topic])
        pages.append(put_page(harness.store, StoreLayout(None), reference("topics", name, page), page))
    folder = CheckpointFolder(harness.store, StoreLayout(None), PageLoader())
    found = CheckpointRoot(
        ref=DocumentRef(name, 1, 1), fields=JsonFields(root, "root"), pages=tuple(pages), times=()
    )
    return CatalogMachine().from_checkpoint(folder, found)


@pytest.mark.parametrize("damaged", [-1, 2**63, True, 1.0, "1", None])
def test_a_damaged_next_producer_id_of_a_checkpoint_is_found(damaged: object) -> None:
    written = CatalogMachine().to_checkpoint(CatalogState(uuid=MISSING, next_producer_id=11)).fields.values

    def read(**changed: object) -> CatalogState:
        return read_state({**written, "seq": 3, **changed}, None)

    assert read().next_producer_id == 11
    with pytest.raises(StoreCorruptError):
        read(next_producer_id=damaged)


def test_a_fencing_token_belongs_to_a_partition_of_a_topic_id(harness: MetadataHarness) -> None:
    one, two = harness.catalog(), harness.catalog()
    orders = one.create("orders", 2)
    assert one.fencing_token(orders.topic_id, 0) == ""
    one.fence(orders.topic_id, 1, "a")
    one.alter(orders.topic_id, partition_count=3, config={"retention.ms": "1"})
    two.refresh()
    assert [two.fencing_token(orders.topic_id, number) for number in range(3)] == ["", "a", ""]
    two.fence(orders.topic_id, 2, "b" * 36)
    one.refresh()
    assert one.fold() is not None
    for opened in (harness.catalog(), harness.catalog(read_only=True)):
        assert opened.state() == one.state()
        assert opened.topics()["orders"].fencing_tokens == {1: "a", 2: "b" * 36}
    one.fence(orders.topic_id, 1, "")
    assert one.topics()["orders"].fencing_tokens == {2: "b" * 36}
    one.delete(orders.topic_id)
    again = one.create("orders", 3)
    assert one.fencing_token(again.topic_id, 2) == ""
    one.check()


def test_a_token_is_replaced_by_compare_and_swap(harness: MetadataHarness) -> None:
    one, two = harness.catalog(), harness.catalog()
    topic_id = one.create("orders", 1).topic_id
    two.refresh()
    one.fence(topic_id, 0, "a", "")
    # The other one has not read that commit.
    with pytest.raises(FencingTokenMismatchError) as caught:
        two.fence(topic_id, 0, "b", "")
    assert caught.value.fields == {"fencing_token": "", "current_token": "a"}
    two.fence(topic_id, 0, "b", "a")
    seq = two.seq
    two.fence(topic_id, 0, "b", "a")
    assert two.seq == seq, "an earlier try has landed"
    one.fence(topic_id, 0, "c")
    assert one.fencing_token(topic_id, 0) == "c"


def test_tokens_and_partitions_that_cannot_be_are_refused(harness: MetadataHarness) -> None:
    catalog = harness.catalog()
    topic_id = catalog.create("orders", 2).topic_id
    for token in ("x" * 37, "\u20ac" * 13):
        with pytest.raises(InvalidRequestError) as caught:
            catalog.fence(topic_id, 0, token)
        assert caught.value.fields["max_bytes"] == 36
    for number in (-1, 2):
        with pytest.raises(UnknownTopicOrPartitionError):
            catalog.fence(topic_id, number, "a")
    with pytest.raises(UnknownTopicOrPartitionError):
        catalog.fence(MISSING, 0, "a")


@pytest.mark.parametrize("damaged", [{"partition": 2}, {"partition": -1}, {"token": 7}, {"token": None}])
def test_a_damaged_token_is_found(harness: MetadataHarness, damaged: dict[str, object]) -> None:
    catalog = harness.catalog()
    catalog.fence(catalog.create("orders", 2).topic_id, 1, "a")
    stored = dict(stored_fields(harness.store.get(HEAD).data, HEAD).values)
    commits = stored["commits"]
    assert isinstance(commits, list)
    commits[1]["actions"][0] |= damaged
    harness.store.put(HEAD, head_bytes(stored))
    with pytest.raises(StoreCorruptError):
        harness.catalog()


@pytest.mark.parametrize("damaged", [[[2, "a"]], [[-1, "a"]], [[0, 7]], [[0]], "a", [0], {"0": "a"}])
def test_damaged_tokens_of_a_page_are_found(harness: MetadataHarness, damaged: object) -> None:
    entry = harness.catalog().create("orders", 2)
    state = harness.catalog().state()
    changes = CatalogMachine().to_checkpoint(state)
    table = changes.tables["topics"]
    [(_, values)] = table.fresh
    row = dict(zip(table.columns, values, strict=True))

    def read(**changed: object) -> CatalogState:
        return read_state({**changes.fields.values, "seq": 1}, row | changed)

    assert read(fencing_tokens=[[1, "a"]]).entries[entry.topic_id].fencing_tokens == {1: "a"}
    with pytest.raises(StoreCorruptError):
        read(fencing_tokens=damaged)


def test_a_new_token_voids_no_decision_about_the_topic(harness: MetadataHarness) -> None:
    catalog, other = harness.catalog(), harness.catalog()
    entry = catalog.create("orders", 1)
    other.refresh()
    other.fence(entry.topic_id, 0, "a")
    assert catalog.confirm([entry]) == (2, frozenset())


def test_confirm_reads_again(harness: MetadataHarness) -> None:
    catalog, other = harness.catalog(), harness.catalog()
    entry = catalog.create("orders", 1)
    bystander = catalog.create("bystander", 1)
    assert catalog.confirm([entry]) == (2, frozenset())
    other.refresh()
    other.alter(bystander.topic_id, config={"retention.ms": "1"})
    assert catalog.confirm([entry]) == (3, frozenset()), "what was decided with it still holds"
    other.alter(entry.topic_id, config={"retention.ms": "-1"})
    assert catalog.confirm([entry, catalog.topics()["bystander"]]) == (4, frozenset([entry.topic_id]))
    assert catalog.confirm([catalog.topics()["orders"]]) == (4, frozenset())
    deleted = catalog.topics()["orders"]
    other.delete(entry.topic_id)
    assert catalog.confirm([deleted]) == (5, frozenset([entry.topic_id]))


@pytest.mark.parametrize("skew_ms", [0, 31 * 24 * 3_600_000, -31 * 24 * 3_600_000])
def test_the_stores_clock_decides_how_long_a_deleted_topic_is_remembered(skew_ms: int) -> None:
    """A wrong clock of the deleter must not forget a topic early: a late upload would bring it back."""
    store_clock = ManualClock()
    harness = MetadataHarness(clock=ManualClock(store_clock.now_ms() + skew_ms), store_clock=store_clock)
    catalog = harness.catalog()
    first, second = (catalog.create(name, 1) for name in ("a", "b"))
    catalog.delete(first.topic_id)
    entry = catalog.by_id(first.topic_id)
    assert entry is not None
    assert entry.deleted_ms is not None
    assert entry.deleted_ms >= store_clock.now_ms()
    for clock in {harness.clock, store_clock}:
        clock.advance(24 * 3_600_000)
    catalog.delete(second.topic_id)
    assert catalog.by_id(first.topic_id) is not None


def test_absent_is_not_deleted(harness: MetadataHarness) -> None:
    catalog, other = harness.catalog(), harness.catalog()
    entry = catalog.create("orders", 1)
    for topic_id in (MISSING, entry.topic_id):
        with pytest.raises(PreconditionFailedError):
            catalog.confirm_deleted(topic_id)
    other.refresh()
    other.delete(entry.topic_id)
    assert catalog.confirm_deleted(entry.topic_id) == 2


def test_the_catalog_folds(harness: MetadataHarness) -> None:
    catalog = harness.catalog(settings=CommitSettings(fold_inline_commits=1))
    entries = [catalog.create(f"topic-{n}", n + 1, {"retention.ms": str(n)}) for n in range(16)]
    catalog.delete(entries[3].topic_id)
    head = stored_fields(harness.store.get(HEAD).data, HEAD)
    assert head.fields("checkpoint").text("name")
    assert head.values["shard"] is None
    opened = harness.catalog(read_only=True)
    assert opened.state() == catalog.state()
    assert opened.topics() == catalog.topics()
    replacements = catalog.state().replacements
    assert replacements
    replaced = waiting_files(harness.store, catalog)
    assert catalog.waiting_files.file_count == len(replaced) == sum(one.file_count for one in replacements)
    harness.store.delete_many([one.key(catalog.layout) for one in replaced])
    for one in replacements:
        catalog.finish_list(one, [])
    assert catalog.waiting_files == WaitingFiles(0, 0, -1)
    assert catalog.fold() is not None
    assert harness.catalog().state() == catalog.state()


def test_a_call_with_an_id_can_be_repeated(harness: MetadataHarness) -> None:
    catalog = harness.catalog()
    topic_id = harness.ids.uuid()
    first = catalog.create("orders", 1, topic_id=topic_id)
    assert catalog.create("orders", 1, topic_id=topic_id) == first
    assert catalog.seq == 1
    with pytest.raises(TopicAlreadyExistsError):
        catalog.create("other", 1, topic_id=topic_id)


def test_what_no_rebuild_finds_again_is_folded_at_the_next_look(harness: MetadataHarness) -> None:
    """All changes since the last look in one fold; what costs nothing to lose waits."""
    catalog = harness.catalog()
    topics = [catalog.create(f"t{number}", 1) for number in range(20)]
    seq = catalog.seq
    assert catalog.fold_if_needed() == seq + 1
    assert catalog.fold_if_needed() is None
    catalog.take_producer_ids(10)
    catalog.fence(topics[0].topic_id, 0, "token")
    assert catalog.fold_if_needed() is None
    for change in (
        lambda: catalog.alter(topics[0].topic_id, config={"retention.ms": "-1"}),
        lambda: catalog.delete(topics[1].topic_id),
        lambda: catalog.alter_server_config(lambda _: {"log.retention.ms": "-1"}),
    ):
        change()
        assert catalog.fold_if_needed() is not None
        assert catalog.fold_if_needed() is None
    catalog.check()
