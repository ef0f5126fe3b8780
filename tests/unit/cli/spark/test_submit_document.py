"""docs/spark_jobs.md shows how `spark-submit` runs each job."""

from __future__ import annotations

import re
import shlex

import click

from stratalog.cli.main import stratalog
from stratalog.cli.spark.command import COMMANDS
from tests.support.places import DOCS

SERVICE_COMMANDS = {"staging"}
"""They ask a server, and start no Spark."""


def test_each_job_has_a_line_whose_arguments_are_taken() -> None:
    text = (DOCS / "spark_jobs.md").read_text()
    lines = re.findall(r'^spark-submit --master yarn "\$JOBS" (spark .*)$', text, re.MULTILINE)
    assert {line.split()[1] for line in lines} == COMMANDS.keys() - SERVICE_COMMANDS
    group = stratalog.get_command(click.Context(stratalog), "spark")
    assert isinstance(group, click.Group)
    for line in lines:
        _, name, *arguments = shlex.split(line)
        command = group.get_command(click.Context(group), name)
        assert command is not None
        # Raises for an option that the command lacks.
        command.make_context(name, [*arguments, "--store", "s3://bucket/prefix"])
