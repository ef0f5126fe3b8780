"""`stratalog log dump`: what the files of a log hold, read from the disk, without a server."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.cli.connection import json_option
from stratalog.cli.int_ranges import COUNT, OFFSET
from stratalog.cli.json_pieces import json_pieces
from stratalog.cli.log_dump.log_dump_entries import CorruptPlace, DumpEntry, DumpItem, DumpOptions
from stratalog.cli.log_dump.log_dump_files import LogFile, log_file_of, log_files_in
from stratalog.cli.log_dump.log_dump_indexes import dump_index
from stratalog.cli.log_dump.log_dump_segment import dump_segment
from stratalog.cli.log_dump.log_dump_small_files import dump_small_file
from stratalog.cli.log_dump.log_dump_text import TextDump
from stratalog.cli.output import counted, print_pieces
from stratalog.cli.record_json import JsonValue


@click.command()
@click.argument("file", type=click.Path(exists=True))
@click.option("--records", "with_records", is_flag=True, help="Also print the records of each batch.")
@click.option(
    "--index-sanity-check",
    "compares_indexes",
    is_flag=True,
    help="Compare each entry of an index with the segment beside it, and the checksum of a transaction index"
    " with that.",
)
@click.option(
    "--offset",
    "from_offset",
    type=OFFSET,
    default=0,
    metavar="OFFSET",
    help="Of segments and indexes: begin with the batch, or the first entry, that does not end below it.",
)
@click.option(
    "--max",
    "max_count",
    type=COUNT,
    help="Of each file: stop after so many batches or entries.",
)
@json_option
def dump(
    file: str,
    with_records: bool,
    compares_indexes: bool,
    from_offset: int,
    max_count: int | None,
    as_json: bool,
) -> None:
    """Print what FILE holds: a segment (.log), an index (.index, .timeindex, .txnindex), the seal of these
    indexes (.seal), a producer snapshot (.snapshot), a snapshot of Kafka's metadata log
    (OFFSET-EPOCH.checkpoint, bootstrap.checkpoint), leader-epoch-checkpoint, partition.metadata,
    import.metadata, quorum-state, a checkpoint of a data directory, its meta.properties or its claims of a
    shard (claims-0000); or all of these in a directory. Names tell what a file is; nothing is changed.

    Needs no server, but a running one may be writing: the last batch may be there in part, and index files of
    the active segment are not to be relied on.

    Places that are corrupt are marked where they lie, and the dump goes on behind them if it can; the exit
    code is then 1. With --json each batch, record, entry and corrupt place is one JSON object on a line.
    """
    filesystem = PosixFileSystem()
    options = DumpOptions(
        with_records=with_records, from_offset=from_offset, compares_indexes=compares_indexes
    )
    first_corrupt, corrupt_count = "", 0
    try:
        for ordinal, log in enumerate(_files_of(filesystem, file)):
            for place in _print_file(
                filesystem, log, options, max_count, as_json=as_json, is_first=ordinal == 0
            ):
                corrupt_count += 1
                first_corrupt = first_corrupt or _place_text(log, place)
    except OSError as failure:
        if isinstance(failure, BrokenPipeError):
            raise
        raise DataDirectoryError(
            "a file cannot be read; look at the disk and at who may read it",
            path=failure.filename or file,
            reason=failure.strerror,
        ) from None
    if corrupt_count:
        raise CorruptRecordError(
            f"{counted(corrupt_count, 'place')} cannot be as written; each is marked in the output",
            first=first_corrupt,
        )


def _files_of(filesystem: FileSystem, path: str) -> list[LogFile]:
    """The file itself, or those in the directory. Raises CorruptRecordError where there is none of a log."""
    path = os.path.abspath(path)
    if filesystem.is_directory(path):
        files = log_files_in(filesystem, path)
        if not files:
            raise DataDirectoryError(
                "no file in this directory is one of a log; name that of a partition, as TOPIC-N",
                path=path,
            )
        return files
    file = log_file_of(path)
    if file is None:
        raise DataDirectoryError(
            "the name does not tell what is in this file; give it the name that it had in its log's"
            " directory, such as 00000000000000000000.log",
            path=path,
        )
    return [file]


def _print_file(
    filesystem: FileSystem,
    log: LogFile,
    options: DumpOptions,
    max_count: int | None,
    *,
    as_json: bool,
    is_first: bool,
) -> Iterator[CorruptPlace]:
    """Print it, and tell the corrupt places."""
    text = TextDump()
    if not as_json:
        if not is_first:
            click.echo()
        click.echo(f"{log.name}: {log.kind.value}, {counted(filesystem.file_size(log.path), 'byte')}")
    count = 0
    for item in _items_of(filesystem, log, options):
        if isinstance(item, DumpEntry) and item.type != "record":
            if count == max_count:
                break
            count += 1
        if as_json:
            print_pieces(_json_line(log, item))
        else:
            text.add(item)
        if isinstance(item, CorruptPlace):
            yield item
    text.finish()


def _items_of(filesystem: FileSystem, log: LogFile, options: DumpOptions) -> Iterator[DumpItem]:
    if log.kind.has_batches:
        return dump_segment(filesystem, log, options)
    if log.kind.is_index:
        return dump_index(filesystem, log, options)
    return dump_small_file(filesystem, log, options)


def _json_line(log: LogFile, item: DumpItem) -> Iterator[str]:
    document: dict[str, JsonValue]
    if isinstance(item, DumpEntry):
        document = {"file": log.name, "type": item.type, **item.fields}
    else:
        document = {"file": log.name, "type": "corrupt", **item._asdict()}
    return json_pieces(document, sort_keys=True)


def _place_text(log: LogFile, place: CorruptPlace) -> str:
    return log.name if place.position is None else f"{log.name}@{place.position}"
