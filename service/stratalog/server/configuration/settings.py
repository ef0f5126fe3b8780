"""What a server can be told, parsed once at the edge.

Settings hold values, never components. Defaults suit a small machine; every field says what it does and when
to change it. The command line fills them from options and from ``STRATALOG_*`` environment variables.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from stratalog.base.errors import InvalidConfigError
from stratalog.objectstore.open_store import store_directory
from stratalog.server.configuration.broker_config import BrokerConfig

KIB = 1 << 10
MIB = 1 << 20

DEFAULT_LISTEN = "127.0.0.1:9190"
MAY_BE_ZERO = ("compaction_ms", "max_silence_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Everything `stratalog.server.app` needs to know. Raises InvalidConfigError where a value is out of
    range.
    """

    data_dir: str
    """Local logs live here. One process at a time; empty or missing is fine, also on a store that has data.
    """

    log_dirs: tuple[str, ...] = ()
    """More directories of local logs, each on a disk of its own. New partitions go where the fewest are; a
    disk that fails takes its own partitions offline and no others."""

    metrics_listen: str = ""
    """HOST:PORT of an HTTP endpoint with metrics for Prometheus; empty: none. Port 0 takes a free one. There
    is no authentication: keep it private."""

    listen: str = DEFAULT_LISTEN
    """HOST:PORT. Port 0 takes a free one, which `Server.port` tells. There is no authentication yet: keep it
    private.
    """

    store_url: str = ""
    """`file:///dir`, `s3://bucket/prefix` or `memory://`. Empty: a directory beside the data directory,
    `DATA_DIR.store`, so that losing or wiping the data directory leaves the store alone. Never inside it, nor
    around it.
    """

    max_request_bytes: int = 32 * MIB
    """Largest request message. No topic may set `max.message.bytes` above it."""

    default_fetch_bytes: int = 2 * MIB
    """A fetch that names no `max_bytes`. Below the 4 MiB that gRPC clients accept unless told otherwise."""

    default_fetch_partition_bytes: int = MIB
    """A partition of a fetch that names no `max_bytes`."""

    max_fetch_bytes: int = 32 * MIB
    """Larger wishes are cut to this."""

    max_fetch_wait_ms: int = 60_000
    """Longer long polls are cut to this."""

    max_request_memory_bytes: int = 512 * MIB
    """For the records of requests that are under way, over all connections: half for appends, of which one
    more is refused as retriable, half for answers of fetches, which get smaller. At least twice
    `max_request_bytes`. The process takes about twice as much: the transport copies. Raise it for many
    producers of large batches on a slow disk, lower it where memory is short.
    """

    max_call_count: int = 1_000
    """Calls and streams that are open at once; one more is refused before its message is read. Each partition
    of a producer, each consumer and each long poll is one. It bounds what the transport itself receives,
    which nothing else here can see: one message a call.
    """

    default_partition_count: int = 1
    """Of a topic that is created without saying."""

    max_partition_count: int = 10_000
    """Of one topic: each partition costs two open files and a directory."""

    append_thread_count: int = 4
    """Threads that write local logs; one partition uses one at a time. More help where fsync is slow and
    partitions many.
    """

    read_thread_count: int = 4
    """Threads that read local logs."""

    cold_read_thread_count: int = 8
    """Threads that read tiered data, apart from the others so that a slow store never delays hot reads."""

    cold_read_queue_count: int = 256
    """Reads of tiered data that may wait for a thread; one more is refused as retriable."""

    task_thread_count: int = 12
    """Threads of background tasks: one for each, so that a compaction of hours delays no look at the head."""

    admin_thread_count: int = 8
    """Threads of administrative calls; uploads and compactions that were asked for keep one each."""

    head_refresh_ms: int = 5_000
    """How often the metadata heads are read, and how soon a replaced owner stops accepting."""

    max_silence_ms: int = 60_000
    """Where no head could be read for longer, appends to tiered topics at `disk` are refused as retriable
    until one can: another owner may have taken over, and would not have these records. 0 never refuses;
    otherwise it is longer than `head_refresh_ms`. Lower it to lose less at a takeover, raise it to outlast
    outages of the store.
    """

    upload_ms: int = 5_000
    """Between passes of the uploader."""

    remote_retention_ms: int = 300_000
    """Between passes of retention over tiered data."""

    collector_ms: int = 300_000
    """Between passes that delete objects which a commit dropped longer ago than the grace."""

    fold_ms: int = 30_000
    """Between looks at whether a metadata head needs folding."""

    compaction_ms: int = 0
    """Between compactions of tiered data; 0 leaves it to `stratalog compaction run`."""

    config: Mapping[str, str] = field(default_factory=dict[str, str])
    """Keys of the server's own configuration, by Kafka's names: defaults of topics, retention, flushes, the
    cleaner. See docs/broker_configuration.md. What is altered at run time is stronger.
    """

    shutdown_grace_s: float = 5.0
    """Calls that are under way at a shutdown may finish for so long."""

    def __post_init__(self) -> None:
        for one in dataclasses.fields(self):
            value = getattr(self, one.name)
            if isinstance(value, int):
                _require(one.name, value, 0 if one.name in MAY_BE_ZERO else 1)
        BrokerConfig.from_overrides(self.config)
        if self.max_silence_ms:
            _require("max_silence_ms", self.max_silence_ms, self.head_refresh_ms + 1)
        _require("max_request_memory_bytes", self.max_request_memory_bytes, 2 * self.max_request_bytes)
        if self.shutdown_grace_s < 0:
            raise InvalidConfigError(
                "a setting is out of range",
                name="shutdown_grace_s",
                value=self.shutdown_grace_s,
                allowed=">= 0",
            )
        listen_address(self.listen)
        if self.metrics_listen:
            listen_address(self.metrics_listen, "metrics-listen")
        for directory in self.all_log_dirs:
            _require_apart(directory, self.effective_store_url)

    @property
    def all_log_dirs(self) -> tuple[str, ...]:
        """Absolute paths of the directories that hold logs; the first one is the data directory."""
        return tuple(map(os.path.abspath, (self.data_dir, *self.log_dirs)))

    @property
    def effective_store_url(self) -> str:
        """`store_url`, or the directory beside the data directory."""
        return self.store_url or default_store_url(self.data_dir)

    @property
    def max_receive_bytes(self) -> int:
        """What the transport accepts: a little more than a request may hold, so that our own error explains
        the rest.
        """
        return self.max_request_bytes + MIB

    @property
    def request_memory_share_bytes(self) -> int:
        """What appends, and what fetches may take of the request memory."""
        return self.max_request_memory_bytes // 2


def default_store_url(data_dir: str) -> str:
    """The embedded store that belongs to `data_dir`: a `file://` URL of the directory `DATA_DIR.store` beside
    it.
    """
    return "file://" + quote(os.path.abspath(data_dir) + ".store")


def _require_apart(data_dir: str, store_url: str) -> None:
    """The data directory may be lost, and with it all that is in it: the store must not be."""
    store_dir = store_directory(store_url)
    if store_dir is None:
        return
    places = os.path.realpath(store_dir), os.path.realpath(data_dir)
    if os.path.commonpath(places) in places:
        raise InvalidConfigError(
            "the store and the data directory must not lie one inside the other: the data directory may be"
            " lost, the store may not",
            name="store",
            value=store_url,
            data_dir=data_dir,
        )


def listen_address(listen: str, name: str = "listen") -> tuple[str, int]:
    """Split HOST:PORT ([HOST]:PORT for IPv6). Raises InvalidConfigError."""
    host, separator, port = listen.rpartition(":")
    if not separator or not host or not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
        raise InvalidConfigError(
            "the listen address must be HOST:PORT, for example " + DEFAULT_LISTEN,
            name=name,
            value=listen,
            allowed="HOST:PORT with a port from 0 to 65535",
        )
    return host, int(port)


def _require(name: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidConfigError("a setting is out of range", name=name, value=value, allowed=f">= {least}")
