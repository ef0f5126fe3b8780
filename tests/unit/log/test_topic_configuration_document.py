"""The code does what docs/topic_configuration.md says."""

from __future__ import annotations

import re

import pytest

from stratalog.base.errors import InvalidConfigError
from stratalog.log.log_config import LogConfig
from stratalog.record.codecs.compression import LEAST_SENT_BYTES, MAX_SENT_BYTES, MAX_SENT_FACTOR
from tests.support.places import DOCS

TEXT = (DOCS / "topic_configuration.md").read_text()
ROWS: list[tuple[str, str, str]] = re.findall(
    r"^\| `([a-z0-9.]+)` \| (?:`([^`]+)` )?\| ([^|]+) \|", TEXT, re.MULTILINE
)


def test_every_key_is_there_with_its_default() -> None:
    assert {name: default for name, default, _ in ROWS} == LogConfig().as_mapping()
    assert [name for name, _, _ in ROWS] == list(LogConfig.names())


@pytest.mark.parametrize(
    ("name", "allowed"),
    # The name of a header may be any text.
    [(name, allowed) for name, _, allowed in ROWS if name != "compaction.strategy.header"],
)
def test_what_a_key_takes_is_what_its_error_says(name: str, allowed: str) -> None:
    with pytest.raises(InvalidConfigError) as failure:
        LogConfig.from_overrides({name: "no such value"})
    assert failure.value.fields["allowed"] == allowed


def test_the_bound_of_decompression_is_the_validators() -> None:
    assert (LEAST_SENT_BYTES, MAX_SENT_BYTES, MAX_SENT_FACTOR) == (16 << 20, 128 << 20, 100)
    for part in ("a hundred times its size", "to 16 MiB or `max.message.bytes`", "more than 128 MiB"):
        assert part in TEXT
