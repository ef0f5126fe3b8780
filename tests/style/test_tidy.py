"""Rules of docs/style.md that no linter knows, as tests. Each finds a violation that is planted for it, too.

A rule is a function from one parsed file to the complaints about it; `RULES` says which files it looks at.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parents[2]
ENGINE = ("storage", "tiering")
PRODUCTION = ("cli", "client", "migration", "pipeline", "proto", "service", "storage", "testing", "tiering")
EVERYTHING = (*PRODUCTION, "benchmarks", "tests")

MAX_FILE_LINES = 800
MAX_FOLDER_MODULES = 20
MAX_FUNCTION_LINES = 60


class Source(NamedTuple):
    """One Python file; `name` is relative to the repository."""

    name: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


Rule = Callable[[Source], Iterator[str]]


def files_below(folders: tuple[str, ...], *suffixes: str) -> list[Path]:
    """Files written by hand: not what protoc or Python made."""
    found = [
        path for folder in folders for path in (REPOSITORY / folder).rglob("*") if path.suffix in suffixes
    ]
    return sorted(path for path in found if "_pb2" not in path.name and "__pycache__" not in path.parts)


def sources_below(folders: tuple[str, ...], *suffixes: str) -> list[Source]:
    paths = files_below(folders, *suffixes)
    return [Source(path.relative_to(REPOSITORY).as_posix(), path.read_text()) for path in paths]


# --- the engine reaches the world through what it was handed ------------------------------------------------

# The last one asks the environment, once, whether the compiled kernels are wanted.
HOMES = re.compile(
    r"storage/stratalog/base/(clock|randomness|posix_filesystem)\.py"
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
    for node in ast.walk(source.tree):
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


# --- errors -------------------------------------------------------------------------------------------------

BUILTIN_ERRORS = {"Exception", "IndexError", "KeyError", "RuntimeError", "TypeError", "ValueError"}


def engine_raises_its_own_errors(source: Source) -> Iterator[str]:
    """Callers know the tree of base/errors.py and nothing else.

    What a file catches itself may be anything, and a parser that is handed to another raises ValueError.
    """
    caught = {
        name.id
        for handler in ast.walk(source.tree)
        if isinstance(handler, ast.ExceptHandler) and handler.type is not None
        for name in ast.walk(handler.type)
        if isinstance(name, ast.Name)
    }
    parsers = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("_parse")
    ]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Raise) and not any(node.lineno in parser for parser in parsers):
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(raised, ast.Name) and raised.id in BUILTIN_ERRORS - caught:
                yield f"{node.lineno}: raises {raised.id}"


def messages_are_clauses(source: Source) -> Iterator[str]:
    """An error's message begins in lower case and has no full stop: values follow it."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Raise(exc=ast.Call(func=ast.Name(id=name), args=[first, *_])) if name.endswith("Error"):
                text = leading_text(first)
                if re.match(r"[A-Z][a-z]", text):
                    yield f"{node.lineno}: the message of {name} begins in upper case"
                if isinstance(first, ast.Constant) and text.endswith("."):
                    yield f"{node.lineno}: the message of {name} ends with a full stop"
            case _:
                pass


def leading_text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return text
        case _:
            return ""


# --- shape --------------------------------------------------------------------------------------------------


def files_are_short(source: Source) -> Iterator[str]:
    lines = source.text.count("\n")
    if lines >= MAX_FILE_LINES:
        yield f"{lines} lines: one noun, one file"


def functions_are_short(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines >= MAX_FUNCTION_LINES:
                yield f"{node.lineno}: {node.name} has {lines} lines: one idea, one function"


def packages_export_nothing(source: Source) -> Iterator[str]:
    """One way to import each name: an __init__.py of ours holds a docstring (Spark reads one elsewhere)."""
    if re.search(r"/stratalog/.*__init__\.py$", source.name) and any(
        not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in source.tree.body
    ):
        yield "an __init__.py says what lives here, and nothing else"


# --- names --------------------------------------------------------------------------------------------------

EMPTY_NAMES = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}
UNIT_SPELLINGS = {
    "_millis": "_ms",
    "_milliseconds": "_ms",
    "_msec": "_ms",
    "_sec": "_s",
    "_secs": "_s",
    "_seconds": "_s",
}
DURATIONS = {"age", "delay", "duration", "elapsed", "grace", "interval", "period", "timeout"}


def file_names_say_something(source: Source) -> Iterator[str]:
    stem = Path(source.name).stem
    if stem in EMPTY_NAMES:
        yield f"{stem}.py could hold anything: name it after its noun"
    if not re.fullmatch(r"_{0,2}[a-z][a-z0-9_]*", stem):
        yield f"{stem}.py is not in snake_case"


def names_end_with_their_unit(source: Source) -> Iterator[str]:
    """Durations carry `_ms` or `_s`; a count ends with `_count`."""
    for line, name, annotation in declarations(source.tree):
        is_number = annotation in {"int", "float", "int | None", "float | None"}
        if is_number and (name in DURATIONS or name.split("_")[-1] in DURATIONS):
            yield f"{line}: {name} is a duration without a unit"
        if name.startswith(("num_", "nr_", "no_of_")):
            yield f"{line}: {name}: a count ends with _count"
        for spelling, unit in UNIT_SPELLINGS.items():
            if name.endswith(spelling):
                yield f"{line}: {name}: the unit is spelled {unit}"


def declarations(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, name and annotation of each parameter and each annotated variable or field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg, ast.unparse(node.annotation) if node.annotation else ""
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.lineno, node.target.id, ast.unparse(node.annotation)


# --- classes ------------------------------------------------------------------------------------------------

SAYS_WHO_MAY_CALL = re.compile(
    r"thread|guard|one (user|caller|use|task)|event loop|immutable|\block\b", re.IGNORECASE
)


def stateful_classes_say_what_guards_them(source: Source) -> Iterator[str]:
    """Of a class that changes itself, the docstring's first paragraph says who may call it."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef) and changes_itself(node):
            opening = (ast.get_docstring(node) or "").split("\n\n")[0]
            if not SAYS_WHO_MAY_CALL.search(opening):
                yield f"{node.lineno}: {node.name} is stateful: say what guards it"


def changes_itself(node: ast.ClassDef) -> bool:
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    return any(
        isinstance(inner, ast.Attribute)
        and isinstance(inner.ctx, ast.Store)
        and isinstance(inner.value, ast.Name)
        and inner.value.id == "self"
        for method in methods
        if method.name not in {"__init__", "__post_init__"}
        for inner in ast.walk(method)
    )


def dataclasses_are_frozen_and_slotted(source: Source) -> Iterator[str]:
    """A dataclass that is not frozen is stateful, and says what guards it."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for decorator in node.decorator_list:
            written = ast.unparse(decorator)
            if written.split("(")[0] not in {"dataclass", "dataclasses.dataclass"}:
                continue
            if "slots=True" not in written:
                yield f"{node.lineno}: {node.name} has no slots=True"
            if "frozen=True" not in written and not SAYS_WHO_MAY_CALL.search(ast.get_docstring(node) or ""):
                yield f"{node.lineno}: {node.name} is not frozen and does not say what guards it"


# --- comments -----------------------------------------------------------------------------------------------

UNFINISHED = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"]))
SUPPRESSION = re.compile(
    r"#\s*(?:type|pyright):\s*ignore(?P<code>\[[\w, -]+\])?(?P<reason>.*)$", re.MULTILINE
)


def nothing_is_left_for_later(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if UNFINISHED.search(line):
            yield f"{number}: what is left to do is an issue"


def suppressions_say_why(source: Source) -> Iterator[str]:
    for match in SUPPRESSION.finditer(source.text):
        if not match["code"] or len(match["reason"].strip(" #-:")) < 8:
            yield f"{source.text.count(chr(10), 0, match.start()) + 1}: an ignore needs a code and a reason"


def modules_begin_with_their_theory(source: Source) -> Iterator[str]:
    if not ast.get_docstring(source.tree):
        yield "no module docstring"


RULES: list[tuple[Rule, tuple[str, ...], tuple[str, ...]]] = [
    (engine_uses_its_seams, ENGINE, (".py",)),
    (engine_raises_its_own_errors, ENGINE, (".py",)),
    (messages_are_clauses, PRODUCTION, (".py",)),
    (files_are_short, EVERYTHING, (".py", ".pyx", ".pxi", ".c", ".h", ".proto")),
    (functions_are_short, EVERYTHING, (".py",)),
    (packages_export_nothing, PRODUCTION, (".py",)),
    (file_names_say_something, EVERYTHING, (".py", ".pyx")),
    (names_end_with_their_unit, PRODUCTION, (".py",)),
    (stateful_classes_say_what_guards_them, PRODUCTION, (".py",)),
    (dataclasses_are_frozen_and_slotted, PRODUCTION, (".py",)),
    (
        nothing_is_left_for_later,
        (*EVERYTHING, "docs", "scripts"),
        (".py", ".pyx", ".pxi", ".c", ".h", ".proto", ".md", ".sh"),
    ),
    (suppressions_say_why, EVERYTHING, (".py", ".pyi")),
    (modules_begin_with_their_theory, EVERYTHING, (".py",)),
]


@pytest.mark.parametrize(("rule", "folders", "suffixes"), RULES, ids=[rule.__name__ for rule, _, _ in RULES])
def test_tree_keeps_the_rule(rule: Rule, folders: tuple[str, ...], suffixes: tuple[str, ...]) -> None:
    complaints = [
        f"{source.name}:{complaint}"
        for source in sources_below(folders, *suffixes)
        for complaint in rule(source)
    ]

    assert not complaints, "\n" + "\n".join(complaints)


LONG_FUNCTION = "def long():\n" + "    pass\n" * (MAX_FUNCTION_LINES - 1)
COUNTER = "class Counter:\n    '''{0}'''\n    def add(self):\n        self.total += 1\n"

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
    (messages_are_clauses, "x.py", "raise FencedError('Another owner took over')", 1),
    (messages_are_clauses, "x.py", "raise FencedError(f'Owner {1} took over')", 1),
    (messages_are_clauses, "x.py", "raise FencedError('another owner took over.')", 1),
    (messages_are_clauses, "x.py", "raise FencedError('CRC differs')", 0),
    (files_are_short, "x.py", "\n" * MAX_FILE_LINES, 1),
    (files_are_short, "x.py", "\n" * (MAX_FILE_LINES - 1), 0),
    (functions_are_short, "x.py", LONG_FUNCTION, 1),
    (functions_are_short, "x.py", LONG_FUNCTION.removesuffix("    pass\n"), 0),
    (packages_export_nothing, "a/stratalog/b/__init__.py", "'''Docs.'''\nfrom b import c", 1),
    (packages_export_nothing, "a/stratalog/b/__init__.py", "'''Docs.'''", 0),
    (file_names_say_something, "a/utils.py", "", 1),
    (file_names_say_something, "a/LogSegment.py", "", 1),
    (file_names_say_something, "a/__main__.py", "", 0),
    (names_end_with_their_unit, "x.py", "def f(timeout: float) -> None: ...", 1),
    (names_end_with_their_unit, "x.py", "def f(poll_interval: int) -> None: ...", 1),
    (names_end_with_their_unit, "x.py", "lag_seconds: float = 1", 1),
    (names_end_with_their_unit, "x.py", "def f(num_records: int) -> None: ...", 1),
    (names_end_with_their_unit, "x.py", "def f(timeout_s: float, grace: Grace) -> None: ...", 0),
    (stateful_classes_say_what_guards_them, "x.py", COUNTER.format("Counts."), 1),
    (stateful_classes_say_what_guards_them, "x.py", COUNTER.format("Counts. Thread-safe."), 0),
    (dataclasses_are_frozen_and_slotted, "x.py", "@dataclass(slots=True)\nclass A: ...", 1),
    (dataclasses_are_frozen_and_slotted, "x.py", "@dataclass(frozen=True)\nclass A: ...", 1),
    (dataclasses_are_frozen_and_slotted, "x.py", "@dataclass(frozen=True, slots=True)\nclass A: ...", 0),
    (nothing_is_left_for_later, "x.py", "# " + "TO" + "DO: later", 1),
    (suppressions_say_why, "x.py", "f()  # type: " + "ignore", 1),
    (suppressions_say_why, "x.py", "f()  # type: " + "ignore[arg-type]", 1),
    (suppressions_say_why, "x.py", "f()  # type: " + "ignore[arg-type]  # the stub is wrong", 0),
    (modules_begin_with_their_theory, "x.py", "x = 1", 1),
]


@pytest.mark.parametrize(("rule", "name", "text", "expected"), PLANTED)
def test_rule_finds_what_was_planted(rule: Rule, name: str, text: str, expected: int) -> None:
    assert len(list(rule(Source(name, text)))) == expected


# What lives as long as a log or a store does, and can contradict itself.
CHECKED_CLASSES = [
    "Catalog",
    "LocalLog",
    "LogManager",
    "LogOffsets",
    "LogSegments",
    "LogSegment",
    "MetadataLog",
    "OffsetIndex",
    "ShardState",
    "TimeIndex",
    "UnifiedLog",
]


@pytest.mark.parametrize("name", CHECKED_CLASSES)
def test_lasting_state_can_check_itself(name: str) -> None:
    (found,) = [
        node
        for source in sources_below(ENGINE, ".py")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and node.name == name
    ]

    assert "check" in {item.name for item in found.body if isinstance(item, ast.FunctionDef)}


def crowded_folders(names: list[str]) -> list[str]:
    """Folders with more than `MAX_FOLDER_MODULES` modules on one level, with their counts."""
    counts = Counter(str(Path(name).parent) for name in names if Path(name).name != "__init__.py")
    return [f"{folder}: {count}" for folder, count in sorted(counts.items()) if count > MAX_FOLDER_MODULES]


def test_folders_are_rooms_and_not_halls() -> None:
    assert crowded_folders([source.name for source in sources_below(EVERYTHING, ".py")]) == []


def test_crowded_folder_is_found() -> None:
    names = [f"a/b/m{index}.py" for index in range(MAX_FOLDER_MODULES)]

    assert crowded_folders([*names, "a/b/__init__.py"]) == []
    assert crowded_folders([*names, "a/b/one_more.py"]) == [f"a/b: {MAX_FOLDER_MODULES + 1}"]


def test_unit_tests_mirror_the_packages() -> None:
    packages = {
        path.parent.relative_to(REPOSITORY / root / "stratalog").as_posix()
        for root in PRODUCTION
        for path in (REPOSITORY / root / "stratalog").rglob("__init__.py")
    }
    folders = {
        path.parent.relative_to(REPOSITORY / "tests" / "unit").as_posix()
        for path in (REPOSITORY / "tests" / "unit").rglob("test_*.py")
    }

    assert folders - packages == {"benchmarks"}


def test_test_files_have_unique_names() -> None:
    names = [path.name for path in files_below(("tests",), ".py") if path.name.startswith("test_")]

    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("folder", [*EVERYTHING, "docs", "scripts"])
def test_folder_says_what_lives_in_it(folder: str) -> None:
    assert (REPOSITORY / folder / "README.md").is_file()


@pytest.mark.parametrize("folder", ["docs", "scripts"])
def test_folder_says_what_each_of_its_files_is(folder: str) -> None:
    readme = REPOSITORY / folder / "README.md"
    files = [path for path in files_below((folder,), ".md", ".sh", ".cfg") if path != readme]

    assert files
    assert [path.name for path in files if path.name not in readme.read_text()] == []


def test_links_between_documents_lead_somewhere() -> None:
    documents = [*files_below((*EVERYTHING, "docs"), ".md"), REPOSITORY / "README.md"]
    broken = [
        f"{document.relative_to(REPOSITORY)}: {target}"
        for document in documents
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
        if "://" not in target and not (document.parent / target).exists()
    ]

    assert not broken, "\n".join(broken)
