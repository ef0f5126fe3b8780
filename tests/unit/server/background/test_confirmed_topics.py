"""Topics are confirmed by the newest catalog, and by the last one that was read while the store is away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from stratalog.base.errors import (
    StoreAccessDeniedError,
    StoreCorruptError,
    StoreError,
    StoreNotUsableError,
    StoreUnavailableError,
)
from stratalog.server.background.confirmed_topics import ConfirmedTopics
from stratalog.testing.manual_clock import ManualClock

TOPICS = frozenset([UUID(int=1), UUID(int=2)])


class FollowedTopics:
    """Topics that follow the catalog, which a test makes unreadable. Not thread-safe."""

    def __init__(self) -> None:
        self.failure: StoreError | None = None

    def follow_catalog(self) -> object:
        if self.failure is not None:
            raise self.failure
        return self.followed_last()

    def followed_last(self) -> object:
        return SimpleNamespace(topics=[SimpleNamespace(topic_id=one) for one in TOPICS])


@pytest.mark.parametrize(
    ("failure", "is_away"),
    [
        (StoreUnavailableError("away"), True),
        (StoreAccessDeniedError("the keys have expired"), True),
        (StoreNotUsableError("no bucket", status=404, store_code="NoSuchBucket"), True),
        (StoreNotUsableError("newer software has written the catalog"), False),
        (StoreCorruptError("damaged"), False),
    ],
)
def test_only_a_store_without_an_answer_or_access_leaves_the_last_configuration_in_force(
    failure: StoreError, *, is_away: bool
) -> None:
    topics: Any = FollowedTopics()
    confirmed = ConfirmedTopics(ManualClock(), topics)
    assert (confirmed.follow(), confirmed.is_store_away) == (TOPICS, False)
    topics.failure = failure
    assert (confirmed.follow(), confirmed.is_store_away) == (TOPICS if is_away else None, is_away)
    assert confirmed.had(UUID(int=1)) == is_away
    topics.failure = None
    assert (confirmed.follow(), confirmed.is_store_away) == (TOPICS, False)
