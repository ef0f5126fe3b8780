"""Settings of the interpreter and the system that a server asks for its process."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import resource, sys
from stratalog.server import app
seen = []
app._serve = lambda settings, on_ready: seen.append(sys.getswitchinterval())
app.uvloop.run = lambda main: None
limit = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, limit)
app.serve(None)
print(seen, *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def served(soft: int, hard: int) -> str:
    command = [sys.executable, "-c", PROGRAM, str(soft), str(hard)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_interpreter_lock_is_shared_more_often_than_by_itself() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert served(hard, hard) == f"[0.0005] {hard} {hard}\n"


def test_as_many_files_may_be_open_as_the_system_allows() -> None:
    assert served(100, 200) == "[0.0005] 200 200\n"


def test_a_limit_that_cannot_be_raised_stays() -> None:
    refused = """
from stratalog.base import posix_filesystem
def refuse(kind, limits):
    raise ValueError("not allowed to raise maximum limit")
posix_filesystem.resource.setrlimit(posix_filesystem.resource.RLIMIT_NOFILE, (100, 200))
posix_filesystem.resource.setrlimit = refuse
posix_filesystem.raise_open_file_limit()
print(posix_filesystem.open_file_limit())
"""
    ended = subprocess.run([sys.executable, "-c", refused], capture_output=True, text=True, check=True)
    assert ended.stdout == "100\n"
    assert "the limit of open files stays at 100" in ended.stderr


SERVING = """
import ctypes, os, signal, sys, threading
from stratalog.server import app
from stratalog.server.configuration.settings import ServerSettings
looked, blocks = threading.Event(), []
class Looking:
    def look(self): looked.set()
app.freed_memory, app.FREED_MEMORY_MS = Looking, 1
malloc = ctypes.CDLL(None).malloc
malloc.restype = ctypes.c_size_t
def stop():
    blocks.append(malloc(1 << 16))
    looked.wait(60)
    os.kill(os.getpid(), signal.SIGTERM)
def ready(server):
    blocks.append(malloc(1 << 16))
    threading.Thread(target=stop).start()
app.serve(ServerSettings(data_dir=sys.argv[1], listen="127.0.0.1:0"), ready)
# The heap of another thread would be a mapping far away.
print(looked.is_set(), abs(blocks[0] - blocks[1]) < 1 << 30)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc and /proc")
def test_a_server_has_one_heap_and_looks_at_its_freed_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVING, f"{tmp_path}/data"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == "True True\n"
