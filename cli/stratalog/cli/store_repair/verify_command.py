"""`stratalog verify --compaction`: proves what is compacted from the objects of a store alone."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from stratalog.base.errors import LogStoreError, StoreCorruptError
from stratalog.base.stop_signal import StopSignal
from stratalog.cli.byte_size import ByteSize
from stratalog.cli.error_line import print_error
from stratalog.cli.interrupts import interrupted_by_signals
from stratalog.cli.options import environment_option, json_option, require_unicode
from stratalog.cli.output import Cell, counted, print_json, print_rest, print_table, value_document
from stratalog.cli.store_access.store_actor import store_actor
from stratalog.cli.store_repair.byte_progress import byte_progress

if TYPE_CHECKING:
    from stratalog.compaction.proof.proof_means import ProofMeans
    from stratalog.compaction.proof.proof_report import ProofFinding, ProofReport
    from stratalog.remote.metadata.head.head_log import StoreActor
    from stratalog.remote.metadata.shard.metadata_log import MetadataLog
    from stratalog.remote.objects.spool import Spool

_EXIT_UNFINISHED = 2
_LANES = click.IntRange(1, 64)
_CHUNK_BYTES = 4 << 20
_PART_ENTRIES = 1 << 18
"""Keys that a lane sorts at once, about 20 MiB."""
_SCRATCH_MEMORY_BYTES = 128 << 10


@click.command()
@click.option("--compaction", is_flag=True, help="Prove what is compacted.")
@click.argument("topics", nargs=-1)
@environment_option(
    "--store",
    "store_url",
    callback=require_unicode,
    required=True,
    metavar="URL",
    help="file:///dir or s3://bucket/prefix; credentials, region and endpoint as boto3 finds them.",
)
@click.option("--quick", is_flag=True, help="Trust key streams: read the data of no slice that has one.")
@click.option(
    "--lanes",
    type=_LANES,
    default=4,
    show_default=True,
    help="Partitions, or slices, that are read at the same time.",
)
@json_option
def verify(
    topics: tuple[str, ...], compaction: bool, store_url: str, quick: bool, lanes: int, as_json: bool
) -> None:
    """Prove from the objects alone what is compacted.

    Needs no server, only reads the store, and may go on beside its servers. Without TOPICS all partitions are
    proved that are compacted, or were.

    \b
    repeated-key  a key has two records below compacted_upto
    key-stream    the sorted keys of a slice are not those of its data;
                  a later compaction would lose records by them
    damaged       a slice, or an object that the metadata of a shard need,
                  cannot be read, or fails its checksum
    missing       an object is not in the store

    A shard whose metadata cannot be read is a finding, and the others are proved.

    With --quick only the first kind is searched for, by the key streams of the slices. Without it all data of
    these partitions is read, too, and each key stream is compared with that of its slice.

    Memory is at most 100 MiB for each lane, and 256 KiB for each slice of a partition beyond 128, however
    many keys there are. The directory for temporary files takes 21 bytes for each key of a slice that is
    being read.

    \b
    SLICES    slices with records below COMPACTED UPTO
    HASHED    those of them whose keys were read from their data, for want of a
              key stream that has all of their records
    KEYS      different keys below COMPACTED UPTO
    DIRTY     data that is not compacted yet, of SIZE

    Exit code: 0 all is well, 1 there are findings, 2 the verification could not finish.

    \b
    Examples:
      stratalog verify --compaction --store s3://bucket/prefix
      stratalog verify --compaction orders --quick --store s3://bucket/prefix
    """
    if not compaction:
        raise click.UsageError(
            "say what to prove: --compaction; a server checks the rest with `stratalog tier verify`"
        )
    try:
        report = _proved(store_url, topics, reads_data=not quick, lane_count=lanes)
    except (LogStoreError, OSError) as error:
        print_error(str(error))
        raise click.exceptions.Exit(_EXIT_UNFINISHED) from None
    if as_json:
        print_json(value_document(report))
    else:
        print_proof(report)
    if report.finding_count:
        raise StoreCorruptError(
            "the store does not keep the promises of compaction; let its servers compact no more"
            " (--compaction-interval 0), keep the objects, and report it",
            findings=report.finding_count,
        )


def _proved(store_url: str, topics: tuple[str, ...], *, reads_data: bool, lane_count: int) -> ProofReport:
    """The report on all shards, with the progress on standard error."""
    from stratalog.compaction.proof.compaction_proof import CompactionProof, unread_shard_report
    from stratalog.compaction.proof.proof_report import ProofReport
    from stratalog.remote.metadata.catalog.catalog import Catalog
    from stratalog.remote.restore.metadata_scrub import SHARD_DAMAGE
    from stratalog.server.worker_pools import running_together

    with (
        interrupted_by_signals(),
        store_actor(store_url, "verify") as actor,
        _scratch(actor) as make_scratch,
        running_together(lane_count) as run_all,
        _stopping() as stop,
    ):
        catalog = Catalog.open(actor, read_only=True)
        proofs: list[CompactionProof] = []
        report = ProofReport()
        for shard in range(actor.identity.shard_count):
            try:
                metadata = _opened(actor, shard)
            except SHARD_DAMAGE as damage:
                report = report.plus(unread_shard_report(shard, damage))
                continue
            means = _means(actor, metadata, make_scratch, stop)
            proofs.append(CompactionProof(means, metadata, catalog, run_all, lane_count))
        chosen = [proof.choose(topics) for proof in proofs]
        total_bytes = sum(map(CompactionProof.size_bytes, proofs, chosen))
        with byte_progress(actor.clock, total_bytes, "proves compaction") as show:
            for proof, partitions in zip(proofs, chosen, strict=True):

                def show_all(found: ProofReport, before: ProofReport = report) -> None:
                    both = before.plus(found)
                    show(f"proved {counted(len(both.partitions), 'partition')}", both.done_bytes)

                report = report.plus(proof.run(partitions, show_all, reads_data=reads_data))
        return report._replace(partitions=tuple(sorted(report.partitions)))


def _opened(actor: StoreActor, shard: int) -> MetadataLog:
    from stratalog.remote.metadata.shard.metadata_log import MetadataLog
    from stratalog.remote.objects.object_directory import read_directory
    from stratalog.remote.store_layout import StoreLayout

    load = partial(read_directory, actor.store, StoreLayout(shard))
    return MetadataLog.open(actor, shard, load, read_only=True)


def _means(
    actor: StoreActor, metadata: MetadataLog, make_scratch: Callable[[], Spool], stop: StopSignal
) -> ProofMeans:
    from stratalog.compaction.proof.proof_means import ProofMeans
    from stratalog.compaction.proof.slice_reads import SliceReads
    from stratalog.objectstore.stoppable import StoppableObjectStore

    store = StoppableObjectStore(actor.store, stop)
    reads = SliceReads(store, actor.clock, metadata.layout, _CHUNK_BYTES)
    return ProofMeans(reads, make_scratch, _PART_ENTRIES)


@contextmanager
def _stopping() -> Generator[StopSignal]:
    """A signal that is set when the block fails or is interrupted, so that its threads end soon."""
    stop = StopSignal()
    try:
        yield stop
    except BaseException:
        stop.set()
        raise


@contextmanager
def _scratch(actor: StoreActor) -> Generator[Callable[[], Spool]]:
    """Makes scratch for any thread, in memory or in a directory that goes at the end."""
    from stratalog.base.posix_filesystem import PosixFileSystem
    from stratalog.remote.objects.spool import SCRATCH_SUFFIX, Spool

    filesystem = PosixFileSystem()
    with TemporaryDirectory(prefix="stratalog-verify-") as directory:

        def make() -> Spool:
            path = f"{directory}/{actor.ids.uuid()}{SCRATCH_SUFFIX}"
            return Spool(filesystem, path, _SCRATCH_MEMORY_BYTES)

        yield make


def print_proof(report: ProofReport) -> None:
    """Print the partitions that were proved, and the findings."""
    if report.partitions:
        header = "TOPIC,PARTITION,LOG START,COMPACTED UPTO,TIERED END,SLICES,HASHED,KEYS,SIZE,DIRTY"
        rows: list[tuple[Cell, ...]] = [
            (one.topic, one.partition, one.log_start_offset, one.compacted_upto, one.tiered_end_offset,
             one.slice_count, one.hashed_slice_count, one.key_count, str(ByteSize(one.size_bytes)),
             str(ByteSize(one.dirty_bytes)))
            for one in report.partitions
        ]  # fmt: skip
        print_table(header.split(","), rows)
    click.echo(
        f"proved {counted(len(report.partitions), 'partition')} and"
        f" {counted(report.key_stream_count, 'key stream')} of {counted(report.record_count, 'record')}:"
        f" {counted(report.finding_count, 'finding')}"
    )
    for finding in report.findings:
        click.echo(f"{finding.kind}: {_text(finding)}")
    print_rest(len(report.findings), report.finding_count, "finding")


def _text(finding: ProofFinding) -> str:
    if not finding.topic:
        return f"{finding.object_name}: {finding.reason}"
    place = f"{finding.topic}-{finding.partition}, offset {finding.offset}"
    if finding.object_name:
        place += f" in object {finding.object_name}"
    if finding.later_object_name:
        return f"{place}, and offset {finding.later_offset} in object {finding.later_object_name}"
    return f"{place}: {finding.reason}"
