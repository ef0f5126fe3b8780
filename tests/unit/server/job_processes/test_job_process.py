"""A process that stops in the middle of a message, or that no signal ends."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
from collections.abc import Callable, Generator
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import pytest

from stratalog.base.errors import LogStoreError
from stratalog.server.job_processes import job_process
from stratalog.server.job_processes.job_process import JobProcess
from stratalog.server.job_processes.messages import Hello
from stratalog.server.job_processes.software_on_disk import software_digest


@pytest.fixture(name="their_end")
def _their_end(monkeypatch: pytest.MonkeyPatch) -> Generator[list[int]]:
    """A second handle of the process's end of the pipe, so that it stays open."""
    ends: list[int] = []

    def pipe() -> tuple[Any, Any]:
        ours, theirs = Pipe()
        ends.append(os.dup(theirs.fileno()))
        return ours, theirs

    monkeypatch.setattr(job_process, "Pipe", pipe)
    yield ends
    for end in ends:
        os.close(end)


def order(process: JobProcess) -> None:
    more_than_a_pipe_holds: Any = bytes(4 << 20)
    process.give(more_than_a_pipe_holds)


def answer(process: JobProcess) -> None:
    process.answer(1)


@pytest.mark.parametrize("talk", [order, answer])
def test_a_process_that_stops_within_a_message_is_killed(
    talk: Callable[[JobProcess], None], their_end: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server waited for the rest of the message for ever."""
    monkeypatch.setattr(job_process, "MESSAGE_PATIENCE_S", 0.05)
    process = JobProcess(Hello(f"file://{tmp_path}", 30), software_digest())
    os.kill(process.pid, signal.SIGSTOP)
    os.write(their_end[0], struct.pack("!i", 100) + b"the first of 100 bytes")
    with pytest.raises(LogStoreError) as raised:
        talk(process)
    assert raised.value.fields["pid"] == process.pid
    assert process.has_ended
    assert process.end() == -signal.SIGKILL


@pytest.mark.usefixtures("their_end")
def test_a_process_that_no_signal_ends_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel ends none that waits for a disk."""
    done: list[str] = []

    class InKernel:
        pid = 1

        def __init__(self, _arguments: object, **_options: object) -> None: ...

        def kill(self) -> None:
            done.append("kill")

        def wait(self, timeout: float | None = None) -> int:
            assert timeout is not None, "it never ends"
            done.append("wait")
            raise subprocess.TimeoutExpired("worker", timeout)

    monkeypatch.setattr(subprocess, "Popen", InKernel)
    process = JobProcess(Hello("memory://", 30), "digest")
    assert process.end() == -signal.SIGKILL
    assert done == ["wait", "kill", "wait"]
