"""Records that Kafka's own consumer read from the topics of the golden data."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from stratalog.record.record import Record


def golden_records(golden: Path, name: str, isolation_level: str) -> list[Record]:
    """All records of a topic, from the file of that isolation level; `golden` is the folder of the data."""
    lines = (golden / "expected" / f"{name}.{isolation_level}.jsonl").read_text().splitlines()
    return [
        Record(
            fields["offset"],
            fields["timestamp"],
            _decoded(fields["key"]),
            _decoded(fields["value"]),
            tuple((key, _decoded(value)) for key, value in fields["headers"]),
        )
        for fields in map(json.loads, lines)
    ]


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
