"""Permissions: which operations a principal may do on which topics, and on the server as a whole.

The operations are those of Kafka's access control lists, with Kafka's rules of what follows from what:
reading, writing, deleting and altering a topic includes describing it, and altering its configuration
includes describing that. There are only permissions and no prohibitions, so their order has no meaning, and
what is not permitted is refused.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

ANY = "*"
"""The end of a pattern that stands for all names with the part before it."""


class Operation(enum.Enum):
    """An operation of a call. The value is its name in the access file and in errors."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    ALTER_CONFIGS = "alter_configs"
    DESCRIBE_CONFIGS = "describe_configs"

    # There is one object of each, so its identity will do. An enumeration hashes names, in Python: a check of
    # a permission takes several times as long with it.
    __hash__ = object.__hash__


_IMPLIED = {
    Operation.READ: (Operation.DESCRIBE,),
    Operation.WRITE: (Operation.DESCRIBE,),
    Operation.DELETE: (Operation.DESCRIBE,),
    Operation.ALTER: (Operation.DESCRIBE,),
    Operation.ALTER_CONFIGS: (Operation.DESCRIBE_CONFIGS,),
}
"""The operations that another one includes."""


def with_implied(operations: Iterable[Operation]) -> frozenset[Operation]:
    """The operations, and those that they include."""
    given = frozenset(operations)
    return given.union(*(_IMPLIED.get(one, ()) for one in given))


class TopicPermission(NamedTuple):
    """Operations on the topics of a name, or with a prefix."""

    pattern: str
    """A topic's name, or a prefix and `*`."""
    operations: frozenset[Operation]
    """With the implied ones."""

    def covers(self, topic: str) -> bool:
        """Whether it is about the topic."""
        if self.pattern.endswith(ANY):
            return topic.startswith(self.pattern[: -len(ANY)])
        return topic == self.pattern


class Permissions(NamedTuple):
    """All that a principal may do. Immutable."""

    topics: tuple[TopicPermission, ...]
    cluster: frozenset[Operation]
    """Operations on the server and its store as a whole, with the implied ones."""

    def allow(self, operation: Operation, topic: str) -> bool:
        """Whether the operation on the topic is permitted, which need not exist."""
        return any(operation in one.operations and one.covers(topic) for one in self.topics)

    def allow_somewhere(self, operation: Operation) -> bool:
        """Whether the operation is permitted on any topic at all."""
        return any(operation in one.operations for one in self.topics)
