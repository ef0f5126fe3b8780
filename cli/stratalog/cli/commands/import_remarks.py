"""What whoever reads the numbers of an import has to know besides, a line each."""

from __future__ import annotations

from stratalog.cli.output import counted
from stratalog.log.log_config import LogConfig
from stratalog.manager.directories.manifest import parse_partition_name
from stratalog.migration.import_plan import ImportPlan
from stratalog.migration.topic_importer import ImportedPartition, ImportReport


def plan_remarks(plan: ImportPlan) -> list[str]:
    """Before anything is done, and after it."""
    remarks = _passed_over(plan)
    remarks += [
        f"note: {name} is there already, with the same id: an earlier import brought it, and it is left as it"
        " is; what the broker has written to it since is not imported"
        for name in plan.already_imported
    ]
    if not plan.topics:
        return remarks
    if plan.leftovers:
        remarks.append("note: an earlier import was cut off; what it left is replaced")
    if not plan.was_clean:
        remarks.append(
            f"note: the broker was not stopped cleanly; logs in {', '.join(plan.unclean_log_dirs)} are"
            " recovered, which may cut torn ends off"
        )
    if plan.is_retention_assumed:
        remarks.append(
            "note: a log directory holds no configuration; these topics keep their records for ever"
            " (retention.ms=-1), and have defaults besides; --config says otherwise"
        )
    for topic in plan.topics:
        unknown = [partition for partition in topic.partitions if partition.lacks_checkpoints]
        if unknown:
            numbers = ",".join(str(partition.topic_partition.partition) for partition in unknown)
            remarks.append(
                f"warning: of {topic.name}, the checkpoint files do not know"
                f" {counted(len(unknown), 'partition')} ({numbers}): records that were deleted may be back"
            )
    counts = ", ".join(
        f"{topic.name} has {counted(len(topic.partitions), 'partition')}" for topic in plan.topics
    )
    remarks.append(
        f"note: a log directory does not say how many partitions a topic has; {counts} here, and if there are"
        " more in Kafka, the last ones are missing"
    )
    return remarks


def report_remarks(report: ImportReport) -> list[str]:
    """The same, and what was found in the logs."""
    is_compacted = LogConfig.from_overrides(report.plan.config).is_compacted
    remarks = plan_remarks(report.plan)
    for topic in report.topics:
        for partition in topic.partitions:
            remarks += _partition_remarks(partition, is_compacted=is_compacted)
    return remarks


def _passed_over(plan: ImportPlan) -> list[str]:
    """A line for all partitions of a topic, where the reason is the same."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, reason, _ in plan.passed_over:
        partition = parse_partition_name(name)
        names.setdefault((name if partition is None else partition.topic, reason), []).append(name)
    return [
        f"passed over {same[0]}: {reason}"
        if len(same) == 1
        else f"passed over {counted(len(same), 'partition')} of {topic}: {reason}"
        for (topic, reason), same in names.items()
    ]


def _partition_remarks(partition: ImportedPartition, *, is_compacted: bool) -> list[str]:
    name, log = partition.topic_partition, partition.log
    recovery = log.recovery
    remarks: list[str] = []
    if partition.uncertain_count:
        remarks.append(
            f"note: {name} has {counted(partition.uncertain_count, 'offset')} above the broker's high"
            " watermark; they were kept, and other brokers may not have had them"
        )
    if partition.missing_count:
        remarks.append(
            f"warning: {name} ends at offset {log.log_end_offset}, and the broker's high watermark was"
            f" {partition.high_watermark}: {counted(partition.missing_count, 'offset')} that consumers may"
            " have read are not in its files any more; another replica may have them"
        )
    if log.open_transactions:
        first_offset = log.open_transactions[0]
        remarks.append(
            f"warning: {name} has {counted(len(log.open_transactions), 'open transaction')}, the first one"
            f" from offset {first_offset}; readers of committed records stop at offset"
            f" {max(first_offset, log.log_start_offset)} until somebody ends it, which nothing here does:"
            " end it in Kafka before the broker is stopped"
        )
    if recovery.epochs_raised_from is not None:
        remarks.append(
            f"note: in {name} leader epochs begin again at offset {recovery.epochs_raised_from}, below those"
            " before; batches from there on got the highest one before theirs"
        )
    if log.holes_before and not is_compacted:
        remarks.append(
            f"warning: no batch of {name} has the offsets just below {', '.join(map(str, log.holes_before))},"
            " where segments begin: compaction leaves such holes, and a segment that did not come along does,"
            " too"
        )
    if recovery.remains:
        remarks.append(
            f"warning: the recovery of {name} ended at offset {log.log_end_offset}, before damage that sound"
            " batches lie behind, and kept what it cut off for you to look at:"
            f" {', '.join(recovery.remains)}"
        )
    elif recovery.truncated_bytes:
        remarks.append(
            f"note: {counted(recovery.truncated_bytes, 'byte')} behind offset {log.log_end_offset} of {name}"
            " were no sound batches, and were cut off"
        )
    if recovery.lost_end_offset is not None:
        remarks.append(
            f"warning: the log of {name} ended at offset {recovery.lost_end_offset}, below its start: it"
            f" begins anew at {log.log_start_offset}, empty"
        )
    return remarks
