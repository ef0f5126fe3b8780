"""The settings of a server's start, checked once at the edge.

Settings hold values, never components. Defaults suit a small machine; every field says what it does and when
to change it. Options, ``STRATALOG_*`` variables and the configuration file fill them: `settings_table` has
their names, units and ranges, and `start_settings` puts them together.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import quote

from stratalog.base.errors import InvalidConfigError
from stratalog.objectstore.open_store import store_directory
from stratalog.remote.metadata.catalog.catalog_bounds import DEFAULT_BOUNDS
from stratalog.remote.store_layout import MAX_SHARD_COUNT
from stratalog.server.configuration.broker_config import BrokerConfig

KIB = 1 << 10
MIB = 1 << 20

DEFAULT_LISTEN = "127.0.0.1:9190"
UNCOUNTED_CALL_COUNT = 200
"""Room for calls that are just being refused."""
MAX_CHECK_CALL_COUNT = 1_000
"""Health checks that may be open at once, beside some of each connection. They are open for an instant,
unless their message does not come or their answer is not read."""
MAX_CONNECTION_CHECK_COUNT = 8
"""Health checks that a connection may have open, however many the others have. A proxy in front of the server
sends those of several probes over one connection, and they may come together."""
MAX_CONNECTION_WATCH_COUNT = 4
"""Streams that watch the health, of one connection. A client of gRPC opens one for each service that it
checks there, and mostly checks one."""
MAY_BE_ZERO = (
    "compaction_ms",
    "drain_upload_s",
    "max_silence_ms",
    "metadata_disk_cache_bytes",
    "shard_count",
    "read_only",
    "insecure",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of `stratalog.server.app`. Immutable. Raises InvalidConfigError if a value is out of range."""

    data_dir: str
    """Directory of local logs, for one process at a time. It may be empty or missing, also on a store that
    has data."""

    log_dirs: tuple[str, ...] = ()
    """More directories of local logs, each on a disk of its own. New partitions go where the fewest are. A
    failed disk takes only its own partitions offline."""

    metrics_listen: str = ""
    """HOST:PORT of an HTTP endpoint with metrics for Prometheus; empty: none. Port 0 takes a free port. It
    has the TLS and the access file of gRPC."""

    listen: str = DEFAULT_LISTEN
    """HOST:PORT. Port 0 takes a free port; `Server.port` has its number. Beyond this machine it needs TLS and
    authentication, or `insecure`."""

    tls_cert: str = ""
    """File with the server's certificate in PEM, and behind it those of the authorities between; with
    `tls_key`. Read again when it changes. Empty: no TLS."""

    tls_key: str = ""
    """File with the key of the certificate in PEM, without a password."""

    tls_client_ca: str = ""
    """File with the authorities of client certificates in PEM. Every client needs a certificate of one of
    them then, for metrics, too. Empty: clients have none."""

    access_file: str = ""
    """TOML file with principals, their tokens, certificates, permissions and quotas; see docs/security.md.
    Read again when it changes. Empty: every client may do everything."""

    insecure: bool = False
    """Listen beyond this machine also without TLS or without authentication."""

    advertise: str = ""
    """HOST:PORT where clients reach this server, if that is not the listen address: behind a proxy, or in a
    container. It is written into the store, and a server that was replaced names it to its clients. Port 0 is
    the port of gRPC. Empty: the listen address, with the host's name where that is a wildcard."""

    store_url: str = ""
    """`file:///dir`, `s3://bucket/prefix` or `memory://`. Empty: the directory `DATA_DIR.store` beside the
    data directory, so that the store survives the loss of the data directory. Neither lies in the other."""

    shard_count: int = 0
    """Number of shards of the store, which is fixed when its first server creates it. 0: the store's own, and
    1 for a new one. Several servers of one store need one each."""

    own_shards: tuple[int, ...] = ()
    """Numbers of the shards that this server claims and serves; other servers have the others. Empty: all. No
    two servers that run may own the same shard: the later one would take it over."""
    read_only: bool = False
    """Serve reads of tiered topics from the store alone, without a claim, beside the owner. The data
    directory must be empty or missing, and is of no use afterwards."""

    follow_ms: int = 2_000
    """Period of looks at the store of a read-only server: a start takes it for `head_refresh_ms` then."""

    log_level: str = "info"
    """Least level of what the process logs: debug, info, warning or error. `stratalog server start` sets it;
    a program that embeds the server has a logging of its own."""

    log_format: str = "text"
    """Form of these lines: text or json."""

    max_request_bytes: int = 32 * MIB
    """Largest request message. No topic may set `max.message.bytes` above it."""

    default_fetch_bytes: int = 2 * MIB
    """Size of the answer to a fetch without `max_bytes`. Below 4 MiB, the default limit of gRPC clients."""

    default_fetch_partition_bytes: int = MIB
    """Size of one partition in the answer, if the fetch has no `max_bytes` for it."""

    max_fetch_bytes: int = 32 * MIB
    """Upper bound for `max_bytes` of a fetch."""

    max_fetch_wait_ms: int = 60_000
    """Upper bound for the wait of a fetch."""

    max_request_memory_bytes: int = 512 * MIB
    """Memory for the records of running requests, over all connections. Half is for appends: one more is
    refused as retriable. Half is for answers of fetches, which get smaller; a quarter of this half may hold
    tiered data. At least twice `max_request_bytes`. The process takes about twice as much, since the
    transport copies, and an eighth for the newest records, which are read from memory (`tail_bytes`).
    Raise it for many producers of large batches on a slow disk, lower it if memory is short."""

    max_append_call_count: int = 1_000
    """Appends and streams of appends that may be open at once; one more is refused as retriable. Each
    partition of a producer is one stream. Single appends at `object`, which wait for the store, have as many
    beside these. Raise it for more producers; see `max_call_count` for its price."""

    max_read_call_count: int = 1_000
    """Fetches and reads that may be open at once, as single calls or as streams; one more is refused as
    retriable. Each consumer and each long poll is one."""

    max_admin_call_count: int = 200
    """All other calls that may be open at once; one more is refused as retriable."""

    max_connection_call_count: int = 1_000
    """Calls of one connection that may be open at once, as single calls or as streams; one more is refused as
    retriable. Raise it where a proxy puts many clients on one connection."""

    max_connection_count: int = 4_096
    """Connections that may be open at once; one more is closed as soon as it is accepted, without words.
    Each takes a descriptor: a server that may not open enough files takes fewer, with a warning. Raise it for
    more clients, with the limit of open files."""

    keepalive_ms: int = 60_000
    """A connection from which nothing has come for this long is pinged. Lower it so that the calls of a
    client that is gone without a word, as where its machine or a NAT between has died, end sooner."""

    keepalive_timeout_ms: int = 20_000
    """A connection that has not answered a ping for this long is closed, which ends its calls. Raise it for
    clients that stand still for longer."""

    handshake_timeout_ms: int = 10_000
    """A connection that is not ready for calls this long after it was accepted is closed: one that does not
    finish the handshake of TLS, or says nothing."""

    max_idle_ms: int = 600_000
    """A connection without a call for this long is closed; a client connects again for its next call."""

    default_partition_count: int = 1
    """Number of partitions of a topic that is created without one."""

    max_partition_count: int = 10_000
    """Most partitions of one topic. Each costs two open files and a directory."""

    max_topic_count: int = DEFAULT_BOUNDS.topic_count
    """Most topics of the store, counted when one is created. Each has a row in the memory of all servers of
    the store."""

    max_total_partition_count: int = DEFAULT_BOUNDS.partition_count
    """Most partitions of all topics of the store, counted when some are created."""

    max_partition_producer_count: int = 50_000
    """Producer ids that a partition remembers. For a new one those that have been idle for longest, and for
    15 minutes, are forgotten before they expire; where there are none, the new one is refused. Raise it for
    topics with many short-lived producers; each takes about a kilobyte."""

    max_producer_count: int = 200_000
    """Producer ids that all partitions of the server together remember. Nearly there, idle ones of all
    partitions are forgotten as above; where there are none, a new one is refused."""

    append_thread_count: int = 2
    """Threads that write the local logs of a log directory; one partition uses one at a time. They do not
    wait for fsyncs, and appends that take long to decompress have others. More mostly wait for the
    interpreter's lock: raise it where a disk takes long for a write, as one behind a network does."""

    read_thread_count: int = 4
    """Threads that read the local logs of a log directory."""

    cold_read_thread_count: int = 8
    """Threads that read tiered data, and as many for look-ups in it. They are separate, so that a slow store
    never delays hot reads."""

    cold_read_queue_count: int = 256
    """Look-ups in tiered data that may wait for a thread; one more is refused as retriable. Reads wait for
    their turn, however many there are; about half of this number of them may be one call's."""

    task_thread_count: int = 24
    """Threads of background tasks: one for each, and some for work that is done once, so that a long
    compaction delays no head refresh."""

    admin_thread_count: int = 8
    """Threads of administrative calls that are short; as many for changes of topics, which may take minutes;
    and as many for calls that read much: plans, explanations, segments and slices."""

    head_refresh_ms: int = 5_000
    """Period of reading the metadata heads. A replaced owner stops accepting appends this soon."""

    max_silence_ms: int = 60_000
    """If no head could be read for this long, appends at `disk` to tiered topics are refused as retriable
    until one can be read: another owner may have taken over, without these records. 0 never refuses;
    otherwise it is longer than `head_refresh_ms`. Lower it to lose less at a takeover, raise it to outlast
    outages of the store."""

    metadata_request_ms: int = 30_000
    """A request for metadata that the store has not answered for this long is given up: its outcome is
    unknown, and the next pass finds it out. Raise it where a store takes longer for a few megabytes."""

    upload_ms: int = 5_000
    """Period of the uploader."""

    remote_retention_ms: int = 300_000
    """Period of retention over tiered data."""

    collector_ms: int = 300_000
    """Period of the collector, which deletes objects that were dropped longer ago than the grace, and orphans
    of that age."""

    history_ms: int = 30 * 24 * 60 * 60 * 1000
    """How long the metadata's commits stay in the history in the store."""

    fold_ms: int = 5_000
    """Period of the check whether a metadata head needs folding. A commit waits for a fold only where a head
    has outgrown its limits four times."""

    metadata_cache_bytes: int = 64 * MIB
    """Memory for pages of the metadata, over all shards: the live slices of tiered partitions. A page that is
    neither here nor on disk costs one request."""

    metadata_disk_cache_bytes: int = 512 * MIB
    """Space for these pages in the directory `pages` of the data directory, kept over a restart: 10 million
    slices. 0: none, and what is there is deleted. It gives way while the directory has less than
    `log.dir.min.free.bytes`."""

    metadata_thread_count: int = 8
    """Requests for parts of the metadata at once: at the start, and while a head is folded."""

    compaction_ms: int = 60_000
    """Period of looks for tiered data to compact or to merge; 0: only by `stratalog compaction run`."""

    config: Mapping[str, str] = field(default_factory=dict[str, str])
    """Keys of the server's configuration, by Kafka's names: defaults of topics, retention, flushes, the
    cleaner. See docs/broker_configuration.md. Keys that are altered at run time are stronger."""

    shutdown_grace_s: float = 5.0
    """Time that running calls have to finish at a shutdown."""

    drain_upload_s: float = 0.0
    """Time for the upload of what tiered topics have on this machine alone, at a shutdown, after the calls
    have ended. Segments are rolled for it. What is not uploaded by then is uploaded after the next start. 0:
    nothing is uploaded. Raise it for a machine that does not come back."""

    def __post_init__(self) -> None:
        for one in dataclasses.fields(self):
            value = getattr(self, one.name)
            if isinstance(value, int):
                _require(one.name, value, 0 if one.name in MAY_BE_ZERO else 1)
        BrokerConfig.from_overrides(self.config)
        _require_shards(self.shard_count, self.own_shards)
        if 0 < self.max_silence_ms <= self.head_refresh_ms:
            raise InvalidConfigError(
                "the silence of the store that is borne must be longer than the period of looks at it",
                name="max_silence_ms",
                value=self.max_silence_ms,
                allowed=f"0 for never, or longer than {self.head_refresh_ms} ms",
            )
        if self.max_request_memory_bytes < 2 * self.max_request_bytes:
            raise InvalidConfigError(
                "the memory of requests must hold the largest append and the largest answer",
                name="max_request_memory_bytes",
                value=self.max_request_memory_bytes,
                allowed=f"at least twice the largest request, which has {self.max_request_bytes} bytes",
            )
        for name in ("shutdown_grace_s", "drain_upload_s"):
            _require(name, getattr(self, name), 0)
        _require_tls_files(self)
        _require_guarded(self, "listen", self.listen)
        if self.metrics_listen:
            _require_guarded(self, "metrics-listen", self.metrics_listen)
        if self.advertise:
            listen_address(self.advertise, "advertise")
            if _is_wildcard(self.advertise):
                raise InvalidConfigError(
                    "clients cannot connect to a wildcard address; advertise the host's name or an address",
                    name="advertise",
                    value=self.advertise,
                )
        for directory in self.all_log_dirs:
            _require_apart(directory, self.effective_store_url)

    @property
    def all_log_dirs(self) -> tuple[str, ...]:
        """Absolute paths of the directories that hold logs; the first one is the data directory."""
        return tuple(map(os.path.abspath, (self.data_dir, *self.log_dirs)))

    def endpoint(self, port: int) -> str:
        """HOST:PORT where clients reach the server that listens on `port`."""
        address = self.advertise or self.listen
        host, advertised_port = listen_address(address)
        if _is_wildcard(address):
            host = socket.gethostname()
        return f"{host}:{(advertised_port if self.advertise else 0) or port}"

    @property
    def effective_store_url(self) -> str:
        """`store_url`, or the directory beside the data directory."""
        return self.store_url or default_store_url(self.data_dir)

    @property
    def max_receive_bytes(self) -> int:
        """Largest message of the transport: above `max_request_bytes`, so that our own error explains it."""
        return self.max_request_bytes + MIB

    @property
    def max_call_count(self) -> int:
        """Calls of all kinds that may be open at once, which bounds the messages that the transport receives,
        one for each call. Each kind has a cap of its own below it, so that only calls which are just being
        refused come close."""
        # Twice: single appends that wait for their commit count apart from the others.
        appends = 2 * self.max_append_call_count
        counted = appends + self.max_read_call_count + self.max_admin_call_count
        checks = MAX_CHECK_CALL_COUNT + MAX_CONNECTION_CHECK_COUNT * self.max_connection_count
        return counted + checks + self.max_watch_call_count + UNCOUNTED_CALL_COUNT

    @property
    def max_watch_call_count(self) -> int:
        """Streams that watch the health that may be open at once: as many as all connections may have, so
        those of one take no room from another."""
        return MAX_CONNECTION_WATCH_COUNT * self.max_connection_count

    @property
    def max_stream_count(self) -> int:
        """Calls of one connection that the transport lets through, with room for health checks and for calls
        that are just being refused: beyond it the client's transport lets them wait without a word."""
        return self.max_connection_call_count + UNCOUNTED_CALL_COUNT

    @property
    def request_memory_share_bytes(self) -> int:
        """Share of the request memory for appends, and for fetches."""
        return self.max_request_memory_bytes // 2

    @property
    def tail_bytes(self) -> int:
        """Memory for the newest records of all partitions, beside that of requests."""
        return self.max_request_memory_bytes // 8


def default_store_url(data_dir: str) -> str:
    """`file://` URL of the directory `DATA_DIR.store` beside `data_dir`."""
    return "file://" + quote(os.path.abspath(data_dir) + ".store")


def _require_apart(data_dir: str, store_url: str) -> None:
    """Raise InvalidConfigError if one lies in the other: only the data directory may be lost."""
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


def _require_tls_files(settings: ServerSettings) -> None:
    """Raise InvalidConfigError if a file of TLS is given without those that it needs."""
    if bool(settings.tls_cert) is not bool(settings.tls_key):
        raise InvalidConfigError(
            "TLS needs a certificate and its key; give both or neither",
            name="tls-cert" if settings.tls_key else "tls-key",
            value="",
        )
    if settings.tls_client_ca and not settings.tls_cert:
        raise InvalidConfigError(
            "client certificates need TLS; give --tls-cert and --tls-key, too",
            name="tls-client-ca",
            value=settings.tls_client_ca,
        )


def _require_guarded(settings: ServerSettings, name: str, address: str) -> None:
    """Raise InvalidConfigError if strangers could come in at the address."""
    host, _ = listen_address(address, name)
    if settings.insecure or is_loopback(host):
        return
    missing = [
        option
        for option, is_set in (
            ("--tls-cert and --tls-key", settings.tls_cert),
            ("--access-file or --tls-client-ca", settings.access_file or settings.tls_client_ca),
        )
        if not is_set
    ]
    if missing:
        raise InvalidConfigError(
            "the address can be reached from other machines, so it needs TLS and authentication; add"
            f" {', and '.join(missing)}, listen on 127.0.0.1, or accept that every stranger may read and"
            " change everything, with --insecure",
            name=name,
            value=address,
        )


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine reach the host."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _is_wildcard(address: str) -> bool:
    """Whether HOST of HOST:PORT stands for all addresses of the machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return host == "*"


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


def _require(name: str, value: float, least: int) -> None:
    if value < least:
        raise InvalidConfigError(
            "a setting is out of range; choose one of the allowed values",
            name=name,
            value=value,
            allowed=f">= {least}",
        )


def _require_shards(shard_count: int, own_shards: tuple[int, ...]) -> None:
    end = shard_count or MAX_SHARD_COUNT
    if shard_count > MAX_SHARD_COUNT:
        raise InvalidConfigError(
            "a store cannot have so many shards",
            name="shard_count",
            value=shard_count,
            allowed=f"1 to {MAX_SHARD_COUNT}",
        )
    if len(set(own_shards)) < len(own_shards) or not all(0 <= number < end for number in own_shards):
        raise InvalidConfigError(
            "a server owns shards of its store, each once",
            name="own_shards",
            value=",".join(map(str, own_shards)),
            allowed=f"numbers from 0 to {end - 1}",
        )
