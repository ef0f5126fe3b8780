"""Finds out, before a shard is claimed, that a head went back to an older state: the bucket was restored from
a snapshot, or an older version of the head was put back by hand.

A running process refuses such a head, because it remembers the newer one. After a restart these facts prove
that there was a newer one:

    fact                                                        a head that contradicts it
    the commit and the claim of a shard that a log directory    ends before that commit, has another one in
    has noted                                                   its place, or lacks the claim
    the birth of an object in the store                         of the shard: ends before that commit
    the commit of the catalog that a shard has used             of the catalog: ends before that commit

A birth is the newest commit that a writer had read or made when it began the object, whether the object was
committed later or not. So it proves that commit.

Each log directory has its notes in `seen-heads`: a checksum, then a line for each shard with the number of
the newest commit, its uuid, and the epoch and the uuid of the newest claim. They are written behind a claim,
which has landed by then, once a minute where there are new commits, and at a stop. Notes of any age are true,
so those of all directories count, and a directory that is new, missing or damaged is one proof less. They are
not in `claims-NNNN`, whose claims may never have landed.

A rebuilt head is accepted whatever was noted before: its claim has a later epoch, and an operator has read
what is lost. A restored store has another id, and needs a new data directory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import StoreCorruptError
from stratalog.base.filesystem import FileSystem
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.head.head import REBUILD, RESTORE
from stratalog.remote.metadata.shard.metadata_log import MetadataLog

logger = logging.getLogger(__name__)

SEEN_HEADS_FILE = "seen-heads"
REBUILD_OWNER = "stratalog tier rebuild-head"
"""The owner that the rebuilt head of a shard names until a server claims it."""
_CRC_DIGITS = 8


class SeenHead(NamedTuple):
    """The newest head of a shard that was seen. Immutable."""

    seq: int
    """Its newest commit."""
    uuid: UUID
    """The uuid of that commit."""
    epoch: int
    claim: UUID
    """The uuid of the claim that began the epoch."""


def format_seen_heads(seen: Mapping[int, SeenHead]) -> bytes:
    """The contents of a file with the heads of these shards."""
    lines = (f"{shard} {one.seq} {one.uuid} {one.epoch} {one.claim}\n" for shard, one in sorted(seen.items()))
    text = "".join(lines).encode()
    return f"{crc32c(text):0{_CRC_DIGITS}x}\n".encode() + text


def parse_seen_heads(data: bytes) -> dict[int, SeenHead]:
    """The heads in a file, by shard. Raises ValueError for any other content."""
    checksum, _, text = data.partition(b"\n")
    if checksum != f"{crc32c(text):0{_CRC_DIGITS}x}".encode():
        raise ValueError("the file does not match its checksum")
    seen: dict[int, SeenHead] = {}
    for line in text.decode("ascii").splitlines():
        shard, seq, uuid, epoch, claim = line.split(" ")
        seen[int(shard)] = SeenHead(int(seq), UUID(uuid), int(epoch), UUID(claim))
    return seen


class SeenHeads:
    """Notes the heads of some shards in log directories. The locks of the directories exclude other
    processes; of one directory one thread at a time may note."""

    def __init__(self, filesystem: FileSystem, shards: Iterable[MetadataLog]) -> None:
        self._filesystem = filesystem
        self._shards = tuple(shards)
        self._noted: dict[str, dict[int, SeenHead]] = {}

    def note(self, directory: str) -> None:
        """Note the newest heads at hand, durably; writes nothing where there is no news. Raises OSError."""
        before = self._noted.get(directory)
        if before is None:
            before = _read(self._filesystem, directory)
        seen = dict(before)
        for metadata in self._shards:
            state = metadata.state()
            if state.uuid is not None and state.claims:
                claim = state.claims[-1]
                seen[metadata.shard] = SeenHead(state.seq, state.uuid, claim.epoch, claim.uuid)
        if seen != before:
            replace_file(self._filesystem, f"{directory}/{SEEN_HEADS_FILE}", format_seen_heads(seen))
        self._noted[directory] = seen

    def try_note(self, directory: str) -> None:
        """Note the newest heads at hand. A failure is logged: the older notes stay true."""
        try:
            self.note(directory)
        except OSError as failure:
            logger.warning(
                "a log directory could not note the newest heads of the store, so a start may not notice that"
                " one went back, path=`%s`: %s",
                directory,
                failure,
            )


def require_newest_heads(
    filesystem: FileSystem, directories: Sequence[str], catalog: Catalog, shards: Sequence[MetadataLog]
) -> None:
    """Check that the heads of the catalog and of these shards did not go back to an older state, before any
    of the shards is claimed. Changes nothing. Raises StoreCorruptError, StoreError.
    """
    for metadata in shards:
        used_seq = metadata.state().catalog_seq
        # The catalog was read before the shard.
        if catalog.seq < used_seq and catalog.refresh().seq < used_seq:
            raise _went_back(catalog, known_by=metadata.layout.head_key, seen_seq=used_seq)
    noted = [(directory, _read(filesystem, directory)) for directory in directories]
    for metadata in shards:
        for directory, seen in noted:
            if metadata.shard in seen:
                _require_known(metadata, seen[metadata.shard], f"{directory}/{SEEN_HEADS_FILE}")
        key, birth = metadata.object_born_later()
        if key:
            raise _went_back(metadata, known_by=key, seen_seq=birth)


def _read(filesystem: FileSystem, directory: str) -> dict[int, SeenHead]:
    """The notes in a directory; none if it has none, or if they cannot be read."""
    path = f"{directory}/{SEEN_HEADS_FILE}"
    try:
        return parse_seen_heads(filesystem.read_file(path)) if filesystem.exists(path) else {}
    except (ValueError, OSError) as failure:
        logger.warning(
            "the newest heads that a log directory has seen cannot be read, so they prove nothing,"
            " path=`%s`: %s",
            path,
            failure,
        )
        return {}


def _require_known(metadata: MetadataLog, seen: SeenHead, path: str) -> None:
    """Check that the head follows from the one that was seen. Raises StoreCorruptError."""
    state = metadata.state()
    if state.unknown_action is not None:
        return  # its claims are not all known, and ours will be refused
    if any(one.owner == REBUILD_OWNER and one.epoch > seen.epoch for one in state.claims):
        return
    at_its_place = metadata.inline_commit(seen.seq)
    has_claim = any((one.epoch, one.uuid) == (seen.epoch, seen.claim) for one in state.claims)
    proof = {"known_by": path, "seen_seq": seen.seq, "seen_epoch": seen.epoch}
    if state.seq < seen.seq:
        raise _went_back(metadata, **proof)
    if not has_claim or (at_its_place is not None and at_its_place.uuid != seen.uuid):
        raise StoreCorruptError(
            "a head went back to an older state, and other commits have come since; nothing was changed: stop"
            " every server, move this head to another key, and rebuild it: `stratalog tier rebuild-head`",
            **_fields(metadata),
            **proof,
        )


def _went_back(log: MetadataLog | Catalog, **proof: object) -> StoreCorruptError:
    return StoreCorruptError(
        f"a head went back to an older state, and nothing was changed; {RESTORE}, {REBUILD}, once this one is"
        " moved to another key",
        **_fields(log),
        **proof,
    )


def _fields(log: MetadataLog | Catalog) -> dict[str, object]:
    state = log.state()
    of_shard = {"shard": log.shard, "epoch": state.epoch} if isinstance(log, MetadataLog) else {}
    return {"key": log.layout.head_key, "store": log.store_url, "seq": state.seq, **of_shard}
