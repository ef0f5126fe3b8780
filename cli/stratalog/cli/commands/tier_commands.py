"""`stratalog tier`: state of the object store, and uploads at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stratalog.base.errors import DataDirectoryError
from stratalog.cli.byte_size import ByteSize
from stratalog.cli.connection import with_client
from stratalog.cli.options import json_option, server_option
from stratalog.cli.output import counted, message_document, print_json, print_offline, print_table, utc_time

if TYPE_CHECKING:
    from stratalog.v1 import admin_pb2


@click.group()
def tier() -> None:
    """Show the object store, and upload now."""


@tier.command()
@json_option
@server_option
def status(as_json: bool, server: str) -> None:
    """Show the contents of the object store, and the uploader.

    \b
    owner epoch            how many times a server has claimed this store
    slices in the objects  parts of partitions; one object has slices of many
    objects to be deleted  replaced by compaction or retention; readers may
                           still use them for a while
    waits for upload       closed segments that are not yet in the store

    Where nothing was uploaded since the server started, the time is shown as a dash, or null in JSON.
    """
    answer = with_client(server, lambda client: client.admin.tier_status())
    document = message_document(answer)
    if answer.last_successful_upload_ms < 0:
        document["last_successful_upload_ms"] = None
    if as_json:
        print_json(document)
    else:
        rows = [
            ("store", answer.store_url),
            ("id of the store", answer.store_id),
            ("owner epoch", str(answer.epoch)),
            ("objects", str(answer.live_object_count)),
            ("size of the objects", str(ByteSize(answer.live_bytes))),
            ("slices in the objects", str(answer.live_slice_count)),
            ("objects to be deleted", str(answer.dropped_object_count)),
            ("size of these", str(ByteSize(answer.dropped_bytes))),
            ("waits for upload", str(ByteSize(answer.pending_upload_bytes))),
            ("last successful upload", utc_time(answer.last_successful_upload_ms)),
            ("last upload error", answer.last_upload_error or None),
            ("offline partitions", str(len(answer.offline_partitions))),
        ]
        print_table(("WHAT", "VALUE"), rows)
        print_offline(answer.offline_partitions)
        if answer.HasField("takeover"):
            _print_takeover(answer.takeover)


def _print_takeover(takeover: admin_pb2.Takeover) -> None:
    click.echo(
        f"another server, {takeover.owner}, has owned this store since epoch {takeover.epoch}"
        f" ({utc_time(takeover.time_ms) or 'no time'}): this one refuses all other requests with NOT_OWNER,"
        " and the numbers above are old; use that server, or restart this one, which takes the store back"
    )


@tier.command()
@click.argument("topics", nargs=-1)
@click.option(
    "--delete-local", is_flag=True, help="Also delete local segments that are committed in the object store."
)
@json_option
@server_option
def upload(topics: tuple[str, ...], delete_local: bool, as_json: bool, server: str) -> None:
    """Roll and upload the active segments of TOPICS, or of all.

    Uploads every partition that is online. If one of these topics has a partition that is offline, standard
    error names it, and the exit code is 1.
    """
    answer = with_client(server, lambda client: client.admin.upload(topics, delete_local=delete_local))
    if as_json:
        print_json(message_document(answer))
    else:
        click.echo(
            f"uploaded {counted(answer.slice_count, 'slice')} in {counted(answer.object_count, 'object')}, "
            f"{ByteSize(answer.size_bytes)}; "
            f"deleted {counted(answer.deleted_segment_count, 'local segment')}"
        )
    if answer.offline_partitions:
        print_offline(answer.offline_partitions, err=True)
        raise DataDirectoryError(
            "offline partitions were not uploaded; mend the faults that are named above",
            partitions=",".join(f"{one.topic}-{one.partition}" for one in answer.offline_partitions),
        )
