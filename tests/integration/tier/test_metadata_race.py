"""Sixteen writers race on one head over a real server: every commit that was acknowledged is in it, exactly
once.

Not over moto, which checks and writes in two steps.
"""

from __future__ import annotations

import os
import threading
from random import Random
from uuid import UUID, uuid4

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.randomness import SystemIdGenerator
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.head.commit import Commit, Writer
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.head.head_log import CommitSettings, StoreActor
from stratalog.remote.metadata.head.history import find_in_history
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_actions import SHARD_ACTIONS, Claim, DropPartitions
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout
from tests.support.tiered.s3_servers import S3Server

WRITERS = 8
COMMITS = 4
# Folds happen in the middle of the race: a writer must find its commit in the history as well.
SETTINGS = CommitSettings(fold_inline_commits=15, max_lost_races=1000)


class Racer:
    """One writer, with the answers to its commits. Its thread alone uses it."""

    def __init__(self, number: int, server: S3Server, prefix: str, identity: StoreIdentity) -> None:
        self.epochs: dict[UUID, int] = {}
        """Claims that were acknowledged."""
        self.dropped: list[UUID] = []
        """Topics whose end was acknowledged."""
        self.failure: BaseException | None = None
        self._number = number
        self._store = server.open_store(prefix)
        self._log = open_log(self._store, identity, number)
        self._ids = SystemIdGenerator()

    def run(self, start: threading.Barrier) -> None:
        try:
            start.wait()
            for turn in range(COMMITS):
                uuid = self._ids.uuid()
                if turn % 2:
                    self.epochs[uuid] = self._log.claim(f"racer-{self._number}", uuid)
                else:
                    self._log.drop_partitions(uuid, 0)
                    self.dropped.append(uuid)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.failure = error
        finally:
            self._store.close()


def open_log(store: ObjectStore, identity: StoreIdentity, number: int) -> MetadataLog:
    writer = Writer("racer", f"racer-{number}")
    actor = StoreActor(
        store=store,
        clock=SystemClock(),
        random_source=Random(number),
        ids=SystemIdGenerator(),
        identity=identity,
        writer=writer,
    )
    return MetadataLog.open(actor, 0, no_directories, settings=SETTINGS)


def no_directories(ref: ObjectRef) -> list[SliceEntry]:
    raise AssertionError(f"no writer adds objects here: {ref.name}")


@pytest.mark.parametrize(
    "server_name", ["seaweedfs", "minio", *(["external"] if "S3_ENDPOINT_URL" in os.environ else [])]
)
def test_every_acknowledged_commit_is_there_once(server_name: str, request: pytest.FixtureRequest) -> None:
    server: S3Server = request.getfixturevalue(f"{server_name}_server")
    prefix = f"metadata-race-{uuid4().hex}"
    store = server.open_store(prefix)
    identity = StoreIdentity.open_or_create(store, SystemIdGenerator())
    racers = [Racer(number, server, prefix, identity) for number in range(WRITERS)]
    start = threading.Barrier(WRITERS)
    threads = [threading.Thread(target=racer.run, args=(start,)) for racer in racers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [racer.failure for racer in racers] == [None] * WRITERS
    commits = all_commits(store)
    assert [commit.seq for commit in commits] == list(range(1, len(commits) + 1))
    assert len({commit.uuid for commit in commits}) == len(commits)
    actions = [action for commit in commits for action in commit.actions]
    claims = [(action.uuid, action.epoch) for action in actions if isinstance(action, Claim)]
    assert sorted(claims) == sorted(item for racer in racers for item in racer.epochs.items())
    assert [epoch for _, epoch in claims] == list(range(1, len(claims) + 1))
    dropped = [action.topic_id for action in actions if isinstance(action, DropPartitions)]
    assert sorted(dropped) == sorted(topic_id for racer in racers for topic_id in racer.dropped)
    assert len(dropped) + len(claims) == WRITERS * COMMITS
    store.delete_many([found.key for found in store.list("")])
    store.close()


def all_commits(store: ObjectStore) -> list[Commit]:
    """From history and head, in order."""
    layout = StoreLayout(0)
    head = Head.decode(store.get(layout.head_key).data, layout.head_key, SHARD_ACTIONS)
    folded: list[Commit] = []
    for seq in range(1, head.folded_seq + 1):
        commit = find_in_history(store, layout, head.history, seq, SHARD_ACTIONS)
        assert commit is not None, f"commit {seq} is in no history"
        folded.append(commit)
    return [*folded, *head.commits]
