"""Settings of a log manager."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.segment.indexes.index_page_cache import DEFAULT_MAX_BYTES
from stratalog.segment.open_files import DEFAULT_MAX_OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class LogManagerSettings:
    """Settings of a log manager. Immutable, hence thread-safe."""

    data_dirs: tuple[str, ...]
    """Where the logs are; absolute, at least one. Created where they are missing. New partitions go where the
    fewest are."""
    cordoned_dirs: tuple[str, ...] = ()
    """Those of `data_dirs` that take no new partitions, until `DirectorySet.alter_cordons` says otherwise."""
    max_open_files: int = DEFAULT_MAX_OPEN
    """Log files that are kept open at most; more descriptors are needed only while more are in use at
    once."""
    index_cache_bytes: int = DEFAULT_MAX_BYTES
    """Memory for pages of index files that were read."""
    tail_bytes: int = 0
    """Memory for the newest batches of all logs together, which are read without their files; 0: none."""
    file_delete_delay_ms: int = 60 * 1000
    """Directories of deleted partitions are removed after this long. It can be changed while the manager is
    open."""
    producer_id_expiration_ms: int = 24 * 60 * 60 * 1000
    """A log forgets a producer that has sent nothing for this long and has no open transaction. Longer than a
    client may retry: a batch that it sends again afterwards is stored again."""
    producer_id_expiration_check_interval_ms: int = 10 * 60 * 1000
    """How often such producers are looked for."""
    max_log_producer_count: int = 50_000
    """Producers that a log remembers at most. For a new one, those that have been idle for longest are
    forgotten; where all have written lately, the new one is refused."""
    max_producer_count: int = 200_000
    """Producers that all logs together remember at most, about a kilobyte each. See `IdleProducers`."""
    written_by_broker: bool = False
    """Kafka wrote the logs, and they were perhaps copied file by file. So the files of leader epochs may be
    older than the batches: what is newer is learnt from these, in a recovery (our own files have each epoch
    before a batch has it). And a hole between segments is one that compaction left, even above the recovery
    point."""
