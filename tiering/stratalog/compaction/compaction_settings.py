"""How much a compaction may take at once, and when rewriting pays."""

from __future__ import annotations

import dataclasses

from stratalog.log.config_key import FLOAT_MAX
from stratalog.objectstore.counted import GET_PRICE, PUT_PRICE

MAX_INPUTS_OF_A_REPLACE = 500
"""The metadata protocol's limit for one `replace`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """Settings of the planner and of the jobs. Immutable."""

    spool_directory: str
    """Absolute path of a directory for what does not fit memory. It belongs to one compactor alone, which
    empties it whenever it begins: nothing in it outlives a job.
    """

    max_inputs_per_job: int = 64
    """Objects that one job reads, each over two connections. Default 64, at least 2 (one alone
    makes no slice fewer) and at most 500. Raise it where objects are tiny and the store is far away. A
    partition whose full slices are more is compacted all the same, in one job of up to 500.
    """

    max_job_bytes: int = 1 << 30
    """Data that the planner gathers into one job. Default 1 GiB. A partition whose own run is larger is
    compacted all the same, in one job that exceeds this, without any other: a bound that could never be met
    would leave its tombstones for ever. No output slice has more.
    """

    max_partition_bytes: int = 0
    """Data of one partition that a job compacts at once, if that is more than `max_job_bytes`. Raise it where
    many processes share a job.
    """

    target_object_bytes: int = 256 << 20
    """Objects below this size are merged with their likes. Default 256 MiB; raise it to have fewer requests
    in scans.
    """

    min_live_ratio: float = 0.5
    """An object with a smaller part of live bytes is rewritten. Default 0.5: at most twice the live bytes are
    stored.
    """

    merge_fanout: int = 4
    """This many objects of one size class become one. Default 4; at least 3, or a merge might not lower their
    number.
    """

    read_chunk_bytes: int = 4 << 20
    """Bytes that are taken from a data stream at once. Default 4 MiB. A larger record batch is read whole."""

    job_memory_bytes: int = 96 << 20
    """Bytes of its inputs (half) and outputs that a job keeps in memory; beyond, it takes files in
    `spool_directory`. Default 96 MiB. Two chunks, two parts of outputs, key blocks and one bit a record come
    on top."""

    max_scratch_bytes: int = 2**63 - 1
    """Bytes of these files, and of the copies of slices whose keys must be hashed. A job that may need more,
    or more than the disk has free, does not begin. Default: what is free."""

    output_part_bytes: int = 16 << 20
    """Bytes of a part of an output: they are sent while more are written. Default 16 MiB; stores take no less
    than 5 MiB. Raise it where requests are dear; an output has at most 10,000 parts.
    """

    hash_part_entries: int = 1 << 20
    """Keys that are sorted in memory at once if a slice has no usable key stream. Default 1 Mi, about 24
    MiB.
    """

    retry_backoff_ms: int = 5 * 60_000
    """A partition whose compaction failed is left alone this long. Default 5 minutes."""

    max_bytes_per_s: float = FLOAT_MAX
    """Bytes that the jobs of all shards read and write together. Default: no limit."""

    max_requests_per_s: float = FLOAT_MAX
    """Requests of these reads and writes. Default: no limit."""

    max_shards: int = 2
    """Shards that are compacted at once, periodically, each in a process of up to 256 MiB. Default 2. Raise
    it where the machine has processors and memory to spare.
    """

    shard_count: int = 1
    """Shards whose jobs share the limits."""

    get_price: float = GET_PRICE
    """US dollars for 1,000 GET requests, for the price of a plan. Default: S3 Standard, US East."""

    put_price: float = PUT_PRICE
    """US dollars for 1,000 PUT requests. Default: S3 Standard, US East."""

    storage_price: float = 0.023
    """US dollars for a GiB in a month. Default: S3 Standard, US East."""

    def __post_init__(self) -> None:
        assert self.spool_directory.startswith("/"), "paths are absolute"
        assert 2 <= self.max_inputs_per_job <= MAX_INPUTS_OF_A_REPLACE
        assert self.merge_fanout >= 3
        assert 0 <= self.min_live_ratio < 1
        assert (
            min(self.max_job_bytes, self.target_object_bytes, self.read_chunk_bytes, self.hash_part_entries)
            > 0
        )
        assert min(self.max_scratch_bytes, self.job_memory_bytes) >= 0
        assert self.output_part_bytes > 0
        assert min(self.max_bytes_per_s, self.max_requests_per_s) > 0
        assert min(self.max_shards, self.shard_count) >= 1

    @property
    def limit_parts(self) -> int:
        """The parts into which the limits are divided: one for each shard that may be at work, of which one
        is for a compaction that people have started."""
        return min(self.max_shards + 1, self.shard_count)

    @property
    def shard_bytes_per_s(self) -> float:
        """The part of one shard."""
        return self.max_bytes_per_s / self.limit_parts

    @property
    def shard_requests_per_s(self) -> float:
        """The part of one shard."""
        return self.max_requests_per_s / self.limit_parts
