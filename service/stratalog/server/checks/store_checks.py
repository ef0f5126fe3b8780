"""Checks of the object store of a start: reachable, the right one, and of the right clock.

They only read, unless the caller allows the probe of conditional writes, which a start makes, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.base.errors import DataDirectoryError, LogStoreError, ObjectNotFoundError
from stratalog.manager.directories.locked_directory import read_properties
from stratalog.manager.directories.meta_properties import STORE_ID
from stratalog.objectstore.open_store import open_store, store_directory
from stratalog.objectstore.probe import require_conditional_writes
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import IDENTITY_KEY
from stratalog.server.checks.directory_checks import existing_place
from stratalog.server.checks.machine import may_write
from stratalog.server.checks.start_check import CheckedStart, Finding, Verdict

SCRATCH_PREFIX = "scratch/"
MAX_CLOCK_DISTANCE_MS = 60_000
"""Retention and the collector go by times that both clocks have given; S3 refuses requests from a quarter of
an hour on."""


def store(start: CheckedStart) -> Iterator[Finding]:
    """The store answers, is the one of the log directories, and has the shards that are asked for."""
    try:
        opened = start.seams.store or open_store(
            start.settings.effective_store_url,
            filesystem=start.seams.filesystem,
            clock=start.seams.clock,
            ids=start.seams.ids,
        )
        yield _identity(start, opened)
        yield from _conditional_writes(start, opened)
        yield from _clock(start, opened)
    except LogStoreError as failure:
        yield Finding("store", Verdict.ERROR, str(failure))


def _identity(start: CheckedStart, opened: ObjectStore) -> Finding:
    """Judge the identity of the store. Raises LogStoreError."""
    settings = start.settings
    identity = StoreIdentity.open(opened) if settings.read_only else StoreIdentity.find(opened)
    bound = dict(_bound_directories(start))
    wrong = [
        path for path, store_id in bound.items() if identity is None or store_id != str(identity.store_id)
    ]
    if wrong:
        text = f"{wrong[0]} belongs to another store than {opened.url}; give that store, or another directory"
        return Finding("store", Verdict.ERROR, text)
    if identity is None:
        return _new_store(start, opened)
    identity.require_shard_count(settings.shard_count or None)
    missing = [number for number in settings.own_shards if number >= identity.shard_count]
    if missing:
        text = f"the store has {identity.shard_count} shard(s), and no shard {missing[0]}; own others"
        return Finding("store", Verdict.ERROR, text)
    text = f"{opened.url} answers: store {identity.store_id}, {identity.shard_count} shard(s)"
    return Finding("store", Verdict.OK, text)


def _new_store(start: CheckedStart, opened: ObjectStore) -> Finding:
    directory = store_directory(start.settings.effective_store_url)
    place = None if directory is None else existing_place(start.seams.filesystem, directory)
    if place is not None and not (start.seams.filesystem.is_directory(place) and may_write(place)):
        text = f"{place} is no directory that this user may write, so no store can be made in it; change that"
        return Finding("store", Verdict.ERROR, text)
    count = start.settings.shard_count or 1
    text = f"{opened.url} answers and is empty: a start makes a store of {count} shard(s) there"
    return Finding("store", Verdict.OK, text)


def _bound_directories(start: CheckedStart) -> Iterator[tuple[str, str]]:
    """The log directories that belong to a store, and its id. Those that cannot be read have a check."""
    for path in () if start.settings.read_only else start.settings.all_log_dirs:
        try:
            store_id = read_properties(start.seams.filesystem, path).get(STORE_ID)
        except (DataDirectoryError, OSError):
            continue
        if store_id is not None:
            yield path, store_id


def _conditional_writes(start: CheckedStart, opened: ObjectStore) -> Iterator[Finding]:
    """Try conditional writes, if that is allowed. Raises LogStoreError."""
    if start.settings.read_only or store_directory(start.settings.effective_store_url) is not None:
        return
    if not start.probes_store:
        text = (
            "conditional writes were not tried; --probe-store tries them with an object that it deletes again"
        )
        yield Finding("probe", Verdict.SKIPPED, text)
        return
    require_conditional_writes(opened, start.seams.ids, SCRATCH_PREFIX)
    left = next(iter(opened.list(SCRATCH_PREFIX)), None)
    if left is None:
        yield Finding(
            "probe", Verdict.OK, "the store honours conditional writes, and nothing is left of them"
        )
    else:
        text = (
            f"the store honours conditional writes, and {left.key} is left: allow this user to delete"
            f" objects below {SCRATCH_PREFIX}, and delete it"
        )
        yield Finding("probe", Verdict.WARNING, text)


def _clock(start: CheckedStart, opened: ObjectStore) -> Iterator[Finding]:
    """Compare the clocks by the time of an answer. Only an object that is there has one. Raises
    LogStoreError."""
    if store_directory(start.settings.effective_store_url) is not None:
        return
    before_ms = start.seams.clock.now_ms()
    try:
        date_ms = opened.get(IDENTITY_KEY).date_ms
    except ObjectNotFoundError:
        return
    after_ms = start.seams.clock.now_ms()
    distance_ms = max(before_ms - date_ms, date_ms - after_ms, 0)
    if distance_ms > MAX_CLOCK_DISTANCE_MS:
        text = f"this clock and the store's are {distance_ms // 1000} s apart; set this one by NTP"
        yield Finding("clock", Verdict.WARNING, text)
    else:
        yield Finding("clock", Verdict.OK, f"this clock and the store's are {distance_ms // 1000} s apart")
