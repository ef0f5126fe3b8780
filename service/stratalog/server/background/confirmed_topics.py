"""The topics that the catalog has just confirmed: an outdated configuration deletes and compacts nothing.

A topic is confirmed if its logs go by its own configuration and by the server's, as the catalog has them now.
Retention and the cleaner ask before they delete for good. While the catalog cannot be read, or this version
refuses the server's configuration in it, no topic is confirmed.

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
from stratalog.server.topics.topic_manager import TopicManager

logger = logging.getLogger(__name__)

_KEPT_S = 1.0


class ConfirmedTopics:
    """The topics that the catalog has just confirmed. Thread-safe: `_lock` guards the last answer; while one
    thread reads, the others wait for it."""

    def __init__(self, clock: Clock, topics: TopicManager) -> None:
        self._clock = clock
        self._topics = topics
        self._lock = threading.Lock()
        self._read_at_s: float | None = None
        self._confirmed: frozenset[UUID] | None = None

    def follow(self) -> frozenset[UUID] | None:
        """Read and follow the catalog; returns the ids of the confirmed topics, None if it cannot be read.

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
        is_news = self._confirmed is not None or self._read_at_s is None
        try:
            self._confirmed = frozenset(topic.topic_id for topic in self._topics.follow_catalog().topics)
        except StoreError as error:
            self._confirmed = None
            level = logging.WARNING if is_news else logging.DEBUG
            logger.log(level, "retention and cleaning of local logs wait for the catalog: %s", error)
        self._read_at_s = self._clock.monotonic_s()
        return self._confirmed
