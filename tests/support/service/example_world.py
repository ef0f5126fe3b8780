"""A world in which the examples of documents and helps run: a server, and the things that they name.

The examples speak of the topic `orders`, of `/var/lib/stratalog`, of `s3://bucket/prefix` and the like. Each
line gets a folder of its own, with stand-ins for these, and a new topic `orders`. So the lines may run in any
order.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from click.testing import CliRunner

from stratalog.cli.main import stratalog
from stratalog.log.checkpoint import format_checkpoint, parse_checkpoint
from tests.support.places import GOLDEN
from tests.support.service.documented_examples import words_of
from tests.support.service.server_process import ServerProcess

ADDRESS = "127.0.0.1:9190"
"""The address of the server in all examples."""
TIMEOUT_S = 120

_S3_WITH_OPTIONS = (
    "s3://bucket/prefix?sse=aws:kms&sse-key=alias/logs&storage-class=STANDARD_IA&versions=delete"
)
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_MISSING_COUNT = 4
"""Missing log directories: each line that gives one up needs one."""
_PLACEHOLDERS = {
    "--broker --add KEY=VALUE": "--broker --add log.cleaner.threads=2",
    "--partitions N": "--partitions 24",
    " N": " 0",
    "TOPIC": "orders",
    "KEY=VALUE": "retention.ms=86400000",
    "--delete KEY": "--delete segment.ms",
    "POSITION": "latest",
    "ID": "00000000-0000-0000-0000-000000000000",
    "FILE": "/var/lib/stratalog/orders-0",
    "PATH": "/disk2",
    "...": "",
    "[": "",
    "]": "",
}


class Ended(NamedTuple):
    """The exit code and the outputs of a line."""

    exit_code: int
    stdout: str
    stderr: str


def without_placeholders(mention: str) -> str:
    """The mention as a line that runs: TOPIC is `orders`, and what may be left out is there."""
    for placeholder, text in _PLACEHOLDERS.items():
        mention = mention.replace(placeholder, text)
    return mention


class ExampleWorld:
    """Two log directories, a store, and one server process. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._line_count = 0
        self._log_dirs = [folder / "disk1", folder / "disk2"]
        self._missing = [folder / f"missing{number}" for number in range(_MISSING_COUNT)]
        self._missing_ids: list[str] = []
        self._server = self._server_with(self._log_dirs[1:])

    @property
    def address(self) -> str:
        return self._server.address

    def __enter__(self) -> Self:
        with self._server_with([*self._log_dirs[1:], *self._missing]) as first:
            self._server = first
            found = json.loads(self._run("log-dirs", "describe", "--json").stdout)["log_dirs"]
            first.stop()
        missing = set(map(str, self._missing))
        self._missing_ids = [one["directory_id"] for one in found if one["path"] in missing]
        self._server = self._server_with(self._log_dirs[1:])
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.kill()

    def run(self, line: str) -> Ended:
        """Run the line in this process, with a new topic `orders`. `server start` is a process of its own:
        it is stopped once it serves."""
        self._line_count += 1
        room = self._folder / f"line{self._line_count}"
        room.mkdir()
        (room / "orders.txt").write_text("7:paid\n8:open\n")
        self._renew_topic(is_tiered=" cleaner " not in line)
        line = self._with_stand_ins(line, room)
        if "server start" in line or "dev s3" in line:
            return self._serve(words_of(line))
        if "topic create orders" in line:
            self._run("topic", "delete", "orders", "--yes")
        if "log-dirs uncordon" in line:
            self._run("log-dirs", "cordon", str(self._log_dirs[1]))
        if "log-dirs move" in line:
            self._run("log-dirs", "uncordon", str(self._log_dirs[1]))
            self._run("log-dirs", "move", "orders", "--partition", "0", "--to", str(self._log_dirs[0]))
        if "--follow" in line and "status" not in line:
            # It would go on until Ctrl-C.
            line += " --max 1"
        # So would this.
        line = line.replace(" --interval 60", "")
        with contextlib.chdir(room):
            ended = self.run_as_it_stands(line)
        if "tier pause" in line:
            # A pause of all topics is one of the next lines, too.
            self._run("tier", "resume")
        return ended

    def run_as_it_stands(self, line: str) -> Ended:
        """Run the line in this process: one command, perhaps behind `echo` and a pipe."""
        *echo, command = _programs(line)
        assert command[0] == "stratalog", line
        assert [words[0] for words in echo] in ([], ["echo"]), line
        return self._run(*command[1:], stdin="".join(f"{' '.join(words[1:])}\n" for words in echo))

    def run_as_process(self, line: str) -> Ended:
        """Run the line in a shell, as it stands, in the folder of the world."""
        program = self._folder / "bin" / "stratalog"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m stratalog.cli "$@"\n')
        program.chmod(0o755)
        path = os.pathsep.join((str(program.parent), os.environ["PATH"]))
        return self._process(["sh", "-c", line], PATH=path, STRATALOG_SERVER=self.address)

    def run_program(self, text: str) -> str:
        """Run a program in this process; returns what it prints."""
        assert ADDRESS in text
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text.replace(ADDRESS, self.address), "example", "exec"), {"__name__": "__main__"})
        return printed.getvalue()

    def run_program_as_process(self, text: str) -> Ended:
        return self._process([sys.executable, "-W", "error", "-c", text.replace(ADDRESS, self.address)])

    def _server_with(self, further: Sequence[Path]) -> ServerProcess:
        options = [word for path in further for word in ("--log-dir", str(path))]
        return ServerProcess(
            str(self._log_dirs[0]), store_url=f"file://{self._folder}/store", options=options
        )

    def _run(self, *arguments: str, stdin: str = "") -> Ended:
        environment = {"STRATALOG_SERVER": self.address, **self._of_a_start()}
        result = CliRunner().invoke(stratalog, arguments, input=stdin, env=environment)
        error = "" if result.exception is None else repr(result.exception)
        return Ended(result.exit_code, result.stdout, result.stderr + error)

    def _process(self, command: Sequence[str], **environment: str) -> Ended:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
        ended = subprocess.run(
            command,
            env=environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def _serve(self, words: Sequence[str]) -> Ended:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "STRATALOG_DEV_PORT": "0",
            **self._of_a_start(),
        }
        with subprocess.Popen(
            [sys.executable, "-m", "stratalog.cli", *words[1:]],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        return Ended(process.returncode, first + stdout, stderr)

    def _of_a_start(self) -> dict[str, str]:
        """Variables with what a start needs and a mention of it leaves out."""
        return {"STRATALOG_LISTEN": "127.0.0.1:0", "STRATALOG_DATA_DIR": f"{self._folder}/tried"}

    def _renew_topic(self, *, is_tiered: bool) -> None:
        """Make a topic `orders` of two partitions, with a few records in both."""
        self._run("topic", "delete", "orders", "--yes")
        config = (
            "--config",
            "cleanup.policy=compact",
            "--config",
            f"remote.storage.enable={is_tiered}".lower(),
        )
        created = self._run("topic", "create", "orders", "--partitions", "2", *config)
        assert created.exit_code == 0, created.stderr
        lines = "".join(f"{number}:paid\n" for number in range(20))
        self._run("produce", "orders", "--key-separator", ":", stdin=lines)

    def _with_stand_ins(self, line: str, room: Path) -> str:
        """The line with what this world has instead of the places, addresses and ids of the examples."""
        if "import kafka" in line:
            _write_brokers(room)
        (room / "stratalog.toml").write_text(f'data-dir = "{room}/disk1"\n')
        if "--state-dir" in line and "compaction run" not in line:
            self._run_compactor()
        if "tier rebuild-head" in line or "tier restore" in line:
            self._copy_store(room / "store", is_headless="rebuild-head" in line)
        log_dirs, address = self._log_dirs, self.address
        if "server start" in line or "import kafka" in line:
            log_dirs, address = [room / "disk1", room / "disk2"], "127.0.0.1:0"
        bucket = self._folder / "store" if "log dump" in line else room / "store"
        [log, *_] = [found for log_dir in self._log_dirs for found in log_dir.glob("orders-0")]
        stand_ins = {
            "/data/orders-0": log,
            "/var/lib/stratalog/orders-0": log,
            "/var/lib/stratalog": log_dirs[0],
            "/var/lib/stratalog.store": bucket,
            "/tmp/stratalog": log_dirs[0],
            "/data": log_dirs[0],
            "/disk2": log_dirs[1],
            "/srv/compactor": self._folder / "compactor",
            "/var/lib/kafka": room / "broker",
            "/var/lib/copy": room / "broker",
            "/var/lib/new": room / "imported",
            "/etc/stratalog/stratalog.toml": room / "stratalog.toml",
            "/disk1/kafka": room / "broker1",
            "/disk2/kafka": room / "broker2",
            "/tmp/orders": room / "exported",
            "s3://my-bucket/stratalog": f"file://{bucket}",
            "s3://bucket/prefix?endpoint=http://127.0.0.1:9000": f"file://{bucket}",
            _S3_WITH_OPTIONS: f"file://{bucket}",
            "s3://bucket/prefix": f"file://{bucket}",
            "s3://bucket/restored": f"file://{room}/restored",
            "s3://new-bucket/prefix": f"file://{room}/store-of-imported",
            ADDRESS: address,
            "127.0.0.1:9191": "127.0.0.1:0",
            "--server 127.0.0.1:9191": f"--server {address}",
            "--port 9000": "--port 0",
            "--data DIR": f"--data {room}/objects",
        }
        if any(words in line for words in ("--read-only", "stratalog verify", "compaction run --store")):
            # Only a store with an owner, or at least a catalog, can be read.
            stand_ins["s3://bucket/prefix"] = f"file://{self._folder}/store"
        longest_first = sorted(stand_ins, key=len, reverse=True)
        line = re.sub("|".join(map(re.escape, longest_first)), lambda found: str(stand_ins[found[0]]), line)
        outside = [word for word in words_of(line) if word[0] == "/" and str(self._folder) not in word]
        assert not outside, f"there are no stand-ins for {outside}"
        return _UUID.sub(lambda _: self._id_for(line), line)

    def _run_compactor(self) -> None:
        """Have a compactor without a server leave its state."""
        state = str(self._folder / "compactor")
        self._run("compaction", "run", "--store", f"file://{self._folder}/store", "--state-dir", state)

    def _copy_store(self, folder: Path, *, is_headless: bool) -> None:
        """A store at rest with the topic `orders`; headless if its shard has lost the head."""
        self._run("tier", "upload", "orders")
        shutil.copytree(self._folder / "store", folder)
        if is_headless:
            (folder / "shards" / "0000" / "head").unlink()

    def _id_for(self, line: str) -> str:
        """The id of a log directory that is missing, or of an operation that was started."""
        if "log-dirs" in line:
            return self._missing_ids.pop()
        return self._run("tier", "upload", "orders", "--no-wait").stdout.strip()


def _programs(line: str) -> list[list[str]]:
    """The words of each program of a pipe."""
    programs: list[list[str]] = [[]]
    for word in words_of(line):
        if word == "|":
            programs.append([])
        else:
            programs[-1].append(word)
    return programs


def _write_brokers(room: Path) -> None:
    """Copies of the golden data, in which g1-compacted is called `orders`: `broker` has all topics; `broker1`
    and `broker2`, the disks of one broker, have `orders` and the others."""
    others = [path.name.removesuffix("-0") for path in (GOLDEN / "data").glob("g1-*-0")]
    others.remove("g1-compacted")
    for name, topics in (("broker", ["orders", *others]), ("broker1", ["orders"]), ("broker2", others)):
        broker = room / name
        shutil.copytree(GOLDEN / "data", broker)
        (broker / "g1-compacted-0").rename(broker / "orders-0")
        for directory in broker.glob("*-0"):
            if directory.name.removesuffix("-0") not in topics:
                shutil.rmtree(directory)
        for checkpoint in broker.glob("*-checkpoint"):
            offsets = parse_checkpoint(checkpoint.read_text().replace("g1-compacted", "orders"))
            kept = {one: offset for one, offset in offsets.items() if one.topic in topics}
            checkpoint.write_text(format_checkpoint(kept))
