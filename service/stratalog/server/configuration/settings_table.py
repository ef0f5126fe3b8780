"""All settings of a server's start, in the order of the help and of the example file.

The table is the authority for names, options, variables, ranges and texts; the fields of `ServerSettings` are
that for defaults. Options, the configuration file, `stratalog server config` and `deploy/stratalog.toml`
follow from it, and tests compare the documents with it. A setting that a server takes is a field of
`ServerSettings` and a row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from stratalog.log.config_key import INT_MAX
from stratalog.remote.metadata.catalog.catalog_bounds import MAX_BOUNDS
from stratalog.server.configuration.setting import (
    FLAG,
    Setting,
    SettingKind,
    choice_kind,
    decimal_kind,
    number_kind,
    number_list_kind,
    text_kind,
    text_list_kind,
)

MIB = 1 << 20
DAY_MS = 24 * 60 * 60 * 1000
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")

FILE = text_kind("FILE", "the path of a file, in UTF-8")
DIRECTORY = text_kind("DIR", "the path of a directory, in UTF-8")
ADDRESS = text_kind("HOST:PORT", "HOST:PORT with a port from 0 to 65535")
STORE = text_kind("URL", "file:///directory or s3://bucket/prefix")
SECONDS = number_kind("SECONDS", 1, INT_MAX, 1000)
"""Up to 68 years."""
SECONDS_OR_NEVER = number_kind("SECONDS", 0, INT_MAX, 1000)
DAYS = number_kind("DAYS", 1, 36_500, DAY_MS)
MEMORY_MIB = number_kind("MIB", 64, INT_MAX, MIB)
DISK_MIB = number_kind("MIB", 0, INT_MAX, MIB)
CALL_COUNT = number_kind("COUNT", 1, 1_000_000)
"""Far more calls than one process serves."""
SHARD_COUNT = number_kind("COUNT", 0, 10_000)
PERIOD_MS = number_kind("MS", 1, INT_MAX)
SIZE_BYTES = number_kind("BYTES", 1, INT_MAX)
THREAD_COUNT = number_kind("COUNT", 1, 1024)


def _option(name: str, field_name: str, kind: SettingKind, text: str, option: str = "") -> Setting:
    """A setting with an option, by default of its name."""
    return Setting(name=name, field_name=field_name, kind=kind, help=text, option=option or f"--{name}")


def _rare(field_name: str, kind: SettingKind, text: str) -> Setting:
    """A setting without an option, named after its field."""
    return Setting(name=field_name.replace("_", "-"), field_name=field_name, kind=kind, help=text)


_PLACES = (
    Setting(
        name="data-dir",
        field_name="data_dir",
        kind=DIRECTORY,
        help="The directory of local logs; created if it is missing. One process at a time uses it. Required"
        " without --read-only.",
        option="--data-dir",
        example="/var/lib/stratalog/data",
    ),
    _option(
        "log-dirs",
        "log_dirs",
        text_list_kind("DIR", "a list of paths of directories, in UTF-8"),
        "Another directory of local logs, on its own disk; may be repeated.",
        "--log-dir",
    ),
    _option("listen", "listen", ADDRESS, "Port 0 takes a free port and prints it."),
    _option(
        "advertise",
        "advertise",
        ADDRESS,
        "Address where clients reach this server, if it is not the listen address. Port 0 is the port of"
        " --listen.",
    ),
    _option(
        "metrics-listen",
        "metrics_listen",
        ADDRESS,
        "Serve metrics for Prometheus at this address, over HTTP; off by default. With the TLS and the access"
        " file of gRPC.",
    ),
    _option(
        "store",
        "store_url",
        STORE,
        "file:///dir or s3://bucket/prefix; credentials, region and endpoint as boto3 finds them. Default:"
        " the directory DATA_DIR.store beside the data directory.",
    ),
    _option(
        "read-only",
        "read_only",
        FLAG,
        "Serve the tiered records of the store beside its owner, and change nothing. Needs --store; keeps no"
        " local logs.",
    ),
    _option(
        "follow-interval",
        "follow_ms",
        SECONDS,
        "Seconds between looks at the store for news, with --read-only.",
    ),
    _option(
        "shards",
        "shard_count",
        SHARD_COUNT,
        "Number of shards of a new store, fixed for good: one for each server that is to share it. An"
        " existing store must have it. 0 is the store's own, and 1 for a new one.",
    ),
    _option(
        "own-shards",
        "own_shards",
        number_list_kind("NUMBERS", "numbers of shards, for example 0,2, or in a file [0, 2]", 9_999),
        "Numbers of the shards to claim and serve, for example 0,2. Other servers of the store serve the"
        " others. Default: all.",
    ),
)

_ACCESS = (
    Setting(
        name="tls-cert",
        field_name="tls_cert",
        kind=FILE,
        help="Serve with TLS: the server's certificate in PEM, with --tls-key. Read again when it changes.",
        option="--tls-cert",
        is_clients_too=True,
    ),
    Setting(
        name="tls-key",
        field_name="tls_key",
        kind=FILE,
        help="The key of the certificate in PEM, without a password.",
        option="--tls-key",
        is_clients_too=True,
    ),
    Setting(
        name="tls-client-ca",
        field_name="tls_client_ca",
        kind=FILE,
        help="The authorities of client certificates in PEM: every client needs one of theirs.",
        option="--tls-client-ca",
        is_clients_too=True,
    ),
    _option(
        "access-file",
        "access_file",
        FILE,
        "Principals, their tokens, permissions and quotas, in TOML. Read again when it changes. Without one,"
        " every client may do everything.",
    ),
    _option(
        "insecure", "insecure", FLAG, "Listen beyond this machine also without TLS or without authentication."
    ),
)

_WORK = (
    _option(
        "compaction-interval",
        "compaction_ms",
        SECONDS_OR_NEVER,
        "Seconds between looks for tiered data to compact or to merge; 0 leaves it to `compaction run`.",
    ),
    _option("upload-interval", "upload_ms", SECONDS, "Seconds between uploads of rolled segments."),
    _option(
        "history-days",
        "history_ms",
        DAYS,
        "Keep the metadata's commits in the store for this many days after they left the head.",
    ),
    _option(
        "max-silence",
        "max_silence_ms",
        SECONDS_OR_NEVER,
        "Refuse appends with durability=disk if the store has not answered for this many seconds; longer than"
        " head-refresh-ms, which is 5 seconds. 0 never refuses.",
    ),
)

_LIMITS = (
    _option(
        "max-request-memory",
        "max_request_memory_bytes",
        MEMORY_MIB,
        "Memory for the records of running requests. Half is for appends: above it, the server refuses more,"
        " and clients send them again. Half is for answers of fetches: near it, they get smaller. The process"
        " takes about twice as much memory, and an eighth for the newest records.",
    ),
    _option(
        "max-append-calls",
        "max_append_call_count",
        CALL_COUNT,
        "Appends and streams of appends that may be open at once; a producer has a stream for each of its"
        " partitions. One more is refused, and its client tries again. Single appends at `object`, which wait"
        " for the store, have as many beside these.",
    ),
    _option(
        "max-read-calls",
        "max_read_call_count",
        CALL_COUNT,
        "Fetches and reads that may be open at once: one for each consumer.",
    ),
    _option(
        "max-admin-calls",
        "max_admin_call_count",
        CALL_COUNT,
        "All other calls that may be open at once. Health checks have no such limit.",
    ),
    _option(
        "max-connections",
        "max_connection_count",
        CALL_COUNT,
        "Connections that may be open at once; one more is closed as soon as it comes.",
    ),
    _option(
        "drain-upload",
        "drain_upload_s",
        decimal_kind("SECONDS", 0, 86_400),
        "At a clean stop, upload what tiered topics have on this machine alone, for at most this many"
        " seconds; 0: leave it to the next start.",
    ),
    _option(
        "metadata-cache",
        "metadata_cache_bytes",
        MEMORY_MIB,
        "Memory for pages of the metadata: the live slices of tiered partitions, which are read from the"
        " store when they are wanted.",
    ),
    _option(
        "metadata-disk-cache",
        "metadata_disk_cache_bytes",
        DISK_MIB,
        "Space in the data directory for these pages, so that a first read after a restart asks the store for"
        " none; 0: none.",
    ),
)

_LOGGING = (
    _option("log-level", "log_level", choice_kind(LOG_LEVELS), "Least level of what is logged."),
    _option(
        "log-format",
        "log_format",
        choice_kind(LOG_FORMATS),
        "Log lines as text, or as JSON: time, level, logger, message, and fields of the message.",
    ),
)

_RARE_LIMITS = (
    _rare(
        "max_request_bytes",
        number_kind("BYTES", 1 << 20, 1 << 30),
        "Largest request message. No topic may set max.message.bytes above it.",
    ),
    _rare(
        "default_fetch_bytes",
        SIZE_BYTES,
        "Size of the answer to a fetch without max_bytes. gRPC clients take 4 MiB by default.",
    ),
    _rare(
        "default_fetch_partition_bytes",
        SIZE_BYTES,
        "Size of one partition in the answer, if the fetch has no max_bytes for it.",
    ),
    _rare("max_fetch_bytes", SIZE_BYTES, "Upper bound for max_bytes of a fetch."),
    _rare(
        "max_connection_call_count",
        CALL_COUNT,
        "Calls of one connection that may be open at once. Raise it where a proxy puts many clients on one.",
    ),
    _rare(
        "keepalive_ms",
        PERIOD_MS,
        "A connection from which nothing has come for this long is pinged. Lower it so that calls of clients"
        " that are gone without a word end sooner.",
    ),
    _rare(
        "keepalive_timeout_ms",
        PERIOD_MS,
        "A connection that has not answered a ping for this long is closed, which ends its calls.",
    ),
    _rare(
        "handshake_timeout_ms",
        PERIOD_MS,
        "A connection that is not ready for calls this long after it was accepted is closed.",
    ),
    _rare(
        "max_idle_ms",
        PERIOD_MS,
        "A connection without a call for this long is closed; its client connects again for the next call.",
    ),
    _rare("max_fetch_wait_ms", PERIOD_MS, "Upper bound for the wait of a fetch."),
    _rare(
        "default_partition_count",
        number_kind("COUNT", 1, INT_MAX),
        "Number of partitions of a topic that is created without one.",
    ),
    _rare(
        "max_partition_count",
        number_kind("COUNT", 1, INT_MAX),
        "Most partitions of one topic. Each costs two open files and a directory.",
    ),
    _rare(
        "max_topic_count",
        number_kind("COUNT", 1, MAX_BOUNDS.topic_count),
        "Most topics of the store. The creation of one more is refused.",
    ),
    _rare(
        "max_total_partition_count",
        number_kind("COUNT", 1, MAX_BOUNDS.partition_count),
        "Most partitions of all topics of the store. The creation of more is refused.",
    ),
)

_RARE_PRODUCERS = (
    _rare(
        "max_partition_producer_count",
        number_kind("COUNT", 1, INT_MAX),
        "Most producer ids that a partition remembers. For a new one, ids that have been idle for 15 minutes"
        " are forgotten; where there are none, it is refused.",
    ),
    _rare(
        "max_producer_count",
        number_kind("COUNT", 1, INT_MAX),
        "Most producer ids that all partitions together remember, about a kilobyte each. Nearly there, ids"
        " that have been idle for 15 minutes are forgotten; where there are none, a new one is refused.",
    ),
)

_RARE_THREADS = (
    _rare("append_thread_count", THREAD_COUNT, "Threads that write the local logs of a log directory."),
    _rare("read_thread_count", THREAD_COUNT, "Threads that read the local logs of a log directory."),
    _rare("cold_read_thread_count", THREAD_COUNT, "Threads that read tiered data."),
    _rare(
        "cold_read_queue_count",
        number_kind("COUNT", 1, INT_MAX),
        "Reads of tiered data that may wait for a thread; one more is refused as retriable.",
    ),
    _rare("task_thread_count", THREAD_COUNT, "Threads of background tasks."),
    _rare("admin_thread_count", THREAD_COUNT, "Threads of administrative calls."),
    _rare("metadata_thread_count", THREAD_COUNT, "Requests for parts of the metadata at once."),
)

_RARE_PERIODS = (
    _rare(
        "head_refresh_ms",
        PERIOD_MS,
        "Period of reading the metadata heads. A replaced owner stops accepting appends this soon.",
    ),
    _rare(
        "metadata_request_ms",
        PERIOD_MS,
        "A request for metadata that the store has not answered for this long is given up; the next pass"
        " finds out its outcome.",
    ),
    _rare("remote_retention_ms", PERIOD_MS, "Period of retention over tiered data."),
    _rare("collector_ms", PERIOD_MS, "Period of the collector of dropped objects and of orphans."),
    _rare("fold_ms", PERIOD_MS, "Period of the check whether a metadata head needs folding."),
    _rare(
        "shutdown_grace_s",
        decimal_kind("SECONDS", 0, 86_400),
        "Seconds that running calls have to finish at a shutdown.",
    ),
)

SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        setting.name: setting
        for group in (
            _PLACES,
            _ACCESS,
            _WORK,
            _LIMITS,
            _LOGGING,
            _RARE_LIMITS,
            _RARE_PRODUCERS,
            _RARE_THREADS,
            _RARE_PERIODS,
        )
        for setting in group
    }
)
"""All settings by name."""

SETTING_OF_FIELD: Mapping[str, Setting] = MappingProxyType(
    {setting.field_name: setting for setting in SETTINGS.values()}
)
