"""The engine reaches the world through its seams and raises its own errors. Tests share doubles of seams."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.style.sources import ENGINE, Rule, Source, complaints_about

# The last one asks the environment, once, whether the compiled kernels are wanted.
HOMES = re.compile(
    r"storage/stratalog/base/(clock|randomness|posix_filesystem|direct_appends)\.py"
    r"|tiering/stratalog/objectstore/s3\.py"
    r"|storage/stratalog/record/native/kernels\.py"
)
WORLDLY_MODULES = {
    "asyncio",
    "boto3",
    "concurrent",
    "fcntl",
    "glob",
    "grpc",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "pyspark",
    "secrets",
    "select",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "time",
}
WORLDLY_NAMES = {"threading.Thread", "threading.Timer", "uuid.uuid1", "uuid.uuid4"}
HARMLESS_PATH_FUNCTIONS = {"basename", "dirname", "isabs", "join", "normpath", "split", "splitext"}


def engine_uses_its_seams(source: Source) -> Iterator[str]:
    """No disk, clock, network, process, thread or chance but through a seam. `os.path` may cut up names."""
    if HOMES.fullmatch(source.name):
        return
    for node in source.nodes:
        for complaint in (worldly_call(node), worldly_attribute(node), *worldly_imports(node)):
            if complaint:
                yield f"{getattr(node, 'lineno', 0)}: {complaint}"


def worldly_call(node: ast.AST) -> str | None:
    match node:
        case ast.Call(func=ast.Name(id="open" | "print" | "input" as name)):
            return f"calls {name}()"
        case ast.Call(func=ast.Attribute(value=ast.Name(id="random"), attr=function)):
            return f"calls random.{function}(): take a random.Random"
        case _:
            return None


def worldly_attribute(node: ast.AST) -> str | None:
    match node:
        case ast.Attribute(value=ast.Name(id="os"), attr=attribute) if attribute != "path":
            return f"uses os.{attribute}: take a FileSystem"
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="os"), attr="path"), attr=function):
            return None if function in HARMLESS_PATH_FUNCTIONS else f"uses os.path.{function}"
        case ast.Attribute(value=ast.Name(id=module), attr=attribute):
            return f"uses {module}.{attribute}" if f"{module}.{attribute}" in WORLDLY_NAMES else None
        case _:
            return None


def worldly_imports(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            modules = [alias.name for alias in names if alias.name not in {"os", "os.path"}]
            return [f"imports {module}" for module in modules if module.split(".")[0] in WORLDLY_MODULES]
        case ast.ImportFrom(module=str(module), names=names):
            worldly = module.split(".")[0] in WORLDLY_MODULES
            dotted = [f"{module}.{alias.name}" for alias in names]
            return [f"imports {name}" for name in dotted if worldly or name in WORLDLY_NAMES]
        case _:
            return []


BUILTIN_ERRORS = {"Exception", "IndexError", "KeyError", "RuntimeError", "TypeError", "ValueError"}


def engine_raises_its_own_errors(source: Source) -> Iterator[str]:
    """Callers know the tree of base/errors.py and nothing else.

    What a file catches itself may be anything, and a parser that is handed to another raises ValueError.
    """
    caught = {
        name.id
        for handler in source.nodes
        if isinstance(handler, ast.ExceptHandler) and handler.type is not None
        for name in ast.walk(handler.type)
        if isinstance(name, ast.Name)
    }
    parsers = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in source.nodes
        if isinstance(node, ast.FunctionDef) and node.name.startswith("_parse")
    ]
    for node in source.nodes:
        if isinstance(node, ast.Raise) and not any(node.lineno in parser for parser in parsers):
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(raised, ast.Name) and raised.id in BUILTIN_ERRORS - caught:
                yield f"{node.lineno}: raises {raised.id}"


def doubles_are_shared(source: Source) -> Iterator[str]:
    """Doubles of disks and stores stand in `stratalog.testing` and `tests/support`."""
    if source.name.startswith("tests/support/"):
        return
    for node in source.nodes:
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                if re.search(r"(FileSystem|Disk|Store)$", ast.unparse(base)):
                    yield f"{node.lineno}: {node.name} is a double: use or extend a shared one"


PLANTED: list[tuple[Rule, str, str, int]] = [
    (engine_uses_its_seams, "storage/stratalog/log/x.py", "open('x')", 1),
    (engine_uses_its_seams, "storage/stratalog/log/x.py", "import time\ntime.time()", 1),
    (engine_uses_its_seams, "storage/stratalog/log/x.py", "import random\nrandom.Random()", 1),
    (
        engine_uses_its_seams,
        "storage/stratalog/log/x.py",
        "import random\ndef f(r: random.Random) -> None: ...",
        0,
    ),
    (engine_uses_its_seams, "storage/stratalog/log/x.py", "from uuid import uuid4", 1),
    (engine_uses_its_seams, "storage/stratalog/log/x.py", "import uuid\nuuid.uuid4()", 1),
    (engine_uses_its_seams, "storage/stratalog/log/x.py", "import os\nos.replace('a', 'b')", 1),
    (engine_uses_its_seams, "storage/stratalog/log/x.py", "import os\nos.path.exists('a')", 1),
    (engine_uses_its_seams, "storage/stratalog/log/x.py", "import os\nos.path.join('a', 'b')", 0),
    (engine_uses_its_seams, "storage/stratalog/log/x.py", "import threading\nthreading.Thread()", 1),
    (engine_uses_its_seams, "storage/stratalog/log/x.py", "import threading\nthreading.Lock()", 0),
    (engine_uses_its_seams, "storage/stratalog/base/clock.py", "import time\ntime.time()", 0),
    (engine_raises_its_own_errors, "x.py", "raise ValueError('no')", 1),
    (engine_raises_its_own_errors, "x.py", "raise KeyError", 1),
    (engine_raises_its_own_errors, "x.py", "try: ...\nexcept KeyError: ...\nraise ValueError", 1),
    (
        engine_raises_its_own_errors,
        "x.py",
        "try: ...\nexcept (ValueError, KeyError): ...\nraise ValueError",
        0,
    ),
    (engine_raises_its_own_errors, "x.py", "def _parse(text: str) -> int:\n    raise ValueError", 0),
    (engine_raises_its_own_errors, "x.py", "raise CorruptRecordError('torn')", 0),
    (doubles_are_shared, "tests/unit/x.py", "class SlowDisk(testing.FaultyFileSystem): ...", 1),
    (doubles_are_shared, "tests/unit/x.py", "def f():\n    class Slow(MemoryObjectStore): ...", 1),
    (doubles_are_shared, "tests/unit/x.py", "class TestLocalStore(ObjectStoreContract): ...", 0),
    (doubles_are_shared, "tests/support/x.py", "class SlowDisk(FaultyFileSystem): ...", 0),
]


@pytest.mark.parametrize("rule", [engine_uses_its_seams, engine_raises_its_own_errors])
def test_engine_keeps_to_its_seams_and_errors(rule: Rule) -> None:
    assert complaints_about(rule, ENGINE, ".py") == []


def test_tests_share_their_doubles() -> None:
    assert complaints_about(doubles_are_shared, ("tests",), ".py") == []


@pytest.mark.parametrize(("rule", "name", "text", "expected"), PLANTED)
def test_planted_step_around_a_seam_is_found(rule: Rule, name: str, text: str, expected: int) -> None:
    assert len(list(rule(Source(name, text)))) == expected
