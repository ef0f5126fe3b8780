"""The group `stratalog spark`."""

from __future__ import annotations

import click

from stratalog.cli.lazy_group import LazyGroup

COMMANDS = {
    "compact": ("spark.compact_command:compact", "Compact tiered data with all executors."),
    "materialize": ("spark.materialize_command:materialize", "Make a table of the latest state of a topic."),
    "audit": ("spark.audit_command:audit", "Verify objects and compaction with all executors."),
    "stats": ("spark.stats_command:stats", "Count keys, records and bytes with all executors."),
    "export": ("spark.export_command:export", "Write topics to Parquet files."),
    "import": ("spark.import_command:import_", "Create a topic with the records of an export."),
    "backfill": ("spark.backfill_command:backfill", "Create a topic with the rows of a table."),
    "staging": ("spark.staging_commands:staging", "List and delete the staging topics of writes."),
}


@click.group(cls=LazyGroup, commands_by_name=COMMANDS)
def spark() -> None:
    """Run jobs over a whole store on Spark.

    The jobs read and write the bucket without a server, and may go on beside the servers of the store. Only
    `staging` asks a server. They start Spark in this process, or use the session of `spark-submit`:

    \b
      stratalog spark compact --store s3://bucket/prefix --master spark://host:7077
      spark-submit --master yarn \\
        "$(python -c 'import stratalog.cli.__main__ as m; print(m.__file__)')" \\
        spark compact --store s3://bucket/prefix

    The machines of the executors need this package, and find credentials as boto3 does.
    """
