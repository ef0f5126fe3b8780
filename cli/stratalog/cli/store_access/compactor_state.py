"""The state of a compactor without a server, in a directory: which partitions it leaves alone outlives it,
and commands show that, and the compaction that runs.

    DIR/compactor.lock          locked as long as a compactor has the directory
    DIR/compactor.json          the store, the compaction that runs, names of topics, and shards that fail
    DIR/SHARD/exclusions.json   what is left alone, as in the data directory of a server
    DIR/resets/TOPIC_ID:NUMBER  an empty file for each partition that shall be tried again
    DIR/scratch/SHARD/          scratch files of the jobs; those of a compactor that was killed are removed by
                                the next one when it starts

Only the compactor writes the first three, because it has all of it in memory. A reset is a file of its own:
the compactor takes it before its next compaction, and one that does not run takes it when it starts. A file
that is missing or damaged counts as one without anything in it.
"""

from __future__ import annotations

import json
import logging
import posixpath
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from stratalog.base.atomic_file import replace_file
from stratalog.base.clock import Clock
from stratalog.base.errors import InvalidConfigError
from stratalog.base.file_contents import write_file
from stratalog.base.filesystem import FileLock, FileSystem
from stratalog.base.types import TopicIdPartition
from stratalog.client import values
from stratalog.remote.objects.spool import clear_spool_directory

if TYPE_CHECKING:
    from stratalog.compaction.job_history import Exclusion
    from stratalog.v1 import operation_pb2

logger = logging.getLogger(__name__)

SHOW_INTERVAL_S = 1.0
"""Progress is written no more often."""
_LOCK_TRIES = 20
_LOCK_PAUSE_S = 0.1
"""A command that looks holds the lock for a moment."""


class CompactorState:
    """The directory of one compactor. Not thread-safe: the thread of the compactor, or of a command, uses
    it."""

    def __init__(self, filesystem: FileSystem, clock: Clock, directory: str) -> None:
        """Nothing is read or written yet. `directory` is an absolute path."""
        self._filesystem = filesystem
        self._clock = clock
        self._directory = directory
        self._store = _Store("", "")
        self._shown_s: float | None = None
        self._failed_shards: tuple[FailedShard, ...] = ()
        self._is_stale = False
        """Whether the last try to show something has failed."""

    @contextmanager
    def held(self, store_url: str, store_id: UUID) -> Generator[None]:
        """Have the directory for the compactor of this store while the block runs. Makes it if it is missing.
        Raises InvalidConfigError if another compactor has it, if it is that of another store, or if it cannot
        be used."""
        with self._usable():
            lock = self._locked()
        try:
            with self._usable():
                former = self._read()
                self._clear_scratch()
            if former.store.store_id not in ("", str(store_id)):
                raise self._refused(
                    "the state directory is that of a compactor of another store; name another one",
                    store=former.store.url,
                )
            self._store = _Store(store_url, str(store_id))
            self._failed_shards = former.failed_shards
            self.show(None, former.names)
            yield
        finally:
            lock.release()

    def _clear_scratch(self) -> None:
        if not self._filesystem.exists(self.scratch_directory):
            return
        for name in self._filesystem.list_directory(self.scratch_directory):
            clear_spool_directory(self._filesystem, f"{self.scratch_directory}/{name}")

    def _locked(self) -> FileLock:
        self._filesystem.make_directories(self._directory)
        for _ in range(_LOCK_TRIES):
            if (lock := self._filesystem.try_lock(self._path("compactor.lock"))) is not None:
                return lock
            self._clock.sleep(_LOCK_PAUSE_S)
        raise self._refused("another compactor has the state directory; name another one, or end that")

    @contextmanager
    def _usable(self) -> Generator[None]:
        """Raise InvalidConfigError if the block fails with an OSError."""
        try:
            yield
        except OSError as failure:
            raise self._refused(
                "the state directory cannot be used; correct its permissions or repair its disk, or name"
                " another directory",
                reason=str(failure),
            ) from failure

    @property
    def scratch_directory(self) -> str:
        """The directory of the scratch files of jobs, while the state is held. It may be missing."""
        return self._path("scratch")

    def exclusions_path(self, shard: int) -> str:
        """The file of what is left alone in a shard."""
        return self._path(f"{shard:04d}/exclusions.json")

    def show(self, operation: operation_pb2.Operation | None, names: Mapping[str, str]) -> None:
        """Let commands see the compaction that runs, None for none, and the names of topics by their ids. No
        more often than `SHOW_INTERVAL_S` while one runs. A disk that fails is one line of the log, until
        it works again: compaction goes on."""
        from google.protobuf.json_format import MessageToDict

        now_s = self._clock.monotonic_s()
        if operation is not None and self._shown_s is not None and now_s - self._shown_s < SHOW_INTERVAL_S:
            return
        self._shown_s = None if operation is None else now_s
        document = {
            "store": self._store._asdict(),
            "operation": None if operation is None else MessageToDict(operation),
            "topics": dict(names),
            "failed_shards": [one._asdict() for one in self._failed_shards],
        }
        path = self._path("compactor.json")
        try:
            replace_file(self._filesystem, path, json.dumps(document).encode())
        except OSError as failure:
            if not self._is_stale:
                logger.warning("`%s` is not written, so commands see an older state: %s", path, failure)
            self._is_stale = True
        else:
            self._is_stale = False

    def note_failed_shards(self, reasons: Mapping[int, str], now_ms: int) -> None:
        """Note which shards the last compaction could not compact, and why; the next `show` shows it."""
        since_ms = {one.shard: one.since_ms for one in self._failed_shards}
        self._failed_shards = tuple(
            FailedShard(number, since_ms.get(number, now_ms), reason)
            for number, reason in sorted(reasons.items())
        )

    def failed_shards(self) -> Sequence[FailedShard]:
        """The shards that the last compaction could not compact. Raises InvalidConfigError."""
        with self._usable():
            return self._read().failed_shards

    def resets(self) -> Sequence[TopicIdPartition]:
        """The partitions that shall be tried again. Raises OSError."""
        directory = self._path("resets")
        if not self._filesystem.exists(directory):
            return []
        found = map(_parsed, sorted(self._filesystem.list_directory(directory)))
        return [tip for tip in found if tip is not None]

    def forget_reset(self, tip: TopicIdPartition) -> None:
        """Forget one of `resets`. Raises OSError."""
        self._filesystem.unlink(self._path(f"resets/{_name(tip)}"))

    def operations(self) -> Sequence[values.Operation]:
        """The compaction that runs, if one does. Raises InvalidConfigError."""
        from google.protobuf.json_format import ParseDict, ParseError

        from stratalog.client.values.conversion import value_of
        from stratalog.v1 import operation_pb2

        with self._usable():
            found = self._read().operation
            if found is None or not self._is_held():
                return []
        try:
            message = ParseDict(found, operation_pb2.Operation(), ignore_unknown_fields=True)
        except ParseError:
            return []
        return [value_of(values.Operation, message)]

    def excluded(self) -> Sequence[values.ExcludedPartition]:
        """The partitions that are left alone, but for those that a command has reset. Raises
        InvalidConfigError."""
        from stratalog.client.values.conversion import value_of
        from stratalog.server.rpc.admin.tier_convert import excluded_message

        with self._usable():
            names = self._read().names
            found = self._exclusions()
        return [
            value_of(values.ExcludedPartition, excluded_message(tip, one, names.get(str(tip.topic_id), "")))
            for tip, one in found.items()
        ]

    def reset(self, topic: str, partition: int) -> bool:
        """Let the next compaction try a partition again, of the topic with this name or id; False if it was
        not left alone because of a failure. Raises InvalidConfigError."""
        with self._usable():
            return self._reset(topic, partition)

    def _reset(self, topic: str, partition: int) -> bool:
        names = self._read().names
        failed = [
            tip
            for tip, one in self._exclusions().items()
            if tip.partition == partition
            and topic in (str(tip.topic_id), names.get(str(tip.topic_id)))
            and one.until_ms is not None
        ]
        if failed:
            self._filesystem.make_directories(self._path("resets"))
        for tip in failed:
            write_file(self._filesystem, self._path(f"resets/{_name(tip)}"), [])
        if failed:
            self._filesystem.sync_directory(self._path("resets"))
        return bool(failed)

    def exclusions_of(self, shard: int) -> Mapping[TopicIdPartition, Exclusion]:
        """The partitions that are left alone in a shard."""
        from stratalog.compaction.exclusion.exclusion_file import ExclusionFile

        return ExclusionFile(self._filesystem, self.exclusions_path(shard)).read()

    def _exclusions(self) -> Mapping[TopicIdPartition, Exclusion]:
        if not self._filesystem.is_directory(self._directory):
            raise self._refused("there is no such state directory; name that of the compactor")
        shards = [int(name) for name in self._filesystem.list_directory(self._directory) if name.isdecimal()]
        reset = set(self.resets())
        return {
            tip: one
            for shard in sorted(shards)
            for tip, one in self.exclusions_of(shard).items()
            if tip not in reset or one.until_ms is None
        }

    def _is_held(self) -> bool:
        try:
            lock = self._filesystem.try_lock_shared(self._path("compactor.lock"))
        except FileNotFoundError:
            return False
        if lock is not None:
            lock.release()
        return lock is None

    def _read(self) -> _Shown:
        path = self._path("compactor.json")
        try:
            document: dict[str, Any] = json.loads(self._filesystem.read_file(path))
            store = _Store(**document["store"])
            failed = tuple(FailedShard(**one) for one in document["failed_shards"])
            return _Shown(store, document["operation"], dict(document["topics"]), failed)
        except FileNotFoundError:
            return _NOTHING_SHOWN
        except (ValueError, LookupError, TypeError) as problem:
            logger.warning("`%s` is not read, so topics have no names: %s", path, problem)
            return _NOTHING_SHOWN

    def _path(self, name: str) -> str:
        return posixpath.join(self._directory, name)

    def _refused(self, message: str, **fields: str) -> InvalidConfigError:
        return InvalidConfigError(message, name="state-dir", value=self._directory, **fields)


class FailedShard(NamedTuple):
    """A shard that cannot be compacted. Immutable."""

    shard: int
    since_ms: int
    """In milliseconds since 1970 UTC."""
    reason: str


class _Store(NamedTuple):
    """The store of a compactor. Immutable."""

    url: str
    store_id: str


class _Shown(NamedTuple):
    """The part of a compactor that commands see. Immutable."""

    store: _Store
    operation: dict[str, Any] | None
    names: Mapping[str, str]
    """Names of topics, by their ids."""
    failed_shards: tuple[FailedShard, ...]


_NOTHING_SHOWN = _Shown(_Store("", ""), None, {}, ())


def _name(tip: TopicIdPartition) -> str:
    return f"{tip.topic_id}:{tip.partition}"


def _parsed(name: str) -> TopicIdPartition | None:
    """The partition that the file of a reset names; None for another file."""
    topic_id, _, number = name.partition(":")
    try:
        return TopicIdPartition(UUID(topic_id), int(number))
    except ValueError:
        return None
