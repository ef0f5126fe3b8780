"""The options of a write: their names, their forms and their defaults. Light to import."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from stratalog.base.errors import InvalidConfigError
from stratalog.pipeline.option_names import known_options, wrong_option
from stratalog.pipeline.service_options import SERVICE_OPTIONS, ServiceOptions, require_service

EXACTLY_ONCE = "exactlyOnce"
AT_LEAST_ONCE = "atLeastOnce"

OPTION_NAMES = (*SERVICE_OPTIONS, "topic", "durability", "compression", "jobId", "batchId", "delivery")
"""All of them; docs/spark.md says what they mean."""

_OF_SPARK = ("checkpointLocation", "queryName")
"""Those of Spark itself, which it also passes to the sink of a stream."""

STAGING_PREFIX = "spark-sink-"
"""How the names of staging topics begin, behind which comes the id of a query or a job."""

_DURABILITIES: tuple[Literal["os", "disk", "object"], ...] = ("os", "disk", "object")
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_Text = TypeVar("_Text", bound=str)
_JOB_ID = re.compile(r"[A-Za-z0-9._-]{1,200}")
_BATCH_ID = re.compile(r"[0-9]{1,18}")

COLUMN_TYPES: Mapping[str, tuple[str, ...]] = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""The columns that are written, and their types in Spark's DDL."""

IGNORED_COLUMNS = frozenset(("offset", "timestampType", "tombstone"))
"""Columns of a topic that the service decides on, so that the rows of one topic can be written to another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All options of a write. Immutable, pickled to the executors; holds no secret."""

    service: ServiceOptions
    topic: str | None
    """The topic of all rows; None: the column has it."""
    durability: Literal["os", "disk", "object"] | None
    """That of the rows when a write ends; None: the topic's."""
    compression: str
    job_id: str | None
    """Names a batch job, so that it is written once however often it is run."""
    batch_id: int | None
    """The number of the batch that the job writes, for a job that writes batch after batch; None: its only
    one."""
    is_exactly_once: bool


def parse_sink_options(options: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """The options of a batch job, or of a stream. Raises InvalidConfigError for one that is missing, unknown
    or malformed."""
    options = known_options(options, OPTION_NAMES, silent=_OF_SPARK if is_stream else ())
    delivery = _choice(options, "delivery", (EXACTLY_ONCE, AT_LEAST_ONCE)) or EXACTLY_ONCE
    job_id = options.get("jobId")
    if job_id is not None and is_stream:
        raise wrong_option("jobId", job_id, "not in a stream, which Spark names by its checkpoint")
    if job_id is not None and _JOB_ID.fullmatch(job_id) is None:
        raise wrong_option("jobId", job_id, "1 to 200 ASCII letters, digits, '.', '_' and '-'")
    batch_text = options.get("batchId")
    if batch_text is not None and (job_id is None or is_stream):
        raise wrong_option("batchId", batch_text, "only beside a jobId: the number that foreachBatch gives")
    if batch_text is not None and _BATCH_ID.fullmatch(batch_text) is None:
        raise wrong_option(
            "batchId", batch_text, "0 to 999999999999999999, the number that foreachBatch gives"
        )
    return SinkOptions(
        service=require_service(options),
        topic=options.get("topic") or None,
        durability=_choice(options, "durability", _DURABILITIES),
        compression=_choice(options, "compression", _CODECS) or "none",
        job_id=job_id,
        batch_id=None if batch_text is None else int(batch_text),
        is_exactly_once=delivery == EXACTLY_ONCE,
    )


def require_columns(columns: Iterable[tuple[str, str]], options: SinkOptions) -> None:
    """Raise InvalidConfigError unless rows of these names and types can be written."""
    found = dict(columns)
    for name, kind in found.items():
        if name not in IGNORED_COLUMNS and kind not in COLUMN_TYPES.get(name, ()):
            raise InvalidConfigError(
                "a column of this name and type cannot be written; cast, rename or drop it",
                name=name,
                value=kind,
                allowed="; ".join(f"{each} {' or '.join(kinds)}" for each, kinds in COLUMN_TYPES.items()),
            )
    if "value" not in found:
        raise InvalidConfigError(
            "the rows have no column value; add it, with null for a tombstone",
            name="value",
            value=", ".join(found),
        )
    if options.topic is None and "topic" not in found:
        raise InvalidConfigError("set .option('topic', ...), or add a column topic", name="topic")


def _choice(options: Mapping[str, str], name: str, allowed: tuple[_Text, ...]) -> _Text | None:
    """The value of an option; None if it is not given."""
    given = options.get(name)
    if given is None:
        return None
    for one in allowed:
        if given.lower() == one.lower():
            return one
    raise wrong_option(name, given, ", ".join(allowed))
