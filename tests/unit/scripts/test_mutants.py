"""The mutation test's own changes, and how it finds a mutant again in a tree that was rearranged."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from scripts.mutants import STAGES, Mutant, Runner, Tree, mutants_of

MODULE = '''
"""A theory with 1 number."""

class Shelf:
    def has_room(self, count: int = 3) -> bool:
        """True for less than 5."""
        logger.warning("counted %d", 7)
        if count < self.limit and count:
            raise ShelfError("2 many", count=8)
        return self.limit
'''


def changes(text: str) -> set[str]:
    return {f"{mutant.before} -> {mutant.after}" for mutant in mutants_of(ast.parse(text), "log")}


def test_each_change_is_small_and_spares_prose_annotations_logs_and_errors() -> None:
    assert changes(MODULE) == {
        "if count < self.limit and count: -> if count < self.limit or count:",
        "if count < self.limit and count: -> if count <= self.limit and count:",
        "if count < self.limit and count: -> if count >= self.limit and count:",
        "raise ShelfError('', count=8) -> pass",
        "return self.limit -> return None",
    }


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("return a is None", {"return a is not None", "return None"}),
        ("return not a", {"return a", "return None"}),
        ("x = 1 if a else b", {"x = 2 if a else b", "x = b if a else 1"}),
        ("self.x = True", {"self.x = False", "pass"}),
        ("while f(a[0]):\n  continue", {"while f(a[1]):", "while not f(a[0]):", "pass"}),
        ("x: Literal[3] = y", set[str]()),
        ("assert a < b", set[str]()),
    ],
)
def test_statement_changes_in_these_ways(statement: str, expected: set[str]) -> None:
    body = "\n ".join(statement.splitlines())
    found = [mutant.after for mutant in mutants_of(ast.parse(f"def f():\n {body}"), "log")]

    assert sorted(found) == sorted(expected)


def tree_with(root: Path, files: dict[str, str]) -> Tree:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Tree(root)


def test_mutant_is_found_where_files_moved_and_classes_got_other_names(tmp_path: Path) -> None:
    drawn = tree_with(tmp_path / "old", {"storage/stratalog/log/shelf.py": MODULE}).draw(count=9, seed=1)
    moved = MODULE.replace("Shelf", "Rack").replace("2 many", "too many")
    tree = tree_with(tmp_path / "new", {"storage/stratalog/log/room/rack.py": moved})
    places = [tree.find(mutant) for mutant in drawn if "ShelfError" not in mutant.before]

    assert len(drawn) == 3
    assert [place.path.as_posix() for place in places if place] == ["storage/stratalog/log/room/rack.py"] * 2
    assert all(place and place.text != ast.unparse(ast.parse(moved)) for place in places)


def test_tests_of_a_module_come_from_near_to_far(tmp_path: Path) -> None:
    module = "storage/stratalog/log/read/reader.py"
    tests = {
        "tests/unit/log/read/test_a.py": "",
        "tests/unit/log/read/test_b.py": "from stratalog.log.read.reader import Reader",
        "tests/unit/log/read/test_reader.py": "",
        "tests/unit/log/test_log.py": "",
        "tests/support/machine.py": "from stratalog.log.read.reader import Reader",
        "tests/crash/test_crash.py": "from tests.support.machine import machine",
        "tests/crash/test_other_crash.py": "from tests.support.other import machine",
        "tests/integration/test_server.py": "",
    }
    tree = tree_with(tmp_path, {module: "", **tests})

    assert dict(tree.tests_of(Path(module))) == {
        "room": [f"tests/unit/log/read/test_{name}.py" for name in ("reader", "b", "a")],
        "package": ["tests/unit/log/test_log.py"],
        "models": ["tests/crash/test_crash.py"],
        "integration": ["tests/integration/test_server.py"],
    }


def test_mutant_is_noticed_by_a_test_that_passes_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    files = {
        "storage/stratalog/log/__init__.py": "",
        "storage/stratalog/log/shelf.py": "def f(a):\n    return a < 3\n\ndef g(a):\n    return a < 3\n",
        "tests/unit/log/test_elsewhere.py": "import stratalog.log.no_such_module",
        "tests/unit/log/test_shelf.py": """
from stratalog.log.shelf import f, g

def test_broken():
    assert not f(1)

def test_bound():
    assert not f(3)
""",
    }
    runner = Runner(tree_with(tmp_path, files), Path(sys.executable), timeout_s=60, stages=STAGES)
    outcomes = [
        runner.judge(Mutant("log", name, "return a < 3", "return a <= 3", 0)) for name in ("f", "g", "h")
    ]

    assert [outcome.outcome for outcome in outcomes] == ["noticed", "missed", "gone"]
    assert outcomes[0].stage == "room"
    assert outcomes[0].test == "tests/unit/log/test_shelf.py::test_bound"
