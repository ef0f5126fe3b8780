"""Permissions: prefixes, names, and what follows from what."""

from __future__ import annotations

import pytest

from stratalog.server.access.permissions import Operation, Permissions, TopicPermission, with_implied


@pytest.mark.parametrize(
    ("pattern", "topic", "covers"),
    [
        ("shop.*", "shop.orders", True),
        ("shop.*", "shop.", True),
        ("shop.*", "shop", False),
        ("shop.*", "shopx", False),
        ("shop.*", "x.shop.orders", False),
        ("*", "", True),
        ("*", "anything", True),
        ("prices", "prices", True),
        ("prices", "prices2", False),
        ("prices", "", False),
        ("", "prices", False),
    ],
)
def test_a_pattern_is_a_name_or_a_prefix(pattern: str, topic: str, covers: bool) -> None:
    assert TopicPermission(pattern, frozenset({Operation.READ})).covers(topic) is covers


def test_operations_include_what_they_need() -> None:
    for one in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER):
        assert with_implied([one]) == {one, Operation.DESCRIBE}
    assert with_implied([Operation.ALTER_CONFIGS]) == {Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS}
    for one in (Operation.CREATE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS):
        assert with_implied([one]) == {one}


def test_permissions_add_up_and_do_not_mix() -> None:
    permissions = Permissions(
        (
            TopicPermission("a*", with_implied([Operation.READ])),
            TopicPermission("ab", with_implied([Operation.WRITE])),
        ),
        with_implied([Operation.ALTER]),
    )
    assert permissions.allow(Operation.READ, "ab")
    assert permissions.allow(Operation.WRITE, "ab")
    assert not permissions.allow(Operation.WRITE, "ac")
    assert not permissions.allow(Operation.ALTER, "ab")
    assert permissions.allow_somewhere(Operation.WRITE)
    assert not permissions.allow_somewhere(Operation.DELETE)
