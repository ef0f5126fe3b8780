"""A hosted partition as a candidate for an upload."""

from __future__ import annotations

from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.tier.partition_upload import UploadCandidate
from stratalog.server.partitions.hosted_partition import HostedPartition


def may_upload(partition: HostedPartition) -> bool:
    """Whether uploads of the topic are neither switched off nor paused."""
    return partition.log.local_log.config.is_uploading


def candidate_of(catalog: Catalog, partition: HostedPartition, *, is_tail: bool = False) -> UploadCandidate:
    """The partition's log, with the topic's hash key if its objects need key streams."""
    entry = catalog.by_id(partition.topic_id_partition.topic_id)
    assert entry is not None, "a hosted topic is in the catalog"
    config = partition.log.local_log.config
    hashing = KeyHashing(entry.hash_key, config.version_rule) if config.is_compacted else None

    def note_commit(refused: str | None) -> None:
        # Of a refused slice nothing is tiered: its records are uploaded again, or the topic is gone.
        if refused is None:
            partition.note_commit()

    return UploadCandidate(partition.log, hashing, is_tail, note_commit)
