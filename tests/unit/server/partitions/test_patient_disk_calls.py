"""A disk that hangs costs one wait, and its work is neither lost nor done on a closed file."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from functools import partial

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.patient_lock import PatientLock
from stratalog.server.partitions import patient_disk_calls
from stratalog.server.partitions.patient_disk_calls import PatientDiskCalls
from stratalog.server.partitions.scratch_filesystem import ScratchFileSystem
from stratalog.testing.manual_clock import ManualClock
from tests.support.gate import Gate
from tests.support.logs.hooked_disk import HookedDisk


class Beside:
    """Threads, one for each piece of work. Belongs to the test's thread."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        self._threads.append(thread)

    def join(self) -> None:
        for one in self._threads:
            one.join()


def calls_of(beside: Beside, directory_count: int = 2) -> PatientDiskCalls:
    return PatientDiskCalls(ManualClock(), beside.run, directory_count)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patient_disk_calls, "PATIENCE_S", 0.05)


def test_a_silent_directory_is_refused_at_once_until_it_answers() -> None:
    beside, gate = Beside(), Gate()
    calls = calls_of(beside)
    gate.close()
    try:
        with pytest.raises(DataDirectoryError) as silence:
            calls.run("/a", gate.pass_through)
        assert silence.value.fields["path"] == "/a"
        assert calls.is_silent("/a")
        assert not calls.is_silent("/b")
        begun: list[str] = []
        with pytest.raises(DataDirectoryError):
            calls.run("/a", lambda: begun.append("/a"))
        assert not begun
        assert calls.run("/b", lambda: "answer") == "answer"
    finally:
        gate.open()
    beside.join()
    assert not calls.is_silent("/a")


def test_a_directory_is_silent_until_all_work_on_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one begins before the first one is given up, and each may still change files."""
    held: list[Callable[[], None]] = []
    calls = PatientDiskCalls(ManualClock(), held.append, 2)

    def give_up_a_work() -> None:
        with pytest.raises(DataDirectoryError):
            calls.run("/a", lambda: None)

    def have_no_patience(*_: object) -> None:
        pass

    def meet_another(*_: object) -> None:
        monkeypatch.setattr(patient_disk_calls, "wait", have_no_patience)
        give_up_a_work()

    monkeypatch.setattr(patient_disk_calls, "wait", meet_another)
    give_up_a_work()
    assert len(held) == 2
    while held:
        assert calls.is_silent("/a")
        held.pop()()
    assert not calls.is_silent("/a")


def test_work_that_goes_on_is_not_given_up() -> None:
    calls, gate = calls_of(Beside()), Gate()
    gate.close()
    steps: list[None] = []

    def progress() -> int:
        steps.append(None)
        if len(steps) == 3:
            gate.open()
        return len(steps)

    calls.run("/a", gate.pass_through, progress)
    assert len(steps) >= 3


def test_a_wait_for_the_lock_of_a_log_fails_alone() -> None:
    """A long fsync keeps it on a disk that is slow and healthy."""
    beside = Beside()
    calls = calls_of(beside)
    refusal = DataDirectoryError("the log is busy", path="/a/t-0")
    lock = PatientLock(lambda: refusal)
    done: list[str] = []

    def work() -> None:
        with lock, lock:
            done.append("work")

    with lock:
        with pytest.raises(DataDirectoryError, check=lambda error: error is refusal):
            calls.run("/a", work, lock=lock)
        assert not calls.is_silent("/a")
        assert calls.run("/a", lambda: "answer", lock=lock) == "answer"
    beside.join()
    # It does not happen later.
    assert not done
    calls.run("/a", work, lock=lock)
    assert done == ["work"]


def test_work_has_its_time_behind_a_wait_for_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait and what comes behind it are steps."""
    beside = Beside()
    calls = calls_of(beside)
    lock = PatientLock(lambda: DataDirectoryError("the log is busy", path="/a/t-0"))
    taken, ended, looks = threading.Event(), threading.Event(), list[None]()

    def work() -> str:
        with lock:
            taken.set()
            assert ended.wait(30)
            return "answer"

    def end_behind_the_first_look(_running: object, _patience_s: float) -> None:
        if looks:
            ended.set()
            beside.join()
        looks.append(None)
        assert taken.wait(30)

    monkeypatch.setattr(patient_disk_calls, "wait", end_behind_the_first_look)
    assert calls.run("/a", work, lock=lock) == "answer"
    assert len(looks) == 2


def test_directories_are_waited_for_side_by_side() -> None:
    """One that gets on has its time, and the silence of another is no loss of the results."""
    beside, gates = Beside(), {path: Gate() for path in ("/a", "/b", "/c")}
    calls = calls_of(beside, 3)
    for path in ("/a", "/b"):
        gates[path].close()
    looks: list[str] = []

    def progress(path: str) -> int:
        looks.append(path)
        if path == "/b" and looks.count("/b") == 4:
            gates["/b"].open()
        return looks.count("/b") if path == "/b" else 7

    def work(path: str) -> str:
        gates[path].pass_through()
        return f"answer of {path}"

    works = {path: partial(work, path) for path in gates}
    try:
        answers = calls.run_each(works, progress)
        assert answers.results == {path: f"answer of {path}" for path in ("/b", "/c")}
        assert {path: one.fields["path"] for path, one in answers.silences.items()} == {"/a": "/a"}
        assert looks.count("/b") >= 4
        again = calls.run_each({path: partial(int, "3") for path in gates})
        assert again.results == {"/b": 3, "/c": 3}
        assert again.silences.keys() == {"/a"}
    finally:
        gates["/a"].open()
    beside.join()
    assert calls.run_each(works).results.keys() == gates.keys()


def test_the_error_of_one_directory_comes_after_the_work_in_the_others() -> None:
    beside, failed, ended = Beside(), threading.Event(), threading.Event()

    def fail() -> None:
        failed.set()
        raise OSError(errno.EIO, "the disk fails")

    def slow() -> None:
        assert failed.wait(10)
        ended.set()

    with pytest.raises(OSError, check=lambda error: error.errno == errno.EIO):
        calls_of(beside).run_each({"/a": fail, "/b": slow})
    assert ended.is_set()


def test_the_only_directory_is_waited_for_by_the_caller_but_for_looks() -> None:
    beside, gate = Beside(), Gate()
    calls = calls_of(beside, 1)
    threads = {
        calls.run("/a", threading.get_ident),
        *calls.run_each({"/a": threading.get_ident}).results.values(),
    }
    assert threads == {threading.get_ident()}
    gate.close()
    try:
        assert calls.run_each({"/a": gate.pass_through}, even_alone=True).silences.keys() == {"/a"}
        assert calls.is_silent("/a")
        assert calls.run("/a", lambda: 7) == 7
    finally:
        gate.open()
    beside.join()
    assert not calls.is_silent("/a")


def test_a_scratch_file_is_closed_after_the_write_that_hangs_and_takes_no_later_one() -> None:
    beside, gate = Beside(), Gate()
    seen: list[str] = []

    def before(name: str, _: str) -> None:
        if name == "append":
            gate.pass_through()
        seen.append(name)

    disk = HookedDisk(before)
    disk.make_directories("/a")
    calls = calls_of(beside)
    file = ScratchFileSystem(disk, ["/a", "/b"], calls).open_append("/a/1.data")
    gate.close()
    try:
        with pytest.raises(OSError, check=lambda error: error.errno == errno.ETIMEDOUT):
            file.append([b"x"])
        file.close()
        with pytest.raises(OSError, check=lambda error: error.errno == errno.ETIMEDOUT):
            file.append([b"y"])
    finally:
        gate.open()
    beside.join()
    assert disk.read_file("/a/1.data") == b"x"


def test_a_process_that_was_stopped_and_goes_on_gives_no_disk_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait was over when it went on, before the disk's thread had its turn."""
    beside, gate, turns = Beside(), Gate(), list[float]()

    def wait_beside_a_stop(running: Collection[Future[object]], patience_s: float) -> None:
        turns.append(patience_s)
        if len(turns) > 1:
            gate.open()
            wait(running)

    def answer() -> str:
        gate.pass_through()
        return "answer"

    monkeypatch.setattr(patient_disk_calls, "wait", wait_beside_a_stop)
    gate.close()
    try:
        assert calls_of(beside).run("/a", answer) == "answer"
    finally:
        gate.open()
        beside.join()
    assert len(turns) == 2
    assert sum(turns) < patient_disk_calls.PATIENCE_S
