"""Keys go where Kafka's clients send them; records without a key fill one batch after another."""

from __future__ import annotations

import random

from stratalog.client.partition_chooser import PartitionChooser
from stratalog.record.key_partition import partition_for_key


def test_a_key_always_goes_to_its_partition() -> None:
    chooser = PartitionChooser(random.Random(1), 12)
    for key in (b"", b"N14228", b"\x00\xff" * 9):
        assert chooser.for_key(key) == partition_for_key(key, 12) == chooser.for_key(key)


def test_records_without_a_key_stay_until_the_batch_is_sealed() -> None:
    chooser = PartitionChooser(random.Random(1), 3)
    first = chooser.for_key(None)
    assert chooser.for_key(None) == first
    chooser.batch_sealed((first + 1) % 3)
    assert chooser.for_key(None) == first
    chooser.batch_sealed(first)
    assert chooser.for_key(None) == (first + 1) % 3
