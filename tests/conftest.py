"""Settings of all tests: how hard Hypothesis tries, and how to repeat what it found.

The profile is chosen by HYPOTHESIS_PROFILE:

* ``dev`` (default): 50 examples, new ones each run, so that many runs see much;
* ``ci`` (`make test`): 20 examples, the same each run, so that a change fails for what it changed;
* ``simulate`` (`make simulate`): 2,000 new examples, for a machine that has the night.

Tests that go through more cases than there is time for take a part of them, but with ``simulate``: see
`Sampling`.

A failure prints a line to repeat it, whichever profile found it.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

# Spark forks to start its JVM, and gRPC's handlers for that can kill the child. Read when gRPC is first
# imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A run in the background of a script ignores Ctrl-C, and so would the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import HealthCheck, settings

from tests.support.logs.sampling import IS_WHOLE, SEED

# Deadlines measure the machine and what else runs on it, not the code.
_COMMON = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", _COMMON, max_examples=50)
settings.register_profile("ci", _COMMON, max_examples=14, derandomize=True, database=None)
settings.register_profile("simulate", _COMMON, max_examples=2_000)
_MAX_WORKERS = 8
_GARBAGE_THRESHOLDS = (10_000, 20, 20)
"""Python's own are 700, 10 and 10, with which garbage takes a test of many objects a twelfth of its processor
time, and two thirds of that with these."""
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "dev")
WORKER = os.environ.get("PYTEST_XDIST_WORKER")
"""Its name, "gw0" and so on; None in a process that runs its tests itself, or gives them out."""
settings.load_profile(PROFILE)


@pytest.fixture
def quiet_servers() -> Iterator[None]:
    """Servers log nothing: in lives of many steps their lines would take longer than their work."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Half as many workers again as cores: a test often waits for its server, its broker or its disk."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = (os.cpu_count() or 1) if affinity is None else len(affinity(0))
    return min(_MAX_WORKERS, cores + cores // 2)


def pytest_configure(config: pytest.Config) -> None:
    """Let each worker collect the files from another place on, if it collects folders.

    In a fresh clone the first one that meets a file compiles it, which takes longer than all else in a
    collection. Workers that went in step would each compile everything."""
    if WORKER is None or not all(Path(arg).is_dir() for arg in config.args):
        return
    files = sorted(
        {
            found
            for arg in config.args
            for pattern in config.getini("python_files")
            for found in Path(arg).absolute().rglob(pattern)
        }
    )
    first = len(files) * int(WORKER.removeprefix("gw")) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    config.args[:] = map(str, files[first:] + files[:first])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the collector of garbage the tests themselves: while they become more, and later, when a whole
    pass over ten thousand of them costs seconds, and many a test has one."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*_GARBAGE_THRESHOLDS)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Run slow tests first: a worker that begins with one at the end keeps all others waiting.

    Those with a session of Spark come before the others. Workers begin with neighbours, and take the last
    tests from each other, so one worker runs them all, with one JVM. All workers need the same order, from
    whichever file they collected."""
    items.sort(key=lambda item: item.path)
    yield
    items.sort(key=lambda item: (item.get_closest_marker("slow") is None, "spark" not in _fixtures(item)))


def _fixtures(item: pytest.Item) -> list[str]:
    return item.fixturenames if isinstance(item, pytest.Function) else []


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Shown first, so that a log tells how to repeat the run."""
    part = "all" if IS_WHOLE else f"a part, STRATALOG_SIMULATION_FIRST_SEED={SEED}"
    return [
        f"hypothesis: HYPOTHESIS_PROFILE={PROFILE}, {settings.get_profile(PROFILE).max_examples} examples",
        f"exhaustive tests that may be sampled: {part}",
    ]
