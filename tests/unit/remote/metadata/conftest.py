"""A store with a shard for each test of the metadata."""

from __future__ import annotations

import pytest

from tests.support.tiered.metadata_harness import MetadataHarness


@pytest.fixture
def harness() -> MetadataHarness:
    return MetadataHarness()
