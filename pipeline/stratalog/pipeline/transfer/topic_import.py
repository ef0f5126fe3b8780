"""Imports a topic from an export: tasks make objects of its files, the driver publishes them as a new topic.

Records keep their offsets, holes included, and their times, keys, values and headers. They do not keep
producers and transactions: a record of an export is a record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Self, cast
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.base.errors import LogStoreError, StoreCorruptError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.jobs.cluster import Cluster
from stratalog.pipeline.jobs.task_place import OpenPlace, TaskMeans
from stratalog.pipeline.transfer.export_manifest import ExportedTopic, read_manifest
from stratalog.pipeline.transfer.new_topic import NewTopic, ObjectPlace, WrittenObject
from stratalog.pipeline.transfer.parquet_file import read_file
from stratalog.pipeline.transfer.row_batches import BatchStamp, encode_rows
from stratalog.record.codecs.compression import Codec
from stratalog.remote.objects.object_format import ObjectHeader, ObjectKind
from stratalog.remote.objects.object_ref import format_object_name
from stratalog.remote.objects.object_writer import ObjectWriter, ObjectWriterSettings
from stratalog.remote.objects.repeated_put import PutAttempts, put_object
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.objects.slice_entry import LeaderEpoch
from stratalog.remote.store_layout import StoreLayout

AcceptConfig = Callable[[Mapping[str, str]], Codec]
"""Checks the keys of a new topic, and returns the codec that its log stores batches in. Raises
InvalidConfigError."""

UNLIMITED = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The keys of a new topic that would delete old records at once, and their values unless the job is given
others."""
_pc: Any = pc
"""Its stubs have open type arguments."""
OBJECT_BYTES = 128 << 20
"""About the most data of an object, and the data of the files that one task takes. The files say how large
they were in another log, with another compression."""


class SourceFile(NamedTuple):
    """A file of one partition, and the offset of its first possible record in the new topic."""

    key: str
    record_count: int
    data_bytes: int
    """About its bytes in a log."""
    first_offset: int
    end_offset: int
    """The records have offsets between, in the new topic."""
    shift: int = 0
    """It is added to the offsets in the file."""


class SourcePartition(NamedTuple):
    """The files of a partition, and its bounds."""

    partition: int
    first_offset: int
    end_offset: int
    files: tuple[SourceFile, ...]
    """By offset."""


class TopicPlan(NamedTuple):
    """A topic to create."""

    name: str
    partition_count: int
    config: Mapping[str, str]
    """Its own keys; without those of `UNLIMITED` nothing is deleted by time or size."""
    sources: Sequence[SourcePartition]


class ImportedPartition(NamedTuple):
    """The result of a partition."""

    partition: int
    first_offset: int
    end_offset: int
    record_count: int


class ImportReport(NamedTuple):
    """The result of an import."""

    topic: str
    topic_id: UUID
    config: Mapping[str, str]
    object_count: int
    partitions: tuple[ImportedPartition, ...]
    left_out: Mapping[str, str] = MappingProxyType({})
    """Keys of the exported topic that the new one does not have."""


class _Topic(NamedTuple):
    """The new topic, as the tasks must know it. Pickled to them."""

    name: str
    topic_id: UUID
    store_id: UUID
    codec: Codec


class _Slice(NamedTuple):
    """A slice to write."""

    partition: int
    base_offset: int
    end_offset: int
    files: tuple[SourceFile, ...]


class _Work(NamedTuple):
    """The slices of an object, or of several if they become large: the work of a task. Pickled to it."""

    place: ObjectPlace
    slices: tuple[_Slice, ...]
    """By partition, one of each."""


def import_topic(
    cluster: Cluster,
    open_source: OpenPlace,
    open_store: OpenPlace,
    *,
    source_topic: str,
    name: str,
    config: Mapping[str, str],
    accept: AcceptConfig,
) -> ImportReport:
    """Create the topic `name` with the records of a topic of an export; an empty `source_topic` is the only
    one. `config` overrides the keys of the exported topic, but `retention.ms`, which is unlimited unless it
    is given here: old records would be deleted at once.

    Raises InvalidRequestError, UnknownTopicOrPartitionError, TopicAlreadyExistsError, InvalidConfigError,
    StoreCorruptError for a damaged export, StoreError, and LogStoreError if the cluster gives up. The topic
    is there with all records, or not at all.
    """
    with open_source() as source:
        topic = read_manifest(source.store).topic(source_topic)
    kept = {key: value for key, value in topic.config.items() if key not in UNLIMITED}
    plan = TopicPlan(name, topic.partition_count, {**kept, **config}, _sources_of(topic))
    report = create_topic(cluster, open_source, open_store, plan, accept)
    left_out = {key: topic.config[key] for key in topic.config.keys() - kept.keys() - config.keys()}
    return report._replace(left_out=left_out)


def config_of(own: Mapping[str, str]) -> dict[str, str]:
    """The configuration of a new topic with these keys of its own: old records are not deleted at once."""
    return {**UNLIMITED, **own}


def create_topic(
    cluster: Cluster, open_source: OpenPlace, open_store: OpenPlace, plan: TopicPlan, accept: AcceptConfig
) -> ImportReport:
    """Create a topic with the records of files. Raises as `import_topic`."""
    sources = plan.sources
    config = config_of(plan.config)
    codec = accept(config)
    with open_store() as means:
        created = NewTopic(means, plan.name, plan.partition_count, config)
        stamp = _Topic(plan.name, created.topic_id, created.store_id, codec)
        tasks = list(_plan(created, sources))
        objects: list[WrittenObject] = []
        if tasks:
            for done in cluster.each(partial(_write, open_source, open_store, stamp), tasks):
                if isinstance(done, LogStoreError):
                    raise done
                objects += done
        # A partition without a record begins at its end.
        starts = {one.partition: one.first_offset if one.files else one.end_offset for one in sources}
        created.publish(starts, objects)
    return ImportReport(
        topic=plan.name,
        topic_id=created.topic_id,
        config=config,
        object_count=len(objects),
        partitions=tuple(
            ImportedPartition(
                one.partition,
                starts[one.partition],
                one.end_offset,
                sum(file.record_count for file in one.files),
            )
            for one in sources
        ),
    )


def _sources_of(topic: ExportedTopic) -> list[SourcePartition]:
    return [
        SourcePartition(
            one.partition,
            one.first_offset,
            one.end_offset,
            tuple(
                SourceFile(file.key, file.record_count, file.data_bytes, file.first_offset, file.end_offset)
                for file in one.files
                if file.record_count
            ),
        )
        for one in topic.partitions
    ]


def _plan(created: NewTopic, sources: Sequence[SourcePartition]) -> Iterator[_Work]:
    """The work of each task, that of a shard in the order of its slices."""
    by_shard: dict[ObjectPlace, list[SourcePartition]] = defaultdict(list)
    for one in sorted(sources):
        by_shard[created.place(one.partition)].append(one)
    for place, partitions in by_shard.items():
        slices: list[_Slice] = []
        size_bytes = 0
        for source in partitions:
            for number, file in enumerate(source.files):
                if size_bytes + file.data_bytes > OBJECT_BYTES and slices:
                    yield _Work(place, tuple(slices))
                    slices, size_bytes = [], 0
                is_last = number + 1 == len(source.files)
                base_offset = file.first_offset if number else source.first_offset
                # Slices tile, also where files do not.
                end_offset = source.end_offset if is_last else source.files[number + 1].first_offset
                if slices and slices[-1].partition == source.partition:
                    before = slices.pop()
                    slices.append(before._replace(end_offset=end_offset, files=(*before.files, file)))
                else:
                    slices.append(_Slice(source.partition, base_offset, end_offset, (file,)))
                size_bytes += file.data_bytes
        if slices:
            yield _Work(place, tuple(slices))


def _write(
    open_source: OpenPlace, open_store: OpenPlace, topic: _Topic, work: _Work
) -> list[WrittenObject] | LogStoreError:
    """Write objects, on the machine of the task. No commit names them, so a task that fails, or runs twice,
    leaves nothing visible."""
    try:
        with open_source() as source, open_store() as means, _Objects(means, topic, work.place) as objects:
            stamp = BatchStamp(work.place.epoch, topic.codec)
            for one in work.slices:
                batches = (batch for file in one.files for batch in _batches(source.store, file, stamp))
                objects.add(one, batches)
            return objects.store_all()
    except LogStoreError as error:
        return error


class _Objects:
    """The objects of a task: one after the other, each stored when it is full. Not thread-safe."""

    def __init__(self, means: TaskMeans, topic: _Topic, place: ObjectPlace) -> None:
        self._means = means
        self._topic = topic
        self._place = place
        self._writer: ObjectWriter | None = None
        self._stored: list[WrittenObject] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, one: _Slice, batches: Iterable[bytes]) -> None:
        """Write a slice, or several that follow each other in as many objects."""
        base_offset = one.base_offset
        writer = self._begun(one.partition, base_offset)
        for batch in batches:
            if writer.data_bytes >= OBJECT_BYTES:
                end_offset = writer.next_offset
                self._end(writer, base_offset, end_offset)
                base_offset = end_offset
                writer = self._begun(one.partition, base_offset)
            writer.append(batch)
        self._end(writer, base_offset, one.end_offset)

    def store_all(self) -> list[WrittenObject]:
        """Store the last object too; all of them, in order. Raises StoreError."""
        if self._writer is not None:
            self._store(self._writer)
        return self._stored

    def _begun(self, partition: int, base_offset: int) -> ObjectWriter:
        """The writer of an object with room, which has begun a slice."""
        if self._writer is not None and self._writer.data_bytes >= OBJECT_BYTES:
            self._store(self._writer)
        if self._writer is None:
            header = ObjectHeader(
                store_id=self._topic.store_id,
                shard=self._place.shard,
                epoch=self._place.epoch,
                kind=ObjectKind.UPLOAD,
                name=format_object_name(self._place.birth, self._means.ids.uuid()),
            )
            settings = ObjectWriterSettings(spool_directory=self._means.scratch_directory)
            self._writer = ObjectWriter(self._means.filesystem, header, settings)
        self._writer.begin_slice(self._topic.topic_id, self._topic.name, partition, base_offset=base_offset)
        return self._writer

    def _end(self, writer: ObjectWriter, base_offset: int, end_offset: int) -> None:
        epochs = (LeaderEpoch(self._place.epoch, base_offset),)
        writer.end_slice(SliceEnd(end_offset, leader_epochs=epochs))

    def _store(self, writer: ObjectWriter) -> None:
        finished = writer.finish()
        means, shard = self._means, self._place.shard
        put_object(means.clock, means.store, StoreLayout(shard), finished, PutAttempts())
        self._stored.append(WrittenObject(shard, finished.ref, finished.entries))
        writer.close()
        self._writer = None


def _batches(source: ObjectStore, file: SourceFile, stamp: BatchStamp) -> Iterator[bytes]:
    """The records of a file as batches. Raises StoreCorruptError if it has other ones than it should."""
    record_count, next_offset = 0, file.first_offset
    for rows in read_file(source.get(file.key).data, file.key):
        next_offset = _next_offset(rows, file, next_offset)
        record_count += rows.num_rows
        yield from encode_rows(rows, file.shift, stamp)
    if record_count != file.record_count:
        raise StoreCorruptError(
            "a file has another number of records than the manifest says; restore it from a copy, or export"
            " again",
            key=file.key,
            record_count=record_count,
            manifest_record_count=file.record_count,
        )


def _next_offset(rows: pa.RecordBatch, file: SourceFile, next_offset: int) -> int:
    """The least offset behind the rows, which ascend from `next_offset` on."""
    offsets = cast("Any", rows.column("offset"))
    first: int = offsets[0].as_py() + file.shift
    last: int = offsets[-1].as_py() + file.shift
    ascends = len(offsets) == 1 or bool(_pc.all(_pc.greater(offsets[1:], offsets[:-1])).as_py())
    if not (ascends and next_offset <= first <= last < file.end_offset):
        raise StoreCorruptError(
            "the offsets of a file do not ascend within its range; restore it from a copy, or export again",
            key=file.key,
            first_offset=first,
            last_offset=last,
            expected_first_offset=next_offset,
            expected_end_offset=file.end_offset,
        )
    return last + 1
