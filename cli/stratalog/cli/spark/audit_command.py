"""`stratalog spark audit`: verifies a store on Spark's executors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from stratalog.base.errors import LogStoreError, StoreCorruptError
from stratalog.cli.byte_size import ByteSize
from stratalog.cli.error_line import print_error
from stratalog.cli.options import json_option
from stratalog.cli.output import counted, document_or_object, print_json, print_rest, value_document
from stratalog.cli.spark.options import spark_options
from stratalog.cli.spark.spark_job import spark_job
from stratalog.cli.store_repair.verify_command import print_proof

if TYPE_CHECKING:
    from stratalog.compaction.tier_verification import VerificationReport
    from stratalog.pipeline.jobs.store_audit import AuditReport
    from stratalog.remote.metadata.shard.live_slice import LiveSlice
    from stratalog.remote.restore.metadata_scrub import VerificationFinding

_EXIT_UNFINISHED = 2
_LISTED_GAPS = 1000


@click.command()
@click.argument("topics", nargs=-1)
@spark_options
@click.option(
    "--quick", is_flag=True, help="Trust key streams, and only list objects: read the data of no slice."
)
@json_option
def audit(
    topics: tuple[str, ...],
    store_url: str,
    master: str,
    conf: Mapping[str, str],
    quick: bool,
    as_json: bool,
) -> None:
    """Verify objects and compaction with all executors.

    It verifies TOPICS, or all of the store, as `stratalog tier verify` and `stratalog verify --compaction`
    do, and writes nothing: the documents of the metadata, slices that tile, objects that are missing, each
    checksum, the order of offsets, headers, footers, directories and indexes, key streams against their data,
    and that no key has two records below compacted_upto. Each task reads some objects, or proves some
    partitions.

    Offsets that the metadata records as lost (gaps) are shown, and are no findings.

    Exit code: 0 all is well, 1 there are findings, 2 the audit could not finish.

    \b
    Examples:
      stratalog spark audit --store s3://bucket/prefix --master spark://host:7077
      stratalog spark audit orders --quick --store s3://bucket/prefix
    """
    try:
        report = _audited(topics, store_url, master, conf, reads_data=not quick)
    except (LogStoreError, OSError) as error:
        print_error(str(error))
        raise click.exceptions.Exit(_EXIT_UNFINISHED) from None
    if as_json:
        print_json(
            {
                "finding_count": report.finding_count,
                "verification": {
                    **value_document(report.verification._replace(gaps=())),
                    "gaps": [_gap_document(live) for live in report.verification.gaps],
                },
                "proof": value_document(report.proof),
            }
        )
    else:
        _print_verification(report.verification)
        print_proof(report.proof)
    if report.finding_count:
        raise StoreCorruptError(
            "the store is not as its metadata says; keep the objects and find out what changed them",
            findings=report.finding_count,
        )


def _audited(
    topics: tuple[str, ...], store_url: str, master: str, conf: Mapping[str, str], *, reads_data: bool
) -> AuditReport:
    from stratalog.pipeline.jobs.store_audit import audit_store
    from stratalog.pipeline.jobs.task_place import ExecutorPlace

    with spark_job("audit", master, conf) as cluster:
        return audit_store(cluster, ExecutorPlace(store_url), topics, reads_data=reads_data)


def _print_verification(report: VerificationReport) -> None:
    click.echo(
        f"verified {counted(report.object_count, 'object')} with {counted(report.slice_count, 'slice')},"
        f" {counted(report.record_count, 'record')} and {ByteSize(report.data_bytes)}:"
        f" {counted(report.finding_count, 'finding')}"
    )
    for finding in report.findings:
        click.echo(f"{finding.kind.value}: {_place_of(finding)}: {finding.reason}")
    print_rest(len(report.findings), report.finding_count, "finding")
    for live in report.gaps[:_LISTED_GAPS]:
        click.echo(
            "recorded gap: {topic_id}-{partition}, offsets {base_offset}-{end_offset}, {reason}".format(
                **_gap_document(live)
            )
        )
    print_rest(min(len(report.gaps), _LISTED_GAPS), len(report.gaps), "recorded gap")


def _place_of(finding: VerificationFinding) -> str:
    if not finding.topic:
        return document_or_object(finding.object_name)
    offsets = f"{finding.topic}-{finding.partition}, offsets {finding.base_offset}-{finding.end_offset}"
    return f"{offsets} in object {finding.object_name}" if finding.object_name else offsets


def _gap_document(live: LiveSlice) -> dict[str, object]:
    """A recorded loss as JSON."""
    assert live.gap is not None, "it is a gap"
    return {
        "topic_id": str(live.entry.topic_id),
        "partition": live.entry.partition,
        "base_offset": live.base_offset,
        "end_offset": live.end_offset,
        "reason": live.gap.reason,
        "time_ms": live.gap.time_ms,
    }
