"""How long a thread holds the interpreter lock: from taking it to letting it go, by trace points.

`perf` sets a probe on the interpreter's two functions, so what is measured is the interpreter itself, to the
microsecond. Time in which the operating system took the processor away says nothing about the code and is
left out; time in which the code waits for something counts.

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
import time
from collections.abc import Callable, Generator
from pathlib import Path

_GROUP = f"probe_stratalog_{os.getpid()}"
_TAKEN, _LET_GO, _SWITCHED_IN = f"{_GROUP}:taken__return", f"{_GROUP}:let_go", "PERF_RECORD_SWITCH IN"
_LINE = re.compile(r"\s*(?P<seconds>\d+\.\d+):\s+(?P<event>PERF_RECORD_SWITCH (IN|OUT preempt)|\S+(?=:))")


class ProbeMissingError(Exception):
    """The reason why nothing can be measured here."""


def holds_of(work: Callable[[], object]) -> list[float]:
    """How long this thread holds the lock at a time while it does that, on a processor: sorted, in seconds.

    Another thread wants the lock all the while, as those of a server do, so a stretch of Python ends where
    the interpreter lets it. Raises ProbeMissingError.
    """
    with _probes(), tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder:
        recording = Path(folder, "perf.data")
        with _wanted_elsewhere(), _recorded(recording):
            work()
        return read_holds(recording)


@contextlib.contextmanager
def _wanted_elsewhere() -> Generator[None]:
    """Another thread takes the lock, lets it go, and wants it back soon; before all others of the machine, so
    that it wants it when it does."""
    is_over = threading.Event()

    def want() -> None:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_FIFO, os.sched_param(1))
        while not is_over.is_set():
            time.sleep(0.0001)

    thread = threading.Thread(target=want)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _perf(*arguments: str) -> str:
    """Run `perf`. Raises ProbeMissingError."""
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
    events = [part for event in (_TAKEN, _LET_GO) for part in ("-e", event)]
    recording = [
        "record",
        "-q",
        "-m",
        "8M",
        "--switch-events",
        "-o",
        str(target),
        "-t",
        str(threading.get_native_id()),
    ]
    # It begins on a command.
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


def read_holds(recording: Path) -> list[float]:
    """The recording of `perf record`, as `holds_of` returns it. Raises ProbeMissingError."""
    found: list[float] = []
    held_s = 0.0
    is_holding = is_running = False
    began_s = 0.0
    script = _perf("script", "-i", str(recording), "-F", "time,event", "--show-switch-events")
    for line in script.splitlines():
        matched = _LINE.match(line)
        if matched is None:
            continue
        now_s, event = float(matched["seconds"]), matched["event"]
        if is_holding and is_running:
            held_s += now_s - began_s
        began_s = now_s
        if event == _TAKEN:
            is_holding, is_running, held_s = True, True, 0.0
        elif event == _LET_GO:
            if is_holding:
                found.append(held_s)
            is_holding = False
        else:
            is_running = event == _SWITCHED_IN
    if not found:
        raise ProbeMissingError("perf recorded nothing")
    return sorted(found)
