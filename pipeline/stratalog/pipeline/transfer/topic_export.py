"""Exports topics to Parquet: tasks scan slices and write files, the driver writes the manifest.

The driver sees one moment of the store, as a query does, and divides each partition into files. Rows do not
pass through the JVM: a task decodes slices into Arrow, and writes its files itself. A file appears whole,
under a name that belongs to its contents, so a task that fails or runs twice leaves nothing else, and an
export that is repeated uses the files that are there. Files of an earlier try that do not fit are deleted
before the manifest is written. The manifest is written only if there is none, so of two exports to one place
at once one is whole, and the other fails.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import InvalidRequestError, LogStoreError
from stratalog.objectstore.probe import require_conditional_writes
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.jobs.cluster import Cluster
from stratalog.pipeline.jobs.task_place import OpenPlace
from stratalog.pipeline.source.partition_range import PartitionRange, all_ranges_of
from stratalog.pipeline.source.read_options import ReadOptions
from stratalog.pipeline.source.scan_plan import group_spans, plan_tasks
from stratalog.pipeline.source.slice_scan import scan
from stratalog.pipeline.source.slice_span import SliceSpan
from stratalog.pipeline.source.store_view import StoreReader, reader_of
from stratalog.pipeline.transfer.export_manifest import (
    VERSION,
    ExportedFile,
    ExportedPartition,
    ExportedTopic,
    ExportManifest,
    file_key,
    has_manifest,
    is_file_key,
    whole_export,
    write_manifest,
)
from stratalog.pipeline.transfer.parquet_file import SCANNED_COLUMNS, WrittenFile, read_file, write_file
from stratalog.remote.metadata.catalog.topic_entry import TopicEntry

_DIGEST_CHARACTERS = 16
PROBES = "_probes/"
"""The prefix of what a target is tried with. Readers of Parquet skip names with an underscore."""


class _PlannedFile(NamedTuple):
    """A file, and the parts of slices that it is made from. Pickled to the machines."""

    topic: str
    partition: int
    spans: tuple[SliceSpan, ...]
    """By offset."""
    isolation: str

    @property
    def first_offset(self) -> int:
        return self.spans[0].first_offset

    @property
    def end_offset(self) -> int:
        return self.spans[-1].end_offset

    @property
    def data_bytes(self) -> int:
        return sum(span.size_bytes for span in self.spans)

    @property
    def key(self) -> str:
        """Its name, which belongs to its contents."""
        places = [
            (span.shard, span.object_key, span.position, span.size_bytes, span.first_offset, span.end_offset)
            for span in self.spans
        ]
        digest = hashlib.sha256(repr((VERSION, self.isolation, places)).encode()).hexdigest()
        return file_key(
            self.topic, self.partition, self.first_offset, self.end_offset, digest[:_DIGEST_CHARACTERS]
        )


class ExportReport(NamedTuple):
    """The result of an export."""

    manifest: ExportManifest
    reused_count: int
    """Files that an earlier try had written."""
    deleted_count: int
    """Files of earlier tries that did not fit."""


def export_topics(
    cluster: Cluster, open_store: OpenPlace, open_target: OpenPlace, options: ReadOptions
) -> ExportReport:
    """Write the records that the options select to the store of `open_target`, which is no store of topics.

    Raises InvalidRequestError if there is a whole export, or another one is written there at once,
    UnknownTopicOrPartitionError, OffsetOutOfRangeError, StoreNotUsableError for a target that ignores
    preconditions, StoreError, CorruptRecordError, and LogStoreError if
    the cluster gives up.
    """
    with open_store() as means, open_target() as target:
        if has_manifest(target.store):
            raise whole_export(target.store)
        with reader_of(means.store) as reader:
            reader.lease_as_asked(options)
            views = reader.views(options)
            ranges = all_ranges_of(reader, views.partitions, options)
            files = _plan_files(reader, ranges, options)
            # Of the catalog at that moment: a topic of a snapshot may be deleted by now, or altered.
            entries = {entry.topic_id: entry for entry in views.topics}
            store_id = str(reader.store_id)
        if files:
            # A target that takes no files is found out before the tasks, which may take hours.
            require_conditional_writes(target.store, target.ids, PROBES)
        present = {info.key for info in target.store.list("") if is_file_key(info.key)}
        written = _write_all(cluster, open_store, open_target, files, options.max_partition_bytes)
        kept = {file.key for file in written.values()}
        _settle_files(target.store, present - kept, kept)
        manifest = ExportManifest(
            store_id=store_id,
            isolation=options.isolation.value,
            time_ms=means.clock.now_ms(),
            topics=tuple(_topics(entries, ranges, files, written)),
        )
        write_manifest(target.store, manifest)
    return ExportReport(manifest, len(present & kept), len(present - kept))


def _settle_files(target: ObjectStore, left_over: Set[str], kept: Set[str]) -> None:
    """Delete the files of earlier tries, unless one of these was still running and has ended meanwhile.
    Raises InvalidRequestError if one has, or has deleted files of this one."""
    if has_manifest(target):
        raise whole_export(target)
    target.delete_many(sorted(left_over))
    missing = kept - {info.key for info in target.list("")}
    if missing:
        raise InvalidRequestError(
            "another export to this place has deleted files of this one; run one at a time",
            url=target.url,
            key=min(missing),
        )


def _plan_files(
    reader: StoreReader, ranges: Sequence[PartitionRange], options: ReadOptions
) -> list[_PlannedFile]:
    """The files, by topic, partition and offset."""
    by_partition: dict[tuple[str, int], list[SliceSpan]] = defaultdict(list)
    for spans in plan_tasks(reader, ranges, options):
        for span in spans:
            by_partition[span.topic, span.partition].append(span)
    files: list[_PlannedFile] = []
    for (topic, number), spans in sorted(by_partition.items()):
        spans.sort(key=lambda span: span.first_offset)
        groups = group_spans(spans, options.max_partition_bytes)
        files += [_PlannedFile(topic, number, tuple(group), options.isolation.value) for group in groups]
    return files


def _write_all(
    cluster: Cluster,
    open_store: OpenPlace,
    open_target: OpenPlace,
    files: Sequence[_PlannedFile],
    max_bytes: int,
) -> dict[str, ExportedFile]:
    """Write all files, small ones of many partitions with one task."""
    tasks: list[tuple[_PlannedFile, ...]] = []
    size_bytes = max_bytes
    for file in files:
        if size_bytes + file.data_bytes > max_bytes:
            tasks.append(())
            size_bytes = 0
        tasks[-1] += (file,)
        size_bytes += file.data_bytes
    found: dict[str, ExportedFile] = {}
    if tasks:
        for done in cluster.each(partial(_write, open_store, open_target), tasks):
            if isinstance(done, LogStoreError):
                raise done
            found |= {file.key: file for file in done}
    return found


def _write(
    open_store: OpenPlace, open_target: OpenPlace, files: tuple[_PlannedFile, ...]
) -> list[ExportedFile] | LogStoreError:
    """Write files, on the machine of the task."""
    try:
        with open_store() as means, open_target() as target:
            return [_written(means.store, target.store, file) for file in files]
    except LogStoreError as error:
        return error


def _written(store: ObjectStore, target: ObjectStore, file: _PlannedFile) -> ExportedFile:
    """The file, which is there already, or is written now."""
    key = file.key
    if any(info.key == key for info in target.list(key)):
        data = target.get(key).data
        record_count = sum(rows.num_rows for rows in read_file(data, key))
        size_bytes = len(data)
    else:
        made: WrittenFile = write_file(scan(store, file.spans, SCANNED_COLUMNS))
        target.put_parts(key, [memoryview(made.data)])
        record_count, size_bytes = made.record_count, made.data.size
    return ExportedFile(
        key=key,
        first_offset=file.first_offset,
        end_offset=file.end_offset,
        record_count=record_count,
        size_bytes=size_bytes,
        data_bytes=file.data_bytes,
    )


def _topics(
    entries: Mapping[UUID, TopicEntry],
    ranges: Iterable[PartitionRange],
    files: Iterable[_PlannedFile],
    written: Mapping[str, ExportedFile],
) -> Iterator[ExportedTopic]:
    """The topics of the manifest. `ranges` are sorted by topic and partition."""
    found: dict[tuple[str, int], list[ExportedFile]] = defaultdict(list)
    for file in files:
        found[file.topic, file.partition].append(written[file.key])
    partitions: dict[str, list[ExportedPartition]] = defaultdict(list)
    ids: dict[str, UUID] = {}
    for one in ranges:
        topic, number = one.view.topic, one.view.tip.partition
        ids[topic] = one.view.tip.topic_id
        partitions[topic].append(
            ExportedPartition(
                number,
                min(one.first_offset, one.end_offset),
                one.end_offset,
                tuple(found[topic, number]),
            )
        )
    for topic, each in sorted(partitions.items()):
        entry = entries[ids[topic]]
        yield ExportedTopic(
            name=topic,
            topic_id=str(ids[topic]),
            partition_count=entry.partition_count,
            config=dict(entry.config),
            partitions=tuple(each),
        )
