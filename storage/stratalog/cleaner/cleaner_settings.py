"""The settings of a process's cleaner: Kafka's broker keys with Kafka's defaults.

Each field names its key. The configuration checks ranges; this class checks rules over several keys, and
changes that are too large at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.base.errors import InvalidConfigError
from stratalog.log.config_key import FLOAT_MAX

MIN_MAP_BYTES = 1 << 20
"""A worker's key map has at least this much memory: about forty thousand keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """Settings of all workers. Immutable, hence thread-safe."""

    is_enabled: bool = True
    """`log.cleaner.enable`: compact logs. If false, only their retention is applied."""
    thread_count: int = 1
    """`log.cleaner.threads`: logs that are cleaned at a time. Raise it if disks and cores are idle while logs
    wait; the workers share `map_bytes`."""
    map_bytes: int = 128 << 20
    """`log.cleaner.dedupe.buffer.size`: memory for the keys of all cleans together, 24 bytes a key. Raise it
    if one clean does not reach the end of a log's dirty part."""
    map_load_factor: float = 0.9
    """`log.cleaner.io.buffer.load.factor`: a key map is full when this part of it is used."""
    io_buffer_bytes: int = 512 << 10
    """`log.cleaner.io.buffer.size`: memory of all workers together for reading and writing."""
    max_bytes_per_s: float = FLOAT_MAX
    """`log.cleaner.io.max.bytes.per.second`: bound for reads and writes of all workers together."""
    backoff_ms: int = 15_000
    """`log.cleaner.backoff.ms`: pause of a worker that found no log to clean."""

    @property
    def map_bytes_per_thread(self) -> int:
        return self.map_bytes // self.thread_count

    def require_consistent(self) -> None:
        """Raise InvalidConfigError (fields name, value, allowed) if a worker would have less than
        MIN_MAP_BYTES."""
        if self.map_bytes_per_thread < MIN_MAP_BYTES:
            allowed = (
                f"at least {MIN_MAP_BYTES} for each of log.cleaner.threads, which is {self.thread_count}"
            )
            raise InvalidConfigError(
                f"log.cleaner.dedupe.buffer.size is too small for so many threads; give it {allowed}",
                name="log.cleaner.dedupe.buffer.size",
                value=self.map_bytes,
                allowed=allowed,
            )

    def require_step_from(self, current: CleanerSettings) -> None:
        """Allow at most double and at least half of the workers, so that a typing error does little harm.

        Raises InvalidConfigError (fields name, value, allowed), also as `require_consistent` does.
        """
        least, most = max(1, current.thread_count // 2), current.thread_count * 2
        if not least <= self.thread_count <= most:
            allowed = f"at least {least} and at most {most}"
            raise InvalidConfigError(
                f"log.cleaner.threads can at most double or halve at once; give it {allowed}",
                name="log.cleaner.threads",
                value=self.thread_count,
                allowed=allowed,
            )
        self.require_consistent()
