"""The benchmark of uploads counts requests: at a size that says nothing of speed."""

from __future__ import annotations

from upload import MIB, OBJECT_BYTES, count_requests


def test_requests_are_counted() -> None:
    data, commits = count_requests(20, 8 * MIB)
    assert OBJECT_BYTES > 8 * MIB
    assert (data.ours, commits.ours) == (1, 1)
    assert not data.met, "8 MiB would fill less than one object"
    assert commits.met
