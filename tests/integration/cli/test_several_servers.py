"""The lines of docs/several_servers.md in their order, against real servers: the second one is killed before
the line that replaces it."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from click.testing import CliRunner

from stratalog.base.clock import SystemClock
from stratalog.base.errors import NotOwnerError
from stratalog.cli.main import stratalog
from stratalog.client.blocking.sync_client import SyncClient
from tests.support.service.documented_examples import lines_of, words_of
from tests.support.service.server_process import ServerProcess
from tests.support.service.service_bench import PATIENCE_S

DOCUMENT = "docs/several_servers.md"
SERVER_COUNT = 3


class TwoMachines:
    """The servers that the lines start, by the address that the document gives them. Not thread-safe."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._servers: dict[str, ServerProcess] = {}
        self.start_count = 0

    def start(self, words: list[str]) -> None:
        """Start the server of a line, after the death of the former one of this address."""
        options = dict(zip(words[3::2], words[4::2], strict=True))
        address = options.pop("--listen")
        assert (options.pop("--data-dir"), options.pop("--store")) == ("/data", "s3://bucket/prefix")
        former = self._servers.get(address)
        if former is not None:
            former.kill()
        self.start_count += 1
        self._servers[address] = ServerProcess(
            f"{self._folder}/data{self.start_count}",
            store_url=f"file://{self._folder}/store",
            options=[word for option in options.items() for word in option],
        )
        self._stack.enter_context(self._servers[address])

    def run(self, line: str) -> str:
        """Run the line, perhaps behind `echo` and a pipe; returns what it prints."""
        for address, server in self._servers.items():
            line = line.replace(address, server.address)
        words = words_of(line)
        echoed, command = "", words
        if words[0] == "echo":
            pipe = words.index("|")
            echoed, command = " ".join(words[1:pipe]) + "\n", words[pipe + 1 :]
        result = CliRunner().invoke(stratalog, command[1:], input=echoed)
        is_left_out = isinstance(result.exception, NotOwnerError) and "left_out" in result.exception.fields
        is_of_one = command[1:3] == ["tier", "upload"]
        assert (result.exit_code, is_left_out) == (int(is_of_one), is_of_one), f"{line}: {result.output}"
        return result.stdout

    def wait_for(self, topic: str) -> None:
        """Wait until all servers know the topic."""
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + PATIENCE_S
        for server in self._servers.values():
            with SyncClient(server.address) as client:
                while topic not in {one.name for one in client.admin.list_topics()}:
                    assert clock.monotonic_s() < deadline_s, f"{server.address} does not follow"


def test_the_lines_of_the_document_run_in_their_order(tmp_path: Path) -> None:
    printed: dict[str, list[str]] = {}
    with ExitStack() as stack:
        machines = TwoMachines(tmp_path, stack)
        for line in lines_of(DOCUMENT):
            words = words_of(line)
            if words[:3] == ["stratalog", "server", "start"]:
                machines.start(words)
            else:
                name = line.split("stratalog ")[1].split(" --")[0]
                printed.setdefault(name, []).append(machines.run(line))
                if name == "topic create orders":
                    machines.wait_for("orders")
        both = "127.0.0.1:9190,127.0.0.1:9191"
        described = json.loads(machines.run(f"stratalog log describe orders --json --server {both}"))
    assert machines.start_count == SERVER_COUNT
    before, after = printed["consume orders"]
    assert before == "paid\n"
    # The new owner has what was uploaded.
    assert after == before
    assert sum(one["log_end_offset"] for one in described) == 1
    assert [one.get("offline") for one in described] == [None] * 8
