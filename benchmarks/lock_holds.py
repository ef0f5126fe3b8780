"""How long a thread holds the interpreter lock: from taking it to letting it go, by trace points.

`perf` sets a probe on the interpreter's two functions, so what is measured is the interpreter itself, to the
microsecond, whoever else waits for the lock or not. A stretch in which the operating system took the
processor away says nothing about the code and is counted apart.

It needs Linux, `perf`, the right to set probes (root, as a rule) and an interpreter with symbols; where one
of them is missing, that is said.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NamedTuple

_GROUP = f"probe_stratalog_{os.getpid()}"
_TAKEN, _LET_GO, _SWITCHED = f"{_GROUP}:taken__return", f"{_GROUP}:let_go", "sched:sched_switch"
_LINE = re.compile(r"\s*(?P<seconds>\d+\.\d+):\s+(?P<event>\S+):")


class ProbeMissingError(Exception):
    """The reason why nothing can be measured here."""


class LockHolds(NamedTuple):
    """Sorted, in seconds."""

    whole: list[float]
    """Stretches on the processor from beginning to end."""
    interrupted: list[float]
    """Those in which the thread lost the processor: longer than what it did."""


def holds_of(work: Callable[[], object]) -> LockHolds:
    """What this thread holds the lock for while it does that. Raises ProbeMissingError."""
    with _probes(), tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder:
        recording = Path(folder, "perf.data")
        with _recorded(recording):
            work()
        return _read(recording)


def _perf(*arguments: str) -> str:
    """Raises ProbeMissingError."""
    program = shutil.which("perf")
    if program is None:
        raise ProbeMissingError("there is no perf")
    ended = subprocess.run([program, *arguments], check=False, capture_output=True, text=True, timeout=300)
    if ended.returncode != 0:
        last = (ended.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ProbeMissingError(f"perf {arguments[0]} failed: {last.strip()}")
    return ended.stdout


def _interpreter() -> str:
    """The file that has the interpreter's code: a library, or the program."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            if "libpython" in line:
                return line.split()[-1]
    return str(Path(sys.executable).resolve())


@contextlib.contextmanager
def _probes() -> Generator[None]:
    try:
        for probe in (f"{_GROUP}:taken=take_gil%return", f"{_GROUP}:let_go=drop_gil"):
            _perf("probe", "-q", "-x", _interpreter(), "--add", probe)
        yield
    finally:
        with contextlib.suppress(ProbeMissingError):
            _perf("probe", "--del", f"{_GROUP}:*")


@contextlib.contextmanager
def _recorded(target: Path) -> Generator[None]:
    """Record the events of this thread."""
    program = shutil.which("perf")
    assert program is not None, "the probes were set by it"
    control, acknowledged = target.with_name("control"), target.with_name("acknowledged")
    os.mkfifo(control)
    os.mkfifo(acknowledged)
    events = [part for event in (_TAKEN, _LET_GO, _SWITCHED) for part in ("-e", event)]
    recording = ["record", "-q", "-m", "8M", "-o", str(target), "-t", str(threading.get_native_id())]
    # It begins when it is told to.
    begins = ["-D", "-1", "--control", f"fifo:{control},{acknowledged}"]
    recorder = subprocess.Popen([program, *recording, *begins, *events], stdout=subprocess.DEVNULL)
    try:
        control.write_text("enable\n")
        if not acknowledged.open("rb").read(3):
            raise ProbeMissingError("perf record did not begin")
        yield
    finally:
        recorder.send_signal(signal.SIGINT)
        recorder.wait(60)


def _read(recording: Path) -> LockHolds:
    whole: list[float] = []
    interrupted: list[float] = []
    taken_s: float | None = None
    was_interrupted = False
    for line in _perf("script", "-i", str(recording), "-F", "time,event").splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        now_s = float(found["seconds"])
        if found["event"] == _TAKEN:
            taken_s, was_interrupted = now_s, False
        elif found["event"] == _SWITCHED:
            was_interrupted = True
        elif taken_s is not None:
            (interrupted if was_interrupted else whole).append(now_s - taken_s)
            taken_s = None
    if not whole:
        raise ProbeMissingError("perf recorded nothing")
    return LockHolds(sorted(whole), sorted(interrupted))
