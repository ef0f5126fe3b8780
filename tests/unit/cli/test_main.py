"""The command as a process: what it sets up before anything else is imported."""

from __future__ import annotations

import os
import subprocess
import sys

SHOW = """
import os, sys
from stratalog.cli import main
sys.argv = ["stratalog", "--help"]
try:
    main.main()
except SystemExit:
    setting = os.environ.get("GRPC_ENABLE_FORK_SUPPORT")
    print("fork handlers:", setting, "grpc imported:", "grpc" in sys.modules)
"""


def _shown(**more: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")} | more
    done = subprocess.run(
        [sys.executable, "-c", SHOW], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


def test_grpc_leaves_out_its_fork_handlers_which_can_end_the_jvm_that_spark_forks() -> None:
    assert _shown() == "fork handlers: 0 grpc imported: False"


def test_whoever_sets_the_fork_handlers_keeps_them() -> None:
    assert _shown(GRPC_ENABLE_FORK_SUPPORT="1") == "fork handlers: 1 grpc imported: False"
