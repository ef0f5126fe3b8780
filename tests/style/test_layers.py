"""import-linter keeps the layers, ruff the seams: violations planted here show that both still look."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TOOL = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]
ROOTS: list[str] = TOOL["hatch"]["build"]["dev-mode-dirs"]

PLANTED = {
    "imports go down only": ("storage/stratalog/log/planted.py", "import stratalog.remote.planted"),
    "the rooms of record go down only": (
        "storage/stratalog/record/codecs/planted.py",
        "import stratalog.record.native.kernels",
    ),
    "the rooms of segment go down only": (
        "storage/stratalog/segment/indexes/planted.py",
        "import stratalog.segment.log_segment",
    ),
    "the rooms of log go down only": (
        "storage/stratalog/log/producers/planted.py",
        "import stratalog.log.read.log_reader",
    ),
    "the rooms of cleaner go down only": (
        "storage/stratalog/cleaner/clean/planted.py",
        "import stratalog.cleaner.cleaner_manager",
    ),
    "the rooms of manager go down only": (
        "storage/stratalog/manager/directories/planted.py",
        "import stratalog.manager.partitions.put_away",
    ),
    "the rooms of remote go down only": (
        "tiering/stratalog/remote/metadata/head/planted.py",
        "import stratalog.remote.metadata.shard.shard_state",
    ),
    "the rooms of compaction go down only": (
        "tiering/stratalog/compaction/plan/planted.py",
        "import stratalog.compaction.compactor",
    ),
    "the rooms of pipeline go down only": (
        "pipeline/stratalog/pipeline/source/planted.py",
        "import stratalog.pipeline.local_session",
    ),
    "the rooms of lake go down only": (
        "pipeline/stratalog/pipeline/lake/values/planted.py",
        "import stratalog.pipeline.lake.formats.delta_log",
    ),
    "the rooms of server go down only": (
        "service/stratalog/server/fetch/planted.py",
        "import stratalog.server.rpc.status",
    ),
    "the rooms of partitions go down only": (
        "service/stratalog/server/partitions/hosted_shard.py",
        "import stratalog.server.partitions.opening.partition_opener",
    ),
    "the rooms of rpc go down only": (
        "service/stratalog/server/rpc/read/planted.py",
        "import stratalog.server.rpc.admin.admin_convert",
    ),
    "the rooms of client go down only": (
        "client/stratalog/client/consuming/planted.py",
        "import stratalog.client.client",
    ),
    "the rooms of cli go down only": (
        "cli/stratalog/cli/demo/planted.py",
        "import stratalog.cli.log_dump.dump_command",
    ),
    "local logs know no object store": (
        "storage/stratalog/manager/planted.py",
        "import stratalog.objectstore.planted",
    ),
    "the engine knows no wire": ("tiering/stratalog/remote/planted.py", "import grpc"),
    "the client knows the wire, records and the base": (
        "client/stratalog/client/planted.py",
        "import stratalog.log.planted",
    ),
    "only the command line and the pipeline use the client": (
        "service/stratalog/server/planted.py",
        "import stratalog.client.planted",
    ),
    "the pipeline reads objects, not local logs, and needs no server": (
        "pipeline/stratalog/pipeline/planted.py",
        "import stratalog.server.planted",
    ),
    "the test doubles are those of the engine": (
        "testing/stratalog/testing/planted_too.py",
        "import stratalog.server.planted",
    ),
    "only objectstore.s3 imports boto3": (
        "testing/stratalog/testing/planted.py",
        "import boto3",
    ),
    "only the pipeline imports pyspark": ("cli/stratalog/cli/planted.py", "import pyspark"),
}


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(tree / root) for root in ROOTS)
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copied_tree(tmp_path: Path) -> Path:
    for root in ROOTS:
        shutil.copytree(REPOSITORY / root, tmp_path / root, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_contract_has_a_planted_violation() -> None:
    assert [contract["name"] for contract in TOOL["importlinter"]["contracts"]] == list(PLANTED)


def test_rooms_of_a_package_are_in_a_contract() -> None:
    rooms = {
        ".".join(path.parent.relative_to(REPOSITORY / root).parts)
        for root in ROOTS
        for path in (REPOSITORY / root / "stratalog").glob("*/*/**/__init__.py")
    }
    layered = {
        f"{container}.{room.strip()}"
        for contract in TOOL["importlinter"]["contracts"]
        for container in contract.get("containers", ())
        for layer in contract["layers"]
        for room in layer.split("|")
    }
    # A room of rooms is as good as its rooms.
    innermost = {room for room in rooms if not any(other.startswith(f"{room}.") for other in rooms)}

    assert innermost - layered == set()


def test_contracts_find_what_was_planted(copied_tree: Path) -> None:
    for name, text in PLANTED.values():
        (copied_tree / name).write_text(f"{text}\n")
    said = lint_imports(copied_tree)
    broken = set(re.findall(r"^(.*) BROKEN", said.stdout, re.MULTILINE))

    assert said.returncode != 0
    assert broken == set(PLANTED), said.stdout + said.stderr


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "from time import monotonic",
        "import boto3",
        "import pyspark.sql",
        "import secrets",
        "import random\n\nrandom.random()",
        "import uuid\n\nuuid.uuid4()",
        "import datetime\n\ndatetime.datetime.now(datetime.UTC)",
        "import os\n\nos.fsync(1)",
        "import threading\n\nthreading.Thread()",
    ],
)
def test_ruff_bans_what_has_a_seam(text: str) -> None:
    ruff = [sys.executable, "-m", "ruff", "check", "--select", "TID251", "--stdin-filename"]
    said = subprocess.run(
        [*ruff, "storage/stratalog/log/planted.py", "-"],
        cwd=REPOSITORY,
        input=f"{text}\n",
        capture_output=True,
        text=True,
        check=False,
    )

    assert said.returncode == 1
    assert "TID251" in said.stdout
