"""`stratalog log dump`: prints the files of a log from the disk, without a server."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.cli.int_ranges import COUNT, OFFSET
from stratalog.cli.log_dump.dump_printers import JsonDump, TextDump
from stratalog.cli.log_dump.dump_rows import CorruptPlace, DumpOptions
from stratalog.cli.log_dump.file_kinds import KnownFile, known_file, known_files_in
from stratalog.cli.options import json_option
from stratalog.cli.output import counted


@click.command()
@click.argument("file", type=click.Path(exists=True))
@click.option("--records", "with_records", is_flag=True, help="Also print the records of each batch.")
@click.option(
    "--index-sanity-check",
    "compares_indexes",
    is_flag=True,
    help="Compare each index entry with the segment beside it, and each .seal with its segment and index"
    " files.",
)
@click.option(
    "--offset",
    "from_offset",
    type=OFFSET,
    default=0,
    metavar="OFFSET",
    help="Segments and indexes: begin at the first batch or entry that does not end below this offset.",
)
@click.option("--max", "max_count", type=COUNT, help="Stop after this many batches or entries of each file.")
@json_option
def dump(
    file: str,
    with_records: bool,
    compares_indexes: bool,
    from_offset: int,
    max_count: int | None,
    as_json: bool,
) -> None:
    """Print the files of a log; needs no server.

    FILE is one file of a log, or a directory of such files. The command knows a file by its name: a segment
    (.log), an index (.index, .timeindex, .txnindex), the seal of these indexes (.seal), a producer snapshot
    (.snapshot), leader-epoch-checkpoint, partition.metadata, a checkpoint of a log directory, its manifest,
    its meta.properties, or its claims of a shard (claims-0000). It changes nothing.

    If a server is writing, the last batch may be incomplete, and the index files of the active segment are
    not reliable.

    The command marks each corrupt place and goes on behind it if it can; the exit code is then 1. With --json
    each batch, record, entry and corrupt place is one JSON object on a line.

    \b
    Examples:
      stratalog log dump /data/orders-0
      stratalog log dump --records --offset 5 --max 1 /data/orders-0
    """
    options = DumpOptions(
        with_records=with_records, from_offset=from_offset, compares_indexes=compares_indexes
    )
    first_corrupt, corrupt_count = "", 0
    try:
        for ordinal, known in enumerate(_files_of(PosixFileSystem(), file)):
            if ordinal and not as_json:
                click.echo()
            for place in _print_file(known, options, max_count, as_json=as_json):
                corrupt_count += 1
                first_corrupt = first_corrupt or _place_text(known.file.name, place)
    except OSError as failure:
        if isinstance(failure, BrokenPipeError):
            raise
        raise DataDirectoryError(
            "a file cannot be read; check the disk and the file's permissions",
            path=failure.filename or file,
            reason=failure.strerror,
        ) from None
    if corrupt_count:
        raise CorruptRecordError(
            f"{counted(corrupt_count, 'corrupt place')} found; look for CORRUPT in the output",
            first=first_corrupt,
        )


def _files_of(filesystem: FileSystem, path: str) -> list[KnownFile]:
    """The file at `path`, or the known files in that directory. Raises DataDirectoryError without one."""
    path = os.path.abspath(path)
    if filesystem.is_directory(path):
        files = known_files_in(filesystem, path)
        if not files:
            raise DataDirectoryError(
                "this directory has no file of a log; give the directory of a partition, such as TOPIC-0",
                path=path,
            )
        return files
    known = known_file(filesystem, path)
    if known is None:
        raise DataDirectoryError(
            "the name of this file is not one of a log; give it the name that it had in its log's directory,"
            " such as 00000000000000000000.log",
            path=path,
        )
    return [known]


def _print_file(
    known: KnownFile, options: DumpOptions, max_count: int | None, *, as_json: bool
) -> Iterator[CorruptPlace]:
    file = known.file
    if not as_json:
        size = counted(file.filesystem.file_size(file.path), "byte")
        click.echo(f"{file.name}: {known.kind.title}, {size}")
    printer = JsonDump(file.name) if as_json else TextDump()
    count = 0
    for item in known.items(options):
        if not isinstance(item, CorruptPlace) and item.type != "record":
            if count == max_count:
                break
            count += 1
        printer.add(item)
        if isinstance(item, CorruptPlace):
            yield item
    printer.finish()


def _place_text(name: str, place: CorruptPlace) -> str:
    return name if place.position is None else f"{name}@{place.position}"
