"""The client in Go, built from the .proto files by tools that `go.mod` pins."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import google.rpc.status_pb2

from tests.support.places import REPOSITORY

_SOURCE: Final = REPOSITORY / "tests" / "integration" / "service" / "clients" / "go_client"
_PACKAGE: Final = "stratalog.test/client/stratalogv1"
_BUILD_TIMEOUT_S: Final = 250.0


class GoMissingError(Exception):
    """The client cannot be built on this machine; the text says what is missing."""


def built_go_client(cache: Path) -> Path:
    """The program, from `cache` if it was built from the same files before. Raises GoMissingError where Go or
    its modules cannot be had, CalledProcessError where the sources do not compile."""
    if shutil.which("go") is None:
        raise GoMissingError("there is no `go` on this machine")
    program = cache / f"client-{_fingerprint()}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            _build(Path(scratch), Path(scratch, "client"))
            os.replace(Path(scratch, "client"), program)
    return program


def _build(scratch: Path, program: Path) -> None:
    source, tools = scratch / "source", scratch / "tools"
    shutil.copytree(_SOURCE, source)
    environment = os.environ | {"GOBIN": str(tools), "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    try:
        _run(["go", "mod", "download"], source, environment)
    except subprocess.CalledProcessError as error:
        raise GoMissingError(f"Go's modules cannot be had: {error.stderr.strip()[-200:]}") from error
    _run(["go", "install", "tool"], source, environment)
    _run(_protoc(source), REPOSITORY / "proto", environment)
    _run(["go", "vet", "."], source, environment)
    _run(["go", "build", "-o", str(program), "."], source, environment)


def _protoc(target: Path) -> list[str]:
    """The command that generates the Go code; options name its package, of which the files say nothing."""
    files = _proto_files()
    options = [f"M{file}={_PACKAGE}" for file in files] + ["module=stratalog.test/client"]
    return [
        *(sys.executable, "-m", "grpc_tools.protoc", "--proto_path=."),
        f"--proto_path={Path(google.rpc.status_pb2.__file__).parents[2]}",
        *(f"--{plugin}_out={target}" for plugin in ("go", "go-grpc")),
        *(f"--{plugin}_opt={option}" for plugin in ("go", "go-grpc") for option in options),
        *files,
    ]


def _proto_files() -> list[str]:
    root = REPOSITORY / "proto"
    return sorted(str(file.relative_to(root)) for file in root.rglob("*.proto"))


def _fingerprint() -> str:
    """A name for the content of all sources."""
    digest = hashlib.sha256()
    for file in [*sorted(_SOURCE.iterdir()), *(REPOSITORY / "proto" / name for name in _proto_files())]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _run(command: list[str], directory: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
