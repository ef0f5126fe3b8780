"""The options of all commands that run on Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from stratalog.cli.options import config_option, environment_option, require_unicode

_Command = TypeVar("_Command", bound=Callable[..., Any])

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    environment_option(
        "--store",
        "store_url",
        callback=require_unicode,
        required=True,
        metavar="URL",
        help="s3://bucket/prefix, or file:///dir on a disk that all executors share; credentials, region"
        " and endpoint as boto3 finds them, on each machine.",
    ),
    click.option(
        "--master",
        callback=require_unicode,
        default="",
        metavar="URL",
        help="Spark's master, such as local[4] or spark://host:7077. Default: that of `spark-submit`, or"
        " all cores of this machine.",
    ),
    config_option("--conf", text="Set a key of Spark, such as spark.executor.memory=4g; may be repeated."),
)


def spark_options(command: _Command) -> _Command:
    """Adds the parameters `store_url`, `master` and `conf`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
