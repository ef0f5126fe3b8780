"""Settings of the whole process that make a server, or a worker of Spark, faster; they hold until it ends.

glibc's allocator keeps freed memory for the next request. By default it returns large blocks to the kernel
when they are freed and maps fresh ones for the next message, and the kernel clears each page at first touch.
For messages of a mebibyte that costs several times what reading, checking and copying them costs. On 1 MiB
batches, keeping up to `KEPT_BYTES` took the processor time of a read from 1.5 ms to 0.2 ms.

A server, and a process of jobs, has one heap for all threads. By default each thread has a heap of its own,
and keeps there what another one has freed: a block that one thread reads and another one uses would be kept
in all of them. Threads allocate under the interpreter lock, nearly always, so they do not wait for the heap.

Threads hand over the interpreter lock more often. The event loop waits for the lock whenever a background
thread runs Python; a switch costs a few microseconds.

Python's garbage collector looks at every object that it tracks, again and again. A server keeps hundreds of
thousands from its start to its end: the rows of partitions, objects and topics. Because of that, some commits
to 5,000 partitions took 200 to 350 ms instead of 45. So the objects of the start are exempt, and passes come
less often.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import sys

logger = logging.getLogger(__name__)

KEPT_BYTES = 128 << 20
MMAP_THRESHOLD_BYTES = 32 << 20
"""The largest value that glibc takes. Smaller blocks come from the heap and stay there."""
SWITCH_INTERVAL_S = 0.0005
"""A tenth of Python's default. One call of compiled code may still hold the lock longer."""

COLLECTOR_THRESHOLDS = (10_000, 2, 190)
"""New objects before a pass over these, such passes before one over their survivors, and those before one
over all. Python's defaults are 700, 10 and 10. A survivor is looked at once by a pass of the second kind,
however often these come; with 10 in place of 2 each of them took 40 ms."""

COLLECTOR_THRESHOLDS_OF_JOBS = (10_000, 50, 190)
"""Those of a process of jobs, where no client waits for a pass. What a job makes mostly stays until its end:
a second look at it was 5 % of a job with many partitions."""

# Constants of glibc's malloc.h, which are part of its interface.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def keep_freed_memory(kept_bytes: int = KEPT_BYTES) -> bool:
    """Make the allocator keep so much freed memory. Returns False, and changes nothing, with another C
    library."""
    accepted = _allocate(_M_TRIM_THRESHOLD, kept_bytes) and _allocate(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
    if accepted is False:
        logger.info("the allocator refused its setting; large messages cost more processor time")
    return bool(accepted)


def share_one_heap() -> bool:
    """Let all threads allocate from one heap; call it before there are any. Returns False, and changes
    nothing, with another C library."""
    accepted = _allocate(_M_ARENA_MAX, 1)
    if accepted is False:
        logger.info("the allocator refused its setting; threads may keep more memory")
    return bool(accepted)


def return_freed_memory() -> bool:
    """Return all free pages of all heaps to the system. Returns False, and changes nothing, with another C
    library. Other threads that need the heap wait meanwhile, for some milliseconds."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim.argtypes = (ctypes.c_size_t,)
    trim(0)
    return True


def _allocate(setting: int, value: int) -> bool | None:
    """Change a setting of the allocator, which may refuse it; None if it has none."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return None
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    return bool(mallopt(setting, value))


def share_interpreter_lock() -> None:
    """Make threads switch every `SWITCH_INTERVAL_S`."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def exempt_loaded_objects(thresholds: tuple[int, int, int] = COLLECTOR_THRESHOLDS) -> None:
    """Exempt all objects of the process from passes of the garbage collector, and make passes rarer, by these
    thresholds. For the end of a start; reference counts go on as ever."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*thresholds)


def tune_for_jobs() -> None:
    """Make a process faster that executes jobs of compaction. For the end of a start; before there are
    threads it calls `share_one_heap`."""
    keep_freed_memory()
    share_interpreter_lock()
    exempt_loaded_objects(COLLECTOR_THRESHOLDS_OF_JOBS)
