"""A topic's entry in the catalog, and the rules for topic names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from uuid import UUID

from stratalog.base.errors import InvalidRequestError

MAX_NAME_LENGTH = 249
"""Kafka's: a name and a partition number still make a directory name."""
MAX_PARTITION_COUNT = 100_000
MAX_FENCING_TOKEN_BYTES = 36
"""Bytes of UTF-8: a UUID as text."""
HASH_KEY_BYTES = 16

_LEGAL_NAME = re.compile(rf"\A[a-zA-Z0-9._-]{{1,{MAX_NAME_LENGTH}}}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEntry:
    """A topic. Immutable. Its hash key is a secret: never in a repr, never in a message."""

    name: str
    topic_id: UUID
    partition_count: int
    config: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Overrides, by Kafka's names."""
    hash_key: bytes = field(repr=False)
    """Key of the hash that sorts the topic's key streams. With it one could craft colliding keys."""
    deleted_ms: int | None = None
    """Time of the deletion by the deleter's clock; None while the topic is live."""
    fencing_tokens: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """The tokens of the partitions that have one, by number."""

    @property
    def is_deleted(self) -> bool:
        return self.deleted_ms is not None

    def fencing_token(self, partition: int) -> str:
        """The token that appends to the partition may name; empty if it has none."""
        return self.fencing_tokens.get(partition, "")

    def is_as(self, other: TopicEntry) -> bool:
        """Whether both have the same name, partitions and configuration, whatever the fencing tokens."""
        return replace(self, fencing_tokens=other.fencing_tokens) == other


def require_fencing_token(token: str) -> None:
    """Raise InvalidRequestError if the token is too long."""
    size_bytes = len(token.encode(errors="surrogatepass"))
    if size_bytes > MAX_FENCING_TOKEN_BYTES:
        raise InvalidRequestError(
            "the fencing token is too long; choose a shorter one, such as a UUID",
            size_bytes=size_bytes,
            max_bytes=MAX_FENCING_TOKEN_BYTES,
        )


def require_topic_name(name: str, taken: Iterable[str]) -> None:
    """Raise InvalidRequestError if the name is invalid, or too similar to one of `taken`.

    The rules are Kafka's: 1 to 249 letters, digits, `.`, `_` and `-`, and neither `.` nor `..`. Metrics write
    `.` as `_`, so two names must not differ in these characters only.
    """
    if name in {".", ".."} or not _LEGAL_NAME.match(name):
        raise InvalidRequestError(
            "a topic's name has 1 to 249 ASCII letters, digits, '.', '_' or '-', and is not '.' or '..';"
            " choose another name",
            topic=name,
        )
    for other in taken:
        if other != name and other.replace(".", "_") == name.replace(".", "_"):
            raise InvalidRequestError(
                "a topic's name differs from another one's in more than '.' and '_'; choose another name",
                topic=name,
                existing_topic=other,
            )


def require_partition_count(
    partition_count: int, *, at_least: int = 1, at_most: int = MAX_PARTITION_COUNT
) -> None:
    """Raise InvalidRequestError if the number is below `at_least` or above `at_most`."""
    if not at_least <= partition_count <= at_most:
        raise InvalidRequestError(
            "the number of partitions is out of range, and never shrinks; choose one between the bounds",
            partition_count=partition_count,
            min_partition_count=at_least,
            max_partition_count=at_most,
        )
