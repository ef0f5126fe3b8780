"""`stratalog spark materialize`: the latest state of a topic as a table, made on Spark's executors."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from stratalog.base.errors import InvalidConfigError
from stratalog.cli.options import config_option, json_option, require_unicode
from stratalog.cli.output import counted, print_json, value_document
from stratalog.cli.spark.options import spark_options
from stratalog.cli.spark.places import PLACE_HELP, place_url, require_outside
from stratalog.cli.spark.spark_job import spark_job

if TYPE_CHECKING:
    from stratalog.pipeline.job_cluster import JobCluster
    from stratalog.pipeline.lake.materialization import MaterializeReport
    from stratalog.pipeline.lake.values.avro_values import AvroValues
    from stratalog.pipeline.lake.values.json_values import JsonValues
    from stratalog.pipeline.lake.values.protobuf_values import ProtobufValues
    from stratalog.pipeline.lake.values.value_format import ValueFormat

_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Encoding(NamedTuple):
    """How values are decoded, as the command line says it."""

    values: str
    schema: str
    message: str
    schema_id: tuple[tuple[int, str], ...]
    """Numbers of registered schemas, each with the file of its schema, or empty."""
    schema_registry: str
    subject: str


_SCHEMA_OF = ("json", "avro", "protobuf")
"""The values that need a schema."""
_REGISTERED = tuple(f"confluent-{values}" for values in _SCHEMA_OF)
_REGISTRY_CREDENTIALS = "STRATALOG_SCHEMA_REGISTRY_CREDENTIALS"
"""The variable with `user:password`: options are visible to other users of a machine."""
_MAX_SCHEMA_ID = (1 << 32) - 1


def _schema_ids(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> tuple[tuple[int, str], ...]:
    """The numbers of `--schema-id`, each with its file, or with an empty name. Raises BadParameter."""
    found: dict[int, str] = {}
    for text in given:
        require_unicode(context, parameter, text)
        number, sign, path = text.partition("=")
        if not (number.isascii() and number.isdigit() and int(number) <= _MAX_SCHEMA_ID) or (
            sign and not path
        ):
            raise click.BadParameter(
                f"{text!r} is no number of a schema, 0 to {_MAX_SCHEMA_ID}, nor NUMBER=FILE",
                context,
                parameter,
            )
        if int(number) in found:
            raise click.BadParameter(f"{number} is there twice", context, parameter)
        found[int(number)] = path
    return tuple(found.items())


class _Wanted(NamedTuple):
    """The table, as the command line says it."""

    topic: str
    store_url: str
    table_url: str
    format_name: str
    is_full: bool
    fails_on_data_loss: bool
    lease_s: int | None
    properties: Mapping[str, str]


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--to",
        "format_name",
        type=click.Choice(("delta", "iceberg", "parquet")),
        required=True,
        help="The format of the table.",
    ),
    click.option(
        "--table",
        "table_url",
        callback=place_url,
        required=True,
        metavar="PLACE",
        help=f"The place of the table: {PLACE_HELP}.",
    ),
    click.option("--full", is_flag=True, help="Make the table anew, whatever is there."),
    config_option(
        "--option",
        text="Set an option of the source: failOnDataLoss=false goes on without records that are lost, and"
        " a warning names each range of them.",
    ),
    config_option(
        "--property",
        "properties",
        text="Set a property of the table that says how long it keeps former versions, such as"
        " history.expire.max-snapshot-age-ms of iceberg or delta.deletedFileRetentionDuration of delta. It"
        " stays in the table, for later refreshes and other programs.",
    ),
    click.option(
        "--values",
        type=click.Choice(("raw", *_SCHEMA_OF, *_REGISTERED)),
        default="raw",
        show_default=True,
        help="How values are encoded. The column `value` is their bytes, or a struct. Those of confluent-...,"
        " of serializers for Confluent's Schema Registry, have the number of their schema in front: see"
        " --schema-id.",
    ),
    click.option(
        "--schema",
        callback=require_unicode,
        default="",
        metavar="DDL|FILE",
        help="The columns of the table. Of json: as in 'id BIGINT, name STRING'. Of avro: an .avsc file. Of"
        " protobuf: a file of `protoc --include_imports -o FILE`.",
    ),
    click.option(
        "--message", callback=require_unicode, default="", metavar="NAME", help="The message of protobuf."
    ),
    click.option(
        "--schema-id",
        multiple=True,
        callback=_schema_ids,
        metavar="NUMBER[=FILE]",
        help="Of confluent-...: the number of a schema in the registry, and its file if it is another one"
        " than that of --schema, as whose columns the values are read. May be repeated; values with other"
        " numbers are bad. confluent-json takes no FILE, and without this option each number.",
    ),
    click.option(
        "--schema-registry",
        callback=require_unicode,
        default="",
        metavar="URL",
        help="Of confluent-avro: also take the schemas of all versions of --subject, from Confluent's Schema"
        f" Registry here. The variable {_REGISTRY_CREDENTIALS} may have USER:PASSWORD.",
    ),
    click.option(
        "--subject",
        callback=require_unicode,
        default="",
        metavar="NAME",
        help="The subject in the registry. Default: TOPIC-value.",
    ),
    click.option(
        "--lease",
        type=click.IntRange(1, 7 * 24 * 3600),
        metavar="SECONDS",
        help="Keep the objects of the topic so long, for a refresh that takes longer than the store keeps"
        " replaced ones.",
    ),
)


def _table_options(command: _Command) -> _Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.argument("topic")
@spark_options
@_table_options
@json_option
def materialize(
    topic: str,
    store_url: str,
    master: str,
    conf: Mapping[str, str],
    format_name: str,
    table_url: str,
    full: bool,
    option: Mapping[str, str],
    properties: Mapping[str, str],
    lease: int | None,
    as_json: bool,
    **decoding: Any,
) -> None:
    """Make a table of the latest state of a topic.

    A table of TOPIC that is there is brought up to date.

    The table has a row for each key of each partition whose last committed record has a value: key,
    partition, offset, timestamp and value. The first refresh reads the whole topic, a later one only the
    records behind the position that is kept with the table.

    Records whose values cannot be decoded are no rows: they lie as Parquet in the folder _bad of the table,
    with their errors.

    Exit code: 0 done, 1 failed, and then the table is as before.

    The examples find the store in STRATALOG_STORE.

    \b
    Examples:
      stratalog spark materialize orders --to delta --table s3://lake/orders
      stratalog spark materialize orders --to parquet --table /srv/orders
      stratalog spark materialize orders --to iceberg --table s3://lake/orders
    """
    from stratalog.pipeline.lake.kept_versions import require_properties

    encoding = _Encoding(**decoding)
    _require_consistent(encoding)
    encoding = encoding._replace(subject=encoding.subject or f"{topic}-value")
    _require_libraries(format_name, encoding.values)
    require_properties(format_name, properties)
    require_outside(table_url, store_url)
    wanted = _Wanted(
        topic=topic,
        store_url=store_url,
        table_url=table_url,
        format_name=format_name,
        is_full=full,
        fails_on_data_loss=_fails_on_data_loss(option),
        lease_s=lease,
        properties=properties,
    )
    with spark_job("materialize", master, conf) as cluster:
        report = _refreshed(cluster, wanted, encoding)
    if as_json:
        print_json(value_document(report))
    else:
        _print_report(report)


def _refreshed(cluster: JobCluster, wanted: _Wanted, encoding: _Encoding) -> MaterializeReport:
    """Bring the table to the latest state. Raises as `Materialization.run`, and InvalidConfigError."""
    from stratalog.base.clock import SystemClock
    from stratalog.pipeline.jobs.task_place import ExecutorPlace
    from stratalog.pipeline.lake.materialization import (
        Materialization,
        MaterializeOrder,
        require_refreshable,
    )
    from stratalog.pipeline.lake.table_format import TableFormat
    from stratalog.pipeline.lake.table_place import TablePlace

    store_place, place = ExecutorPlace(wanted.store_url), TablePlace(wanted.table_url)
    form = TableFormat(wanted.format_name)
    values = _format_of_files(encoding)
    if values is None:
        # Spark reads the columns of JSON, so the refresh begins behind its start.
        with closing(place()) as store:
            form.require_own(store)
        require_refreshable(store_place, place, wanted.topic)
        values = _format_of_ddl(cluster, encoding)
    order = MaterializeOrder(
        topic=wanted.topic,
        values=values,
        is_full=wanted.is_full,
        fails_on_data_loss=wanted.fails_on_data_loss,
        lease_s=wanted.lease_s,
    )
    refresh = Materialization(cluster, store_place, place, order)
    with closing(place()) as store:
        table = form.table(store, SystemClock(), values.arrow_type, wanted.properties)
        return refresh.run(table)


def _require_consistent(encoding: _Encoding) -> None:
    """Raise InvalidConfigError for options that do not belong together, before Spark starts."""
    schema_ids = " ".join(map(str, dict(encoding.schema_id)))
    files = " ".join(path for _, path in encoding.schema_id)
    binary = ("confluent-avro", "confluent-protobuf")
    needs_ids = ("confluent-protobuf",) if encoding.schema_registry else binary
    for name, value, needed, allowed in (
        ("--schema", encoding.schema, (*_SCHEMA_OF, *_REGISTERED), ()),
        ("--message", encoding.message, ("protobuf", "confluent-protobuf"), ()),
        ("--schema-id", schema_ids, needs_ids, ("confluent-avro", "confluent-json")),
        ("--schema-id NUMBER=FILE", files.strip(), (), binary),
        ("--schema-registry", encoding.schema_registry, (), ("confluent-avro",)),
    ):
        if encoding.values in needed if not value else encoding.values not in (*needed, *allowed):
            raise InvalidConfigError(
                f"{name} is {'for other values' if value else 'missing'}; correct the command",
                name=name,
                value=value,
                allowed=f"with --values {' or '.join(sorted({*needed, *allowed}))}",
            )
    if encoding.subject and not encoding.schema_registry:
        raise InvalidConfigError(
            "--subject is for a registry; correct the command",
            name="--subject",
            value=encoding.subject,
            allowed="with --schema-registry",
        )


def _fails_on_data_loss(option: Mapping[str, str]) -> bool:
    """Whether lost records fail the refresh. Raises InvalidConfigError for an option that a refresh lacks."""
    from stratalog.pipeline.option_names import flag_option, known_options
    from stratalog.pipeline.source.read_options import DATA_LOSS

    return flag_option(known_options(option, (DATA_LOSS,)), DATA_LOSS, default=True)


def _require_libraries(format_name: str, values: str) -> None:
    """Raise InvalidConfigError if a library is not installed that these options need."""
    needed = ["numpy", "pandas", "pyarrow", "pyroaring"]
    needed += ["pyiceberg"] if format_name == "iceberg" else []
    needed += ["fastavro"] if values.endswith("avro") else []
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidConfigError(
            "libraries are missing here, and perhaps on the executors; install the extra lake in each Python,"
            " in a checkout with pip install '.[lake]'",
            name="libraries",
            value=", ".join(missing),
            allowed="installed",
        )


def _format_of_files(encoding: _Encoding) -> ValueFormat | None:
    """The format with the schema of a file, or without any; None for JSON. Raises InvalidConfigError,
    UnsupportedOperationError."""
    from stratalog.pipeline.lake.values.value_format import RawValues

    match encoding.values.removeprefix("confluent-"):
        case "json":
            return None
        case "avro":
            from stratalog.pipeline.lake.values.avro_values import AvroValues

            schema = _read(encoding.schema, "--schema")
            return _registered(encoding, AvroValues.of(schema.decode(errors="replace")), schema)
        case "protobuf":
            from stratalog.pipeline.lake.values.protobuf_values import ProtobufValues

            schema = _read(encoding.schema, "--schema")
            return _registered(encoding, ProtobufValues.of(schema, encoding.message), schema)
        case _:
            return RawValues()


def _format_of_ddl(cluster: JobCluster, encoding: _Encoding) -> ValueFormat:
    """JSON with the columns of a DDL text, which Spark reads. Raises InvalidConfigError,
    UnsupportedOperationError."""
    from stratalog.pipeline.lake.values.ddl_schema import struct_of_ddl
    from stratalog.pipeline.lake.values.json_values import JsonValues

    return _registered(encoding, JsonValues.of(struct_of_ddl(cluster.session, encoding.schema)), b"")


def _registered(
    encoding: _Encoding, values: AvroValues | JsonValues | ProtobufValues, schema: bytes
) -> ValueFormat:
    """The values with numbers of schemas in front, if they have them; `schema` is that of a number without a
    file. Raises InvalidConfigError, UnsupportedOperationError."""
    if encoding.values not in _REGISTERED:
        return values
    from stratalog.pipeline.lake.values.registered_values import RegisteredValues

    schemas: dict[int, bytes] = {}
    if encoding.schema_registry:
        from stratalog.pipeline.lake.values.schema_registry import SchemaRegistry

        user_info = os.environ.get(_REGISTRY_CREDENTIALS, "")
        schemas = SchemaRegistry.of(encoding.schema_registry, user_info).avro_schemas(encoding.subject)
    for number, path in encoding.schema_id:
        schemas[number] = _read(path, "--schema-id") if path else schema
    return RegisteredValues.of(values, schemas)


def _read(path: str, name: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidConfigError(
            "the file of the schema cannot be read; correct its name",
            name=name,
            value=path,
            reason=error.strerror or str(error),
        ) from error


def _print_report(report: MaterializeReport) -> None:
    if report.mode == "none":
        click.echo(f"nothing new: the table has {counted(report.row_count, 'row')}")
        return
    reason = f" ({report.reason})" if report.reason else ""
    click.echo(f"{report.mode} refresh{reason}: the table has {counted(report.row_count, 'row')}")
    click.echo(
        f"read the last {counted(report.record_count, 'record')} of their keys:"
        f" {counted(report.added_count, 'row')} written, {counted(report.removed_count, 'row')} removed,"
        f" {counted(report.tombstone_count, 'tombstone')}"
    )
    if report.bad_count:
        click.echo(
            f"set aside {counted(report.bad_count, 'record')} with bad values: {', '.join(report.bad_files)}"
        )
