"""The topics whose logs have the catalog's current configuration: no outdated one deletes or compacts.

Retention and the cleaner ask before they remove records. The catalog is read again, but at most once a
second, because many small logs are checked one after the other. A topic that the last state did not have
causes a new read at once.
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
    """Thread-safe: `_lock` guards what was read; while one reads, the others wait for it."""

    def __init__(self, clock: Clock, topics: TopicManager) -> None:
        self._clock = clock
        self._topics = topics
        self._lock = threading.Lock()
        self._read_at_s: float | None = None
        self._confirmed: frozenset[UUID] | None = None

    def follow(self) -> frozenset[UUID] | None:
        """Follow the current catalog; returns the ids of the topics whose logs have its configuration, or
        None if the store does not answer. May take the network for long, and waits for cleans of altered
        topics, so the cleaner must not call it while it cleans.
        """
        with self._lock:
            return self._follow()

    def recent(self, topic_ids: Collection[UUID]) -> frozenset[UUID] | None:
        """Return the result of the last second if it has all of `topic_ids`; call `follow` otherwise."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            is_recent = self._read_at_s is not None and now_s - self._read_at_s <= _KEPT_S
            is_complete = self._confirmed is None or self._confirmed.issuperset(topic_ids)
            return self._confirmed if is_recent and is_complete else self._follow()

    def had(self, topic_id: UUID) -> bool:
        """Whether the last result has this topic. The cleaner asks right after `recent`."""
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
