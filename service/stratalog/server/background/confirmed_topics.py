"""The topics whose configuration holds now: an outdated configuration deletes and compacts nothing.

A topic is confirmed if its logs go by its own configuration and by the server's, as the catalog has them.
Retention and the cleaner of local logs ask before they delete for good.

While the store is away, because it does not answer or because it refuses this server, the newest catalog that
this process has read still counts: a topic whose logs go by it stays confirmed. This process owns its shards
as far as it knows, and a change of a topic reaches its logs only through the store, so a change that was made
elsewhere takes effect once it is read, and a change that was requested here and may have landed does, too.
Credentials expire at night, and a disk must not fill up for that. A configuration that was never followed
deletes nothing: a topic that cannot follow the catalog, or whose server's configuration this version refuses,
is not confirmed. No topic is confirmed while the catalog is lost, damaged or needs newer software, because an
operator has to decide then. And none is after another owner was seen, because these tasks end.

The catalog is read at most once a second, since many small logs follow one another. A topic that was not
confirmed is looked for at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.errors import StoreError
from stratalog.server.partitions.store_trouble import StoreTrouble
from stratalog.server.topics.topic_manager import TopicManager

logger = logging.getLogger(__name__)

_KEPT_S = 1.0


class ConfirmedTopics:
    """The topics whose configuration holds now. Thread-safe: `_lock` guards the last answer; while one thread
    reads, the others wait for it."""

    def __init__(self, clock: Clock, topics: TopicManager) -> None:
        self._clock = clock
        self._topics = topics
        self._lock = threading.Lock()
        self._read_at_s: float | None = None
        self._confirmed: frozenset[UUID] | None = None
        self._failure: StoreError | None = None

    @property
    def is_store_away(self) -> bool:
        """Whether the last look found that the store does not answer, or refuses this server: what was read
        last counts."""
        return self.trouble is not None and self.trouble.is_away

    @property
    def failure(self) -> StoreError | None:
        """The error of the last look; None if it has read the catalog, or if there was none."""
        return self._failure

    @property
    def trouble(self) -> StoreTrouble | None:
        """The kind of that error."""
        return StoreTrouble.of_any(self._failure)

    @property
    def does_store_answer(self) -> bool:
        """Whether the last look has read the catalog."""
        return self._read_at_s is not None and self._failure is None

    def follow(self) -> frozenset[UUID] | None:
        """Read and follow the catalog; returns the ids of the confirmed topics, None if it cannot be trusted.

        May take the network for long, and waits for cleans of altered topics: not for the cleaner.
        """
        with self._lock:
            return self._follow()

    def recent(self, topic_ids: Collection[UUID]) -> frozenset[UUID] | None:
        """The last answer if it is at most a second old and has all these topics, else a new one."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            is_recent = self._read_at_s is not None and now_s - self._read_at_s <= _KEPT_S
            is_complete = self._confirmed is None or self._confirmed.issuperset(topic_ids)
            return self._confirmed if is_recent and is_complete else self._follow()

    def had(self, topic_id: UUID) -> bool:
        """Whether the last answer has this topic. For the cleaner, right after it asked."""
        confirmed = self._confirmed
        return confirmed is not None and topic_id in confirmed

    def _follow(self) -> frozenset[UUID] | None:
        try:
            followed, failure = self._topics.follow_catalog(), None
        except StoreError as error:
            followed, failure = self._topics.followed_last(), error
        self._tell(failure)
        is_known = failure is None or self.is_store_away
        self._confirmed = frozenset(topic.topic_id for topic in followed.topics) if is_known else None
        self._read_at_s = self._clock.monotonic_s()
        return self._confirmed

    def _tell(self, failure: StoreError | None) -> None:
        """Log a failure once while it lasts, and its end."""
        former, self._failure = self.trouble, failure
        if self.trouble is former:
            return
        if failure is None:
            logger.info("the catalog can be read again; retention and cleaning of local logs follow it")
        elif self.is_store_away and self.trouble is not StoreTrouble.NO_ANSWER:
            logger.error(
                "%s; retention and cleaning of local logs go on by the configuration that was read last: %s",
                "the bucket is gone"
                if self.trouble is StoreTrouble.BUCKET_GONE
                else "the store refuses this server",
                failure,
            )
        elif self.is_store_away:
            logger.warning(
                "the store does not answer; retention and cleaning of local logs go on by the configuration"
                " that was read last; restore the connection to the store: %s",
                failure,
            )
        else:
            logger.error(
                "retention and cleaning of local logs wait until the catalog can be read: %s", failure
            )
