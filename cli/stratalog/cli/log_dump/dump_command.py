"""`stratalog log dump`: prints the files of a log or of a store, without a server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from urllib.parse import quote

import click

from stratalog.base.errors import CorruptRecordError, DataDirectoryError, InvalidRequestError
from stratalog.base.filesystem import FileSystem
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.cli.int_ranges import COUNT, OFFSET
from stratalog.cli.log_dump.dump_printers import JsonDump, TextDump
from stratalog.cli.log_dump.dump_rows import CorruptPlace, DumpOptions
from stratalog.cli.log_dump.file_kinds import KnownFile, known_file, known_files_in
from stratalog.cli.log_dump.store_files import StoreFile, split_path, store_file, store_files
from stratalog.cli.options import json_option
from stratalog.cli.output import counted
from stratalog.objectstore.object_key import is_key
from stratalog.objectstore.open_store import open_store
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.store_layout import IDENTITY_KEY


class _PlaceType(click.Path):
    """A path that exists, or the URL of a store."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        return value if "://" in str(value) else super().convert(value, param, ctx)


@click.command()
@click.argument("file", type=_PlaceType(exists=True))
@click.option(
    "--key", default="", metavar="KEY", help="The key of a file in the store, or of a folder there."
)
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
    key: str,
    with_records: bool,
    compares_indexes: bool,
    from_offset: int,
    max_count: int | None,
    as_json: bool,
) -> None:
    """Print the files of a log or of a store; needs no server.

    FILE is one file of a log, or a directory of such files. The command knows a file by its name: a segment
    (.log), an index (.index, .timeindex, .txnindex), the seal of these indexes (.seal), a producer snapshot
    (.snapshot), leader-epoch-checkpoint, partition.metadata, a checkpoint of a log directory, its manifest,
    its meta.properties, its claims of a shard (claims-0000), or the heads that it has seen (seen-heads). It
    changes nothing.

    FILE may also be the URL of an object store (s3://…, file://…), with the --key of a file in it, or a
    path in the directory of a store: its identity, a head, a checkpoint or a page of one, history, or an
    object, of which it prints header, footer and directory. Without a key it prints the identity and all
    heads. Hash keys of topics are secret, and never printed.

    If a server is writing, the last batch may be incomplete, and the index files of the active segment are
    not reliable.

    The command marks each corrupt place and goes on behind it if it can; the exit code is then 1. With --json
    each batch, record, entry and corrupt place is one JSON object on a line.

    \b
    Examples:
      stratalog log dump /data/orders-0
      stratalog log dump --records --offset 5 --max 1 /data/orders-0
      stratalog log dump s3://bucket/prefix --key shards/0000/head
    """
    options = DumpOptions(
        with_records=with_records, from_offset=from_offset, compares_indexes=compares_indexes
    )
    first_corrupt, corrupt_count = "", 0
    try:
        for ordinal, known in enumerate(_files_of(PosixFileSystem(), file, key)):
            if ordinal and not as_json:
                click.echo()
            for place in _print_file(known, options, max_count, as_json=as_json):
                corrupt_count += 1
                first_corrupt = first_corrupt or _place_text(known.name, place)
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


def _files_of(filesystem: FileSystem, path: str, key: str) -> Sequence[KnownFile | StoreFile]:
    """The file at `path`, or the known files in that directory; with a URL, those of the store at the key.
    Raises DataDirectoryError without one, StoreError."""
    if "://" in path:
        return store_files(open_store(path), key)
    if key:
        raise InvalidRequestError("a key belongs to the URL of a store, such as file:///data.store", key=key)
    path = os.path.abspath(path)
    root, key = split_path(path)
    is_in_store = filesystem.exists(f"{root}/{IDENTITY_KEY}")
    if is_in_store and key not in filesystem.list_directory(root):
        return store_files(_local_store(root), key)
    if filesystem.is_directory(path):
        if filesystem.exists(f"{path}/{IDENTITY_KEY}"):
            return store_files(_local_store(path), "")
        files = known_files_in(filesystem, path)
        if not files:
            raise DataDirectoryError(
                "this directory has no file of a log; give the directory of a partition, such as TOPIC-0",
                path=path,
            )
        return files
    known = known_file(filesystem, path)
    if known is None and is_key(key):
        stored = store_file(_local_store(root), key)
        if stored is not None:
            return [stored]
    if known is None:
        raise DataDirectoryError(
            "the name of this file is not one of a log; give it the name that it had in its log's directory,"
            " such as 00000000000000000000.log",
            path=path,
        )
    return [known]


def _print_file(
    known: KnownFile | StoreFile, options: DumpOptions, max_count: int | None, *, as_json: bool
) -> Iterator[CorruptPlace]:
    if not as_json:
        click.echo(f"{known.name}: {known.title}, {counted(known.size_bytes, 'byte')}")
    printer = JsonDump(known.name) if as_json else TextDump()
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


def _local_store(root: str) -> ObjectStore:
    return open_store(f"file://{quote(root)}")
