"""Recognises the errors of a disk, as they are and as callers of a log see them."""

from __future__ import annotations

from collections.abc import Callable

from stratalog.base.errors import LogStoreError


def refused_by_disk(number: int) -> Callable[[Exception], bool]:
    """A check for `pytest.RaisesExc`: the operating system has refused with this errno."""

    def check(error: Exception) -> bool:
        if isinstance(error, LogStoreError):
            return f"[Errno {number}]" in str(error.fields.get("reason"))
        return isinstance(error, OSError) and error.errno == number

    return check
