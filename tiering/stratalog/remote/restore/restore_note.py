"""A note in the target of a restore that is under way: which commits it restores.

    {"format":"stratalog-restore","read_version":N,"source_id":UUID,"seqs":[CATALOG,SHARD 0,...],"crc":N}

The source may go on while a restore is interrupted, so "now" would be another moment for the same command.
The note is put before the first object and deleted behind the identity. It lies among the probes: one that
stays is swept, and no server takes a target without an identity for a store.
"""

from __future__ import annotations

import contextlib
from typing import Final, NamedTuple
from uuid import UUID

from stratalog.base.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreCorruptError,
    StoreError,
)
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.json_document import (
    FORMAT_VERSION,
    decode_fields,
    format_json,
    plain_bytes,
    plain_text,
    prove_checksum,
    to_integer,
    with_checksum,
)
from stratalog.remote.store_layout import StoreLayout

RESTORE_NOTE_KEY: Final = StoreLayout(None).scratch_prefixes[0] + "restore.json"
_FORMAT = "stratalog-restore"


class RestoreNote(NamedTuple):
    """The commits of a restore. Immutable."""

    source_id: UUID
    seqs: tuple[int, ...]
    """Those of the catalog, then of the shards."""

    @staticmethod
    def find(target: ObjectStore) -> RestoreNote | None:
        """The note of an attempt that was not finished; None without one. Raises StoreCorruptError if it is
        damaged, StoreError."""
        try:
            data = target.get(RESTORE_NOTE_KEY).data
        except ObjectNotFoundError:
            return None
        try:
            return _decode(data)
        except StoreCorruptError as error:
            raise StoreCorruptError(
                "the note of an interrupted restore is damaged; restore to an empty target",
                store=target.url,
                key=RESTORE_NOTE_KEY,
                reason=error.message,
            ) from error

    def begin(self, target: ObjectStore) -> None:
        """Put the note, unless an earlier attempt has. Raises as `require_no_other`."""
        with contextlib.suppress(PreconditionFailedError):
            target.put(RESTORE_NOTE_KEY, self._encoded(), if_absent=True)
        self.require_no_other(target)

    def require_no_other(self, target: ObjectStore) -> None:
        """Raise PreconditionFailedError if an earlier attempt there restores other commits; StoreError."""
        found = RestoreNote.find(target)
        if found is not None and found != self:
            raise PreconditionFailedError(
                "the target has an interrupted restore of other commits; go on with it by the same command"
                " without --until, or choose an empty target",
                store=target.url,
                source_id=found.source_id,
                catalog_commit=found.seqs[0],
                shard_commits=",".join(map(str, found.seqs[1:])),
            )

    def _encoded(self) -> bytes:
        fields = {
            "format": _FORMAT,
            "read_version": FORMAT_VERSION,
            "source_id": str(self.source_id),
            "seqs": list(self.seqs),
        }
        return with_checksum(format_json(fields).removesuffix("}").encode())


def end_note(target: ObjectStore) -> None:
    """Delete the note of a restore that is finished."""
    # One that stays does no harm, and a sweep of the new store deletes it.
    with contextlib.suppress(StoreError):
        target.delete_many([RESTORE_NOTE_KEY])


def _decode(data: bytes) -> RestoreNote:
    plain = plain_bytes(data, RESTORE_NOTE_KEY)
    if not prove_checksum(plain):
        raise StoreCorruptError("it has no checksum")
    fields = decode_fields(plain_text(plain, RESTORE_NOTE_KEY), RESTORE_NOTE_KEY, format_name=_FORMAT)
    seqs = fields.each("seqs", to_integer)
    if not seqs:
        raise fields.fault("seqs", "a commit of each log")
    return RestoreNote(fields.uuid("source_id"), seqs)
