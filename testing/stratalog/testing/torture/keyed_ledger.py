"""What the last value of each key is to be, and what a reader makes of the records that it meets."""

from __future__ import annotations

import threading

from stratalog.base.types import TopicPartition


class KeyedLedger:
    """Thread-safe. A key has one producer, so its values come in the order in which they are noted."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._values: dict[TopicPartition, dict[bytes, bytes | None]] = {}

    def note(self, partition: TopicPartition, values: dict[bytes, bytes | None]) -> None:
        """These were written, or committed; None: the key was deleted."""
        with self._guard:
            self._values.setdefault(partition, {}).update(values)

    def live(self, partition: TopicPartition) -> dict[bytes, bytes]:
        """The keys that have a value, with their last ones."""
        with self._guard:
            noted = self._values.get(partition, {})
            return {key: value for key, value in noted.items() if value is not None}


class KeyedView:
    """What one reader knows. Used by one thread."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
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

    def differences(self, live: dict[bytes, bytes]) -> list[str]:
        """Where it differs from what it is to be, a line for each key."""
        return [
            f"{self.partition}: key {key!r} is {self.values.get(key)!r}, not {live.get(key)!r}"
            for key in sorted(self.values.keys() | live.keys())
            if self.values.get(key) != live.get(key)
        ]
