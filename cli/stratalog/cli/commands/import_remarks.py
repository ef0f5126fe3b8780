"""The notes and warnings of an import, one line each."""

from __future__ import annotations

from stratalog.cli.output import counted
from stratalog.log.log_config import LogConfig
from stratalog.manager.directories.manifest import parse_partition_name
from stratalog.migration.import_plan import ImportPlan
from stratalog.migration.topic_importer import ImportedPartition, ImportReport


def plan_remarks(plan: ImportPlan) -> list[str]:
    """The remarks that the plan already has."""
    remarks = _passed_over(plan)
    remarks += [
        f"note: {name} exists already with the same id, from an earlier import, and stays unchanged; later"
        " records of the broker are not imported"
        for name in plan.already_imported
    ]
    if not plan.topics:
        return remarks
    if plan.leftovers:
        remarks.append("note: an earlier import was cut off; what it left is replaced")
    if not plan.was_clean:
        remarks.append(
            f"note: the broker was not stopped cleanly; logs in {', '.join(plan.unclean_log_dirs)} are"
            " recovered, which may cut off torn ends"
        )
    if plan.is_retention_assumed:
        remarks.append(
            "note: a log directory has no configuration; these topics keep their records for ever"
            " (retention.ms=-1) and have defaults otherwise; change that with --config"
        )
    for topic in plan.topics:
        unknown = [partition for partition in topic.partitions if partition.lacks_checkpoints]
        if unknown:
            numbers = ",".join(str(partition.topic_partition.partition) for partition in unknown)
            remarks.append(
                f"warning: {counted(len(unknown), 'partition')} of {topic.name} ({numbers}) missing in the"
                " checkpoint files: deleted records may be back"
            )
    counts = ", ".join(
        f"{topic.name} has {counted(len(topic.partitions), 'partition')}" for topic in plan.topics
    )
    remarks.append(
        f"note: a log directory does not record the number of partitions; {counts} here, and if Kafka has"
        " more, the last ones are missing"
    )
    return remarks


def report_remarks(report: ImportReport) -> list[str]:
    """The remarks of the plan, and those about the imported logs."""
    is_compacted = LogConfig.from_overrides(report.plan.config).is_compacted
    remarks = plan_remarks(report.plan)
    for topic in report.topics:
        for partition in topic.partitions:
            remarks += _partition_remarks(partition, is_compacted=is_compacted)
    return remarks


def _passed_over(plan: ImportPlan) -> list[str]:
    """One line for all directories that were passed over for the same reason."""
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
            " watermark; they were kept, but other brokers may not have them"
        )
    if partition.missing_count:
        remarks.append(
            f"warning: {name} ends at offset {log.log_end_offset}, and the broker's high watermark was"
            f" {partition.high_watermark}: {counted(partition.missing_count, 'offset')} that consumers may"
            " have read are missing; another replica may have them"
        )
    if log.open_transactions:
        first_offset = log.open_transactions[0]
        remarks.append(
            f"warning: {name} has {counted(len(log.open_transactions), 'open transaction')}, the first one"
            f" from offset {first_offset}; readers of committed records stop at offset"
            f" {max(first_offset, log.log_start_offset)} until it ends, which nothing here does:"
            " end it in Kafka before you stop the broker"
        )
    if recovery.epochs_raised_from is not None:
        remarks.append(
            f"note: leader epochs of {name} fall at offset {recovery.epochs_raised_from}; from there on"
            " batches got the highest epoch before theirs"
        )
    if log.holes_before and not is_compacted:
        remarks.append(
            f"warning: no batch of {name} has the offsets just below {', '.join(map(str, log.holes_before))},"
            " where segments begin: compaction leaves such holes, and so does a missing segment"
        )
    if recovery.remains:
        remarks.append(
            f"warning: the recovery of {name} ended at offset {log.log_end_offset}, before damage with sound"
            " batches behind it, and kept the cut part for inspection:"
            f" {', '.join(recovery.remains)}"
        )
    elif recovery.truncated_bytes:
        remarks.append(
            f"note: {counted(recovery.truncated_bytes, 'byte')} behind offset {log.log_end_offset} of {name}"
            " were not sound batches and were cut off"
        )
    if recovery.lost_end_offset is not None:
        remarks.append(
            f"warning: the log of {name} ended at offset {recovery.lost_end_offset}, below its start; it"
            f" begins anew at {log.log_start_offset}, empty"
        )
    return remarks
