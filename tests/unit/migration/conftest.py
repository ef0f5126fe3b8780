"""A broker's directory, a machine's disk and a store for each test of imports."""

from __future__ import annotations

import pytest

from tests.support.kafka.import_world import ImportWorld


@pytest.fixture
def world() -> ImportWorld:
    return ImportWorld()
