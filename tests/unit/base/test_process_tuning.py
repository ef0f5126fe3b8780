"""Settings of the whole process, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc
from stratalog.base.process_tuning import COLLECTOR_THRESHOLDS, exempt_loaded_objects
kept = [[number] for number in range(100_000)]
exempt_loaded_objects()
assert gc.get_threshold() == COLLECTOR_THRESHOLDS
assert gc.get_freeze_count() > 100_000, gc.get_freeze_count()
assert not any(one is kept[0] for one in gc.get_objects())
ring = []
ring.append(ring)
del ring
assert gc.collect() >= 1, "later garbage is found as ever"
"""


def test_loaded_objects_are_exempt_from_collection() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
