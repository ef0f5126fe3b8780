"""What the cleaner of a process goes by: Kafka's broker keys with Kafka's defaults.

Each field names its key. Ranges are checked where the values come in; what only several keys together can
break, and what may not be altered at once, is checked here.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.base.errors import InvalidConfigError
from stratalog.log.config_key import FLOAT_MAX

MIN_MAP_BYTES = 1 << 20
"""A worker's key map has at least this much memory: about forty thousand keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """Immutable, hence thread-safe."""

    is_enabled: bool = True
    """`log.cleaner.enable`: logs are compacted. Without it only their retention goes on."""
    thread_count: int = 1
    """`log.cleaner.threads`: so many logs are cleaned at a time. More where disks and cores are idle while
    logs wait; each worker has its part of `map_bytes`."""
    map_bytes: int = 128 << 20
    """`log.cleaner.dedupe.buffer.size`: memory for the keys of all cleans together, 24 bytes a key. More
    where one clean does not reach the end of the dirty part of a log."""
    map_load_factor: float = 0.9
    """`log.cleaner.io.buffer.load.factor`: a key map is full when this part of it is used."""
    io_buffer_bytes: int = 512 << 10
    """`log.cleaner.io.buffer.size`: memory for reading and writing, of all workers together."""
    max_bytes_per_s: float = FLOAT_MAX
    """`log.cleaner.io.max.bytes.per.second`: what all workers together read and write at most."""
    backoff_ms: int = 15_000
    """`log.cleaner.backoff.ms`: a worker that found nothing to clean looks again after this long."""

    @property
    def map_bytes_per_thread(self) -> int:
        return self.map_bytes // self.thread_count

    def require_consistent(self) -> None:
        """Raises InvalidConfigError (fields name, value, allowed) where the workers would have no memory."""
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
        """The number of workers is halved or doubled at most, so that a slip of the keyboard does little.

        Raises InvalidConfigError (fields name, value, allowed), also as `require_consistent` does.
        """
        least, most = max(1, current.thread_count // 2), current.thread_count * 2
        if not least <= self.thread_count <= most:
            allowed = f"at least {least} and at most {most}, half and double of what it is"
            raise InvalidConfigError(
                f"log.cleaner.threads cannot be altered so much at once; give it {allowed}",
                name="log.cleaner.threads",
                value=self.thread_count,
                allowed=allowed,
            )
        self.require_consistent()
