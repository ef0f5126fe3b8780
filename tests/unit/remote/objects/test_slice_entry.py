"""The entry of a slice: its parts get their places, and nothing else changes."""

from __future__ import annotations

import dataclasses

from stratalog.remote.objects.slice_entry import KeyStreamRef, LastBatch, LeaderEpoch, PartRef
from tests.support.tiered.sample_entry import sample_entry


def test_parts_get_their_places_and_the_rest_stays() -> None:
    entry = dataclasses.replace(
        sample_entry(10, 20, data_bytes=500, record_count=7),
        codec_mask=5,
        tombstone_count=2,
        earliest_delete_horizon_ms=99,
        leader_epochs=(LeaderEpoch(3, 10),),
        last_batch=LastBatch(15, 3, 8),
    )
    stream, index = KeyStreamRef(1000, 50, 7, 77, 12), PartRef(2000, 60, 88)
    for key_stream in (stream, None):
        expected = dataclasses.replace(entry, key_stream=key_stream, index=index)
        assert entry.placed(key_stream, index) == expected
