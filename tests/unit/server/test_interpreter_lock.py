"""How the threads of a server share the interpreter lock."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from stratalog.server import app
seen = []
app._serve = lambda settings, on_ready: seen.append(sys.getswitchinterval())
app.asyncio.run = lambda main: None
app.serve(None)
print(seen)
"""


def test_a_server_shares_it_more_often_than_the_interpreter_by_itself() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert ended.stdout == "[0.0005]\n"
