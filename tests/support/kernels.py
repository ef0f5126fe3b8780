"""The compiled kernels, and marks for tests that run with them and with their twins in plain Python."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest

try:
    native: Any = importlib.import_module("stratalog.record.native._kernels")
except ImportError:
    native = None

needs_native = pytest.mark.skipif(native is None, reason="the compiled kernels were not built")


def both_kinds(pure: ModuleType) -> list[Any]:
    """The module in plain Python, and the compiled one where it was built."""
    return [pure] if native is None else [pure, native]


def each_kind(pure: ModuleType) -> pytest.MarkDecorator:
    """Runs a test with both kinds as its parameter `kernels`."""
    kinds = both_kinds(pure)
    return pytest.mark.parametrize("kernels", kinds, ids=["pure", "compiled"][: len(kinds)])
