"""The last value that each key must have, and a reader's view of the records that it meets."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple

from stratalog.base.types import TopicPartition


class LastValue(NamedTuple):
    """The last value of a key."""

    offset: int
    value: bytes | None
    """None: the key was deleted."""


class KeyedLedger:
    """The last values of all keys. Thread-safe. A key has one producer, so its values come in the order in
    which they are noted."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._values: dict[TopicPartition, dict[bytes, LastValue]] = {}

    def note(self, partition: TopicPartition, values: Mapping[bytes, LastValue]) -> None:
        """These were written, or committed."""
        with self._guard:
            self._values.setdefault(partition, {}).update(values)

    def last_values(self, partition: TopicPartition) -> dict[bytes, LastValue]:
        """The last values of the partition's keys."""
        with self._guard:
            return dict(self._values.get(partition, {}))


class KeyedView:
    """The values that one reader knows. Used by one thread."""

    def __init__(self, partition: TopicPartition, start_offset: int) -> None:
        """`start_offset`: where it begins to read."""
        self.partition = partition
        self.start_offset = start_offset
        self.record_count = 0
        self.values: dict[bytes, bytes] = {}
        self._last_numbers: dict[bytes, int] = {}
        self._last_offset = -1

    def take(self, offset: int, key: bytes, value: bytes | None, number: int) -> None:
        """The next record. `number` counts the values of the key. Raises AssertionError where records come in
        another order than they were written in."""
        where = f"{self.partition} at offset {offset}"
        assert offset > self._last_offset, f"{where}: it comes behind offset {self._last_offset}"
        self._last_offset = offset
        last_number = self._last_numbers.get(key, -1)
        assert number > last_number, f"{where}: value {number} of {key!r} comes behind value {last_number}"
        self._last_numbers[key] = number
        self.record_count += 1
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value

    def differences(self, last_values: Mapping[bytes, LastValue], log_start_offset: int) -> list[str]:
        """Where it differs from what it is to be, a line for each key.

        `log_start_offset`: what lies below was deleted while it read, so it may have come too late for that.
        """
        found: list[str] = []
        for key in sorted(self.values.keys() | last_values.keys()):
            offset, value = last_values.get(key, LastValue(-1, None))
            if self.start_offset <= offset < log_start_offset:
                continue
            expected = value if offset >= self.start_offset else None
            if self.values.get(key) != expected:
                found.append(
                    f"{self.partition}: key {key!r} is {self.values.get(key)!r}, not {expected!r} of offset"
                    f" {offset}; read from {self.start_offset}, log start {log_start_offset}"
                )
        return found
