"""The metadata of a large shard: opening it, reading from it, committing to it and folding it.

The store is a local directory with the checkpoint of 5 million slices (200,000 with `--quick`) of 20,000
partitions, written page by page, as if folds had made it. Everything is measured in a process that has just
begun, because memory counts. Times are processor times: disks and other work are not what is compared. Of
five commits the one in the middle counts, and the slowest one is shown. The last process has the metadata
of a day more, whose folds have replaced a million pages: names only, the files are not there. The reference
of a fold is to read and decompress all slice pages of the checkpoint, which is the least that a state in
memory would cost. All else has a target of its own.
"""

from __future__ import annotations

import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

import zstandard

from report import Row, promised_cost, run
from stratalog.base.clock import SystemClock
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.process_tuning import exempt_loaded_objects
from stratalog.base.randomness import SystemIdGenerator
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.plan.planned_jobs import CompactionPlan
from stratalog.compaction.plan.planner import plan
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.objectstore.local import LocalObjectStore
from stratalog.remote.json_document import JsonFields, encode_document, encode_text
from stratalog.remote.metadata.head.checkpoint import CheckpointFolder, CheckpointRoot, read_root
from stratalog.remote.metadata.head.checkpoint_page import (
    COLUMNS_FORMAT,
    Page,
    PageRef,
    TableChange,
    digest_of,
)
from stratalog.remote.metadata.head.checkpoint_writer import CheckpointChanges, CheckpointWriter
from stratalog.remote.metadata.head.commit import Commit, Writer
from stratalog.remote.metadata.head.document_ref import DocumentRef, FileKind, Replacement, TrackedFile
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.head.head_actions import Fold
from stratalog.remote.metadata.head.head_log import CommitSettings, StoreActor
from stratalog.remote.metadata.head.head_state import ChangedRows
from stratalog.remote.metadata.head.page_loader import PageLoader
from stratalog.remote.metadata.head.persistent_map import PersistentMap
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.partition_row import PartitionRow, StoredSlices
from stratalog.remote.metadata.shard.shard_checkpoint import shard_to_changes
from stratalog.remote.metadata.shard.shard_state import (
    OBJECTS,
    PARTITIONS,
    LiveObject,
    ShardClaim,
    ShardState,
)
from stratalog.remote.metadata.shard.slice_row import SLICE_COLUMNS, SLICE_ENCODINGS, SLICE_KEY_SIZE, SLICES
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.objects.object_ref import ObjectRef, format_object_name
from stratalog.remote.objects.slice_entry import LastBatch, LeaderEpoch, PartRef, SliceEntry
from stratalog.remote.objects.slice_span import SliceSpan
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout, format_checkpoint_name
from stratalog.remote.tier.replaced_files import ReplacedFiles, ReplacedNames

PARTITION_COUNT: Final = 20_000
SLICES_OF_OBJECT: Final = 500
RECORDS: Final = 1_000
DATA_BYTES: Final = 130_000
DATA_POSITION: Final = 4096
INDEX_BYTES: Final = 400
OBJECT_BYTES: Final = SLICES_OF_OBJECT * DATA_BYTES
TOPIC_ID: Final = UUID(int=0x5EED << 64)
COMMIT_PARTITIONS: Final = 5_000
FOLDS_OF_DAY: Final = 200
"""Folds of a day in which each slice is uploaded and compacted once: one for each 50,000 changed rows. Each
of them replaces all slice pages, because partitions are small."""
MIB: Final = 1 << 20


class Measured(NamedTuple):
    """The measurements of one process."""

    slice_bytes: float
    open_s: float
    open_mib: float
    read_mib: float
    read_ms: float
    commit_cpu_ms: float
    slowest_commit_cpu_ms: float
    fold_mib: float
    fold_small_s: float
    fold_large_s: float
    decode_s: float


class MeasuredPlan(NamedTuple):
    """The measurements of a plan."""

    plan_s: float
    peak_mib: float
    """The most that was resident, beyond the state."""


class MeasuredDay(NamedTuple):
    """The measurements of a shard with the files that the folds of a day have replaced."""

    file_count: int
    """Files that wait to be deleted."""
    open_s: float
    open_mib: float
    root_mib: float
    fold_s: float
    names_s: float
    """The time in which the orphan sweep learns the names of all these files, once."""
    names_mib: float
    """Memory then."""


class MeasuredFolds(NamedTuple):
    """The measurements of folds while slices come to small partitions in turn."""

    fold_us: float
    """Processor time of folds for each committed slice."""
    patient_fold_us: float
    """The same if a fold waits until it pays."""
    tail_mib: float
    """Memory beyond that before the shard was opened, right before such a fold."""


def main(quick: bool) -> Iterator[Row]:
    """Measure the metadata of a shard with millions of slices."""
    slice_count = 200_000 if quick else 5_000_000
    directory = Path(tempfile.mkdtemp(prefix="stratalog-metadata-"))
    try:
        build(directory, slice_count)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.apply(measure, (str(directory),))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            planned = pool.apply(measure_plan, (str(directory),))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            folds = pool.apply(measure_folds, (str(directory),))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.apply(pass_a_day, (str(directory),))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            day = pool.apply(measure_day, (str(directory),))
    finally:
        shutil.rmtree(directory)
    name = f"{slice_count:,} slices"
    yield promised_cost("a slice at rest", "bytes", found.slice_bytes, 48)
    yield promised_cost(f"open {name}", "s", found.open_s, 5)
    yield promised_cost(f"memory of it, once {name} are open", "MiB", found.open_mib, 256)
    yield promised_cost("the same, after 2,000 random reads", "MiB", found.read_mib, 256)
    yield promised_cost("the same, after a fold of 5,000 partitions", "MiB", found.fold_mib, 256)
    yield promised_cost("find a random slice", "ms", found.read_ms, 20)
    yield promised_cost(f"commit to {COMMIT_PARTITIONS:,} partitions, CPU", "ms", found.commit_cpu_ms, 50)
    yield promised_cost("the same, the slowest of five", "ms", found.slowest_commit_cpu_ms, 50)

    yield promised_cost("plan of a compaction of all, beside the state", "MiB", planned.peak_mib, 256)
    yield promised_cost("the same, for each million slices", "s", planned.plan_s * 1e6 / slice_count, 20)

    files = f"{day.file_count:,} dropped files"
    yield promised_cost(f"open it beside {files}", "s", day.open_s, 5)
    yield promised_cost("memory of it then", "MiB", day.open_mib, 256)
    yield promised_cost("memory once the orphan sweep has their names", "MiB", day.names_mib, 256)
    yield promised_cost("its processor time for the names, once", "s", day.names_s, 60)
    yield promised_cost("root of the checkpoint then", "MiB", day.root_mib, 4)

    def beside_all_pages(work: str, ours_s: float, target: float) -> Row:
        return Row(work=work, unit="s", ours=ours_s, reference=found.decode_s, target=target, is_cost=True)

    yield beside_all_pages("fold of 100 partitions", found.fold_small_s, 0.5 if quick else 2.0)
    yield beside_all_pages("fold of 10,000 partitions", found.fold_large_s, 0.05)
    yield Row(
        work="folds, for each slice of 10,000 partitions",
        unit="us",
        ours=folds.patient_fold_us,
        reference=folds.fold_us,
        target=1.0 if quick else 2.0,
        is_cost=True,
    )
    yield promised_cost("memory right before such a fold", "MiB", folds.tail_mib, 256)
    yield beside_all_pages(f"fold of 100 partitions beside {files}", day.fold_s, 0.5 if quick else 2.0)


def build(directory: Path, slice_count: int) -> None:
    """Write a store with the checkpoint of so many slices."""
    store, ids, layout = opened(directory), SystemIdGenerator(), StoreLayout(0)
    identity = StoreIdentity.open_or_create(store, ids)
    per_partition = slice_count // PARTITION_COUNT
    seq = slice_count // SLICES_OF_OBJECT
    groups = PARTITION_COUNT // SLICES_OF_OBJECT
    names = [format_object_name(number, ids.uuid()) for number in range(seq)]
    folder = CheckpointFolder(store, layout, PageLoader())
    shape = Shape(seq)
    pages = tuple(write_slices(directory / layout.prefix, names, per_partition, shape))
    state = ShardState(
        seq=seq,
        uuid=ids.uuid(),
        time_ms=1,
        epoch=1,
        claims=(ShardClaim(epoch=1, owner="bench", endpoint="", uuid=ids.uuid(), seq=1, time_ms=1),),
        partitions=PersistentMap(
            (TopicIdPartition(TOPIC_ID, number), row) for number, row in enumerate(shape.rows)
        ),
        objects=PersistentMap(
            (name, LiveObject(ref_of(name), 1 + number // groups, SLICES_OF_OBJECT, end - DATA_POSITION))
            for number, (name, end) in enumerate(zip(names, shape.object_ends, strict=True))
        ),
        changed=(
            ChangedRows(1, PARTITIONS, [TopicIdPartition(TOPIC_ID, n) for n in range(PARTITION_COUNT)]),
            ChangedRows(1, OBJECTS, names),
        ),
    )
    base = CheckpointRoot(
        ref=DocumentRef(format_checkpoint_name(1, ids.uuid()), 1, 1),
        fields=JsonFields({}, "base"),
        pages=pages,
        times=(),
    )
    changes = shard_to_changes(state)
    tables = {**changes.tables, SLICES: TableChange(SLICE_COLUMNS, SLICE_KEY_SIZE, (), (), SLICE_ENCODINGS)}
    writer = CheckpointWriter(folder, ids, identity.store_id, CommitSettings().page_rows)
    root = writer.write(seq, CheckpointChanges(changes.fields, tables), base)
    commit = Commit.build(
        seq + 1, ids.uuid(), 1, Writer("bench", "bench"), None, [Fold(root.ref, None, None)]
    )
    head = Head(
        store_id=identity.store_id,
        shard=0,
        uuid=commit.uuid,
        seq=commit.seq,
        epoch=1,
        checkpoint=root.ref,
        commits=(commit,),
    )
    store.put(layout.head_key, head.encode())


class Shape:
    """The sizes of the slices in the checkpoint, as chance makes them. Not thread-safe: one build uses it."""

    def __init__(self, object_count: int) -> None:
        self.rows: list[PartitionRow] = []
        """Those of the partitions."""
        self.object_ends = [DATA_POSITION] * object_count
        """Where the data of each object ends."""


def write_slices(prefix: Path, names: Sequence[str], per_partition: int, shape: Shape) -> Iterator[PageRef]:
    """Write the slice pages as plain files, without waiting for the disk."""
    random = Random(1)
    (prefix / "pages").mkdir(parents=True)
    groups = PARTITION_COUNT // SLICES_OF_OBJECT
    page_rows = CommitSettings().page_rows
    rows: list[tuple[object, ...]] = []
    for partition in range(PARTITION_COUNT):
        base, time_ms, tiered_bytes = 0, 1_700_000_000_000, 0
        first_newest_ms = first_oldest_ms = -1
        for number in range(per_partition):
            in_object = number * groups + partition // SLICES_OF_OBJECT
            records = random.randrange(RECORDS // 2, RECORDS * 3 // 2)
            end, size_bytes = base + records, records * 130 + random.randrange(5_000)
            oldest_ms, newest_ms = (
                time_ms + random.randrange(2_000),
                time_ms + 55_000 + random.randrange(5_000),
            )
            index_position = names_index_position(in_object, partition)
            rows.append(
                (
                    *(str(TOPIC_ID), partition, base, end, names[in_object], "events", base),
                    *(shape.object_ends[in_object], size_bytes, random.getrandbits(32), records),
                    *(oldest_ms, newest_ms, end - 1, 16, end, False, (), 0, 0, None, ((1, base),)),
                    (end - random.randrange(1, 30), 1, random.getrandbits(32)),
                    *(None, (index_position, INDEX_BYTES, random.getrandbits(32)), None),
                )
            )
            shape.object_ends[in_object] += size_bytes
            tiered_bytes += size_bytes
            if number == 0:
                first_newest_ms, first_oldest_ms = newest_ms, oldest_ms
            base, time_ms = end, time_ms + 60_000
            if len(rows) == page_rows:
                yield write_page(prefix, rows)
                rows = []
        shape.rows.append(
            PartitionRow(
                tiered_end_offset=base,
                stable_end_offset=base,
                end_mark=LastBatch(base - 10, 1, 7),
                slice_count=per_partition,
                tiered_bytes=tiered_bytes,
                oldest_newest_ms=first_newest_ms,
                oldest_ms=first_oldest_ms,
                newest_ms=time_ms,
                pieces=(StoredSlices(0, base, per_partition),),
            )
        )
    if rows:
        yield write_page(prefix, rows)


def names_index_position(in_object: int, partition: int) -> int:
    """Where the index of a slice begins: those of an object lie behind each other."""
    return OBJECT_BYTES + in_object % 1_000 * 4_096 + partition % SLICES_OF_OBJECT * INDEX_BYTES


def write_page(prefix: Path, rows: Sequence[tuple[object, ...]]) -> PageRef:
    """Write a page of slices as a fold writes it."""
    page = Page(SLICE_COLUMNS, list(zip(*rows, strict=True)), len(rows), SLICE_KEY_SIZE, "page")
    text = page.text(SLICES, COLUMNS_FORMAT, SLICE_ENCODINGS)
    data = encode_text(text)
    name = format_checkpoint_name(1, SystemIdGenerator().uuid())
    (prefix / "pages" / name).write_bytes(data)
    ref = DocumentRef.of(name, data)
    return PageRef(
        kind=SLICES,
        name=name,
        first_key=page.key(0),
        last_key=page.key(-1),
        row_count=len(rows),
        size_bytes=ref.size_bytes,
        crc=ref.crc,
        digest=digest_of(text),
    )


def ref_of(name: str) -> ObjectRef:
    size_bytes = 4096 + OBJECT_BYTES
    return ObjectRef(
        name=name,
        size_bytes=size_bytes + 1000,
        data_position=4096,
        directory_position=size_bytes,
        directory_bytes=1000,
        key_streams_end=size_bytes + 1000,
        directory_crc=7,
    )


def opened(directory: Path) -> LocalObjectStore:
    return LocalObjectStore(PosixFileSystem(), SystemClock(), SystemIdGenerator(), str(directory))


def actor_in(store: LocalObjectStore) -> StoreActor:
    return StoreActor(
        store=store,
        clock=SystemClock(),
        random_source=Random(1),
        ids=SystemIdGenerator(),
        identity=StoreIdentity.open(store),
        writer=Writer("bench", "bench"),
    )


def measure(directory: str) -> Measured:
    """Everything that is measured, in a process of its own."""
    store = opened(Path(directory))
    actor = actor_in(store)
    before = resident_mib()
    logs: list[MetadataLog] = []
    open_s = cpu_seconds(lambda: logs.append(MetadataLog.open(actor, 0, no_directory)))
    [log] = logs
    open_mib = resident_mib() - before
    exempt_loaded_objects()  # as at the start of a server
    read_ms = read_slices(log, 2_000) * 1_000
    read_mib = resident_mib() - before
    epoch = log.claim("bench", actor.ids.uuid())
    commits_ms = sorted(add(log, epoch, range(COMMIT_PARTITIONS)) * 1_000 for _ in range(5))
    log.fold()
    fold_mib = resident_mib() - before
    folds: list[float] = []
    for count in (100, 10_000):
        step = PARTITION_COUNT // count
        add(log, epoch, range(0, PARTITION_COUNT, step))
        folds.append(cpu_seconds(log.fold))
    log.state().check_rows()
    return Measured(
        slice_bytes=slice_bytes(store, log),
        open_s=open_s,
        open_mib=open_mib,
        read_mib=read_mib,
        read_ms=read_ms,
        commit_cpu_ms=commits_ms[2],
        slowest_commit_cpu_ms=commits_ms[-1],
        fold_mib=fold_mib,
        fold_small_s=folds[0],
        fold_large_s=folds[1],
        decode_s=cpu_seconds(decoding(Path(directory) / "shards" / "0000" / "pages")),
    )


def measure_plan(directory: str) -> MeasuredPlan:
    """A plan of all slices, in a process of its own. Its jobs are counted, not made."""
    actor = actor_in(opened(Path(directory)))
    state = MetadataLog.open(actor, 0, no_directory).state()
    policy = TopicPolicy(
        topic_id=TOPIC_ID,
        name="events",
        hashing=KeyHashing(bytes(16)),
        is_compacted=False,
        delete_retention_ms=0,
        min_compaction_lag_ms=0,
        max_compaction_lag_ms=1 << 62,
        span=SliceSpan(max_ms=24 * 3_600_000),
    )
    before_mib = resident_mib()
    plans: list[CompactionPlan] = []
    plan_s = cpu_seconds(
        lambda: plans.append(
            plan(state, {TOPIC_ID: policy}, 1 << 41, CompactionSettings(spool_directory="/none"))
        )
    )
    assert plans[0].jobs, "there is something to merge"
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return MeasuredPlan(plan_s, peak_mib - before_mib)


def measure_folds(directory: str) -> MeasuredFolds:
    """Slices that come to 10,000 partitions, 500 of them in a commit, in a process of its own. The reference
    folds as soon as the head has outgrown a limit."""
    actor = actor_in(opened(Path(directory)))
    before = resident_mib()
    log = MetadataLog.open(actor, 0, no_directory, settings=CommitSettings(fold_by_itself=False))
    exempt_loaded_objects()
    log.fold()
    epoch = log.claim("bench", actor.ids.uuid())
    limit = CommitSettings().fold_unfolded_rows
    commit_count = 0

    def grow() -> None:
        nonlocal commit_count
        first = commit_count * SLICES_OF_OBJECT % (PARTITION_COUNT // 2)
        add(log, epoch, range(first, first + SLICES_OF_OBJECT))
        commit_count += 1

    while log.state().unfolded_rows <= limit:
        grow()
    fold_us = cpu_seconds(log.fold) * 1e6 / (commit_count * SLICES_OF_OBJECT)
    commit_count, fold_seq = 0, log.state().folded_seq
    patient_s = tail_mib = 0.0
    while log.state().folded_seq == fold_seq:
        grow()
        tail_mib = resident_mib() - before
        patient_s = cpu_seconds(log.fold_if_needed)
    return MeasuredFolds(fold_us, patient_s * 1e6 / (commit_count * SLICES_OF_OBJECT), tail_mib)


def pass_a_day(directory: str) -> None:
    """Put the roots of a day of folds, and a checkpoint behind them, without the files that they replaced."""
    store = opened(Path(directory))
    actor = actor_in(store)
    log = MetadataLog.open(actor, 0, no_directory)
    log.fold()
    before, layout = log.state(), log.layout
    assert before.checkpoint is not None
    folder = CheckpointFolder(store, layout, PageLoader())
    base = folder.root(before.checkpoint)
    page_bytes = sum(page.size_bytes for page in base.pages) // len(base.pages)
    seq = before.seq + FOLDS_OF_DAY
    replacements: list[Replacement] = []
    for fold_seq in range(before.seq + 1, seq):
        files = [
            TrackedFile(FileKind.PAGE, format_checkpoint_name(fold_seq - 1, actor.ids.uuid()), page_bytes)
            for _ in base.pages
        ]
        fields = {**base.fields.values, "seq": fold_seq, "replaced": [file.to_json() for file in files]}
        data = encode_document(fields)
        name = format_checkpoint_name(fold_seq, actor.ids.uuid())
        store.put(layout.checkpoint_key(name), data)
        replacement = Replacement(
            root=DocumentRef.of(name, data),
            base=replacements[-1].name if replacements else base.ref.name,
            seq=fold_seq + 1,
            time_ms=before.time_ms,
            file_count=len(files),
            size_bytes=page_bytes * len(files),
        )
        replacements.append(replacement)
    state = replace(before, seq=seq, replacements=tuple(replacements), changed=())
    writer = CheckpointWriter(folder, actor.ids, actor.identity.store_id, CommitSettings().page_rows)
    root = writer.write(seq, shard_to_changes(state), base)
    commit = Commit.build(
        seq + 1, actor.ids.uuid(), 1, Writer("bench", "bench"), None, [Fold(root.ref, None, None)]
    )
    head = Head(
        store_id=actor.identity.store_id,
        shard=0,
        uuid=commit.uuid,
        seq=commit.seq,
        epoch=state.epoch,
        checkpoint=root.ref,
        commits=(commit,),
    )
    store.put(layout.head_key, head.encode())


def measure_day(directory: str) -> MeasuredDay:
    """A shard after a day of folds, in a process of its own."""
    store = opened(Path(directory))
    actor = actor_in(store)
    before = resident_mib()
    logs: list[MetadataLog] = []
    open_s = cpu_seconds(lambda: logs.append(MetadataLog.open(actor, 0, no_directory)))
    [log] = logs
    open_mib = resident_mib() - before
    ref = log.state().checkpoint
    assert ref is not None
    replacements = log.state().replacements
    lists, names = ReplacedFiles(store, log.layout), list[ReplacedNames]()
    add(log, log.claim("bench", actor.ids.uuid()), range(0, PARTITION_COUNT, PARTITION_COUNT // 100))
    return MeasuredDay(
        file_count=log.waiting_files.file_count,
        open_s=open_s,
        open_mib=open_mib,
        root_mib=ref.size_bytes / MIB,
        fold_s=cpu_seconds(log.fold),
        names_s=cpu_seconds(lambda: names.append(lists.names(replacements))),
        names_mib=resident_mib() - before,
    )


def cpu_seconds(work: Callable[[], object]) -> float:
    """The processor time of `work`."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def decoding(pages: Path) -> Callable[[], None]:
    def decode() -> None:
        for path in pages.iterdir():
            data = path.read_bytes()
            if data.startswith(b"\x28\xb5\x2f\xfd"):
                zstandard.ZstdDecompressor().decompress(data)

    return decode


def slice_bytes(store: LocalObjectStore, log: MetadataLog) -> float:
    """The bytes of a slice in the pages of the newest checkpoint."""
    ref = log.state().checkpoint
    assert ref is not None
    pages = read_root(store, log.layout, ref).pages_of(SLICES)
    return sum(page.size_bytes for page in pages) / sum(page.row_count for page in pages)


def read_slices(log: MetadataLog, count: int) -> float:
    """The mean time to find a slice at a random offset of a random partition."""
    random = Random(2)
    state = log.state()

    def read() -> None:
        for _ in range(count):
            tip = TopicIdPartition(TOPIC_ID, random.randrange(PARTITION_COUNT))
            partition = state.partition(tip)
            offset = random.randrange(partition.tiered_end_offset)
            live = next(partition.slices_from(offset))
            assert live.base_offset <= offset < live.end_offset

    return cpu_seconds(read) / count


def add(log: MetadataLog, epoch: int, partitions: Sequence[int]) -> float:
    """Add a slice to each of these partitions with one commit; returns its processor time."""
    state = log.state()
    entries = [
        entry_of(number, state.partitions[TopicIdPartition(TOPIC_ID, number)].tiered_end_offset)
        for number in partitions
    ]
    ref = ref_of(log.next_object_name())
    begin = time.process_time()
    outcome = log.add([(ref, entries)], epoch)
    assert not outcome.refused
    return time.process_time() - begin


def entry_of(number: int, base_offset: int) -> SliceEntry:
    end_offset = base_offset + RECORDS
    return SliceEntry(
        topic_id=TOPIC_ID,
        topic="events",
        partition=number,
        base_offset=base_offset,
        end_offset=end_offset,
        data_position=4096,
        data_bytes=DATA_BYTES,
        data_crc=7,
        record_count=RECORDS,
        min_timestamp=1_800_000_000_000,
        max_timestamp=1_800_000_000_000,
        max_timestamp_offset=base_offset,
        codec_mask=16,
        stable_end_offset=end_offset,
        leader_epochs=(LeaderEpoch(1, base_offset),),
        last_batch=LastBatch(end_offset - 10, 1, 7),
        index=PartRef(9, 400, 7),
    )


def no_directory(ref: ObjectRef) -> Sequence[SliceEntry]:
    raise AssertionError(f"the directory of {ref.name} is at hand")


def resident_mib() -> float:
    """Memory of this process now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / MIB
    raise AssertionError("the kernel tells the memory of a process")


if __name__ == "__main__":
    sys.exit(run(main))
