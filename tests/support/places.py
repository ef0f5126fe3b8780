"""Places in the repository that tests read."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
GOLDEN = REPOSITORY / "tests" / "golden" / "kafka-4.1.1"
"""Files that a Kafka 4.1.1 broker wrote."""
