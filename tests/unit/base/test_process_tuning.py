"""Settings of the whole process, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc
from stratalog.base.process_tuning import (
    COLLECTOR_THRESHOLDS, COLLECTOR_THRESHOLDS_OF_JOBS, exempt_loaded_objects)
kept = [[number] for number in range(100_000)]
exempt_loaded_objects()
assert gc.get_threshold() == COLLECTOR_THRESHOLDS
assert gc.get_freeze_count() > 100_000, gc.get_freeze_count()
assert not any(one is kept[0] for one in gc.get_objects())
ring = []
ring.append(ring)
del ring
assert gc.collect() >= 1, "later garbage is found as ever"
exempt_loaded_objects(COLLECTOR_THRESHOLDS_OF_JOBS)
assert gc.get_threshold() == COLLECTOR_THRESHOLDS_OF_JOBS
"""


def test_loaded_objects_are_exempt_from_collection() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)


ONE_HEAP = """
import ctypes, sys, threading
from stratalog.base.process_tuning import share_one_heap
is_set = share_one_heap()
malloc = ctypes.CDLL(None).malloc
malloc.restype = ctypes.c_size_t
here, there = malloc(1 << 16), []
thread = threading.Thread(target=lambda: there.append(malloc(1 << 16)))
thread.start()
thread.join()
# The heap of another thread would be a mapping far away.
assert not is_set or abs(here - there[0]) < 16 << 20, (here, there)
"""


def test_threads_share_one_heap() -> None:
    subprocess.run([sys.executable, "-c", ONE_HEAP], check=True)


FOR_JOBS = """
import gc, sys
from stratalog.base.process_tuning import COLLECTOR_THRESHOLDS_OF_JOBS, SWITCH_INTERVAL_S, tune_for_jobs
kept = [[number] for number in range(1_000)]
tune_for_jobs()
assert gc.get_threshold() == COLLECTOR_THRESHOLDS_OF_JOBS
assert gc.get_freeze_count() > 1_000
assert sys.getswitchinterval() == SWITCH_INTERVAL_S
"""


def test_a_process_of_jobs() -> None:
    subprocess.run([sys.executable, "-c", FOR_JOBS], check=True)
