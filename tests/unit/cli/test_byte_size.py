"""Sizes as people read them."""

from __future__ import annotations

import json

import pytest

from stratalog.cli.byte_size import ByteSize
from stratalog.cli.output import print_table


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1.0KiB"),
        (15_846_997, "15.1MiB"),
        (1023 * 1024**2 + 1000 * 1024, "1.0GiB"),
        (1 << 40, "1.0TiB"),
        ((1 << 63) - 1, "8.0EiB"),
    ],
)
def test_a_size_has_four_digits_and_a_unit(number: int, text: str) -> None:
    assert str(ByteSize(number)) == f"{ByteSize(number)}" == text


def test_a_table_aligns_sizes_right_and_json_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("SIZE",), [(ByteSize(5),), (ByteSize(2048),)])
    assert capsys.readouterr().out == "  SIZE\n    5B\n2.0KiB\n"
    assert json.dumps(ByteSize(2048)) == "2048"
