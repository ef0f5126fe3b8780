"""Which kernels are used: the compiled ones where they were built, their twins where asked for or needed."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest

QUESTION = """
import sys
if sys.argv[1] == "missing":
    sys.modules["stratalog.record.native._kernels"] = None
from stratalog.record.native import kernels
from stratalog.record.batch import decode
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
assert decode(encode_batch([Record(0, 1, b"k", b"v")])) == [Record(0, 1, b"k", b"v")]
print(kernels.NATIVE, kernels.scan_records.__module__)
"""


def answer(variable: str, argument: str = "present") -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "STRATALOG_PURE_KERNELS": variable}
    command = [sys.executable, "-c", QUESTION, argument]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def test_the_environment_can_force_the_twins() -> None:
    assert answer("1") == "False stratalog.record.native.pure_kernels"


def test_a_missing_module_is_no_error() -> None:
    assert answer("", "missing") == "False stratalog.record.native.pure_kernels"


def test_the_compiled_ones_are_used_where_they_are() -> None:
    try:
        importlib.import_module("stratalog.record.native._kernels")
    except ImportError:
        pytest.skip("the compiled kernels were not built")
    assert answer("") == "True stratalog.record.native._kernels"
