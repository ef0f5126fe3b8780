"""A table's columns are found by the names that Spark would find, and none is lost in silence."""

from __future__ import annotations

import pytest

from stratalog.base.errors import InvalidRequestError
from stratalog.pipeline.transfer.table_columns import named_columns, require_time_type


def test_names_are_found_in_any_case() -> None:
    names = ["Key", "value", "TIMESTAMP", "colour"]
    found = named_columns(names, (), is_case_sensitive=False)
    assert found == {"key": "Key", "value": "value", "timestamp": "TIMESTAMP"}
    assert named_columns(names, {"key"}, is_case_sensitive=False).keys() == {"value", "timestamp"}


def test_a_name_that_case_hides_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        named_columns(["Key", "value"], (), is_case_sensitive=True)
    assert caught.value.fields["found"] == "Key"
    assert named_columns(["Key", "value"], {"key"}, is_case_sensitive=True) == {"value": "value"}


@pytest.mark.parametrize("is_case_sensitive", [True, False])
def test_names_that_differ_by_case_only_are_refused(is_case_sensitive: bool) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        named_columns(["key", "KEY", "value"], (), is_case_sensitive=is_case_sensitive)
    assert caught.value.fields["columns"] == "key, KEY"
    # Columns that no record has may be alike.
    named_columns(["value", "colour", "Colour"], (), is_case_sensitive=is_case_sensitive)


def test_a_number_is_of_milliseconds_only_if_it_is_whole() -> None:
    assert [require_time_type(kind) for kind in ("byte", "short", "integer", "long", "decimal")] == [True] * 5
    assert not any(require_time_type(kind) for kind in ("timestamp", "timestamp_ntz", "date", "void"))
    for kind, scale in (("double", 0), ("float", 0), ("decimal", 3), ("string", 0), ("boolean", 0)):
        with pytest.raises(InvalidRequestError):
            require_time_type(kind, scale)
