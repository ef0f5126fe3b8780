"""The options of a mapped scan, which runs without Spark's filters."""

from __future__ import annotations

import pytest

from stratalog.base.errors import InvalidConfigError

pytest.importorskip("pyspark")

GIVEN = {"store": "memory://", "topic": "t"}


def test_pushdown_is_refused() -> None:
    from stratalog.pipeline.mapped_scan import mapped_options

    assert mapped_options({**GIVEN, "pushdown": "false"}) == mapped_options(GIVEN)
    with pytest.raises(InvalidConfigError) as refused:
        mapped_options({**GIVEN, "pushdown": "true"})
    assert refused.value.fields["name"] == "pushdown"
