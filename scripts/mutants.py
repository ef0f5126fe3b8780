#!/usr/bin/env python3
"""Mutation test: plants one small mistake at a time, and reports the mistakes that no test notices.

    scripts/mutants.py                                   # 200 mutants of this tree
    scripts/mutants.py --count 20 --seed 7 --jobs 2
    scripts/mutants.py --list FILE.json                  # only write the mutants
    scripts/mutants.py --from FILE.json --tree DIR       # the same mutants in another checkout

A **mutant** is one change of one statement or expression: a comparison flipped or its boundary moved, `and`
for `or`, a condition negated, a return value dropped, a statement removed, a constant changed. Docstrings,
annotations, defaults, assertions, log calls and the arguments of errors stay as they are.

A mutant is known by its package, its function, its statement before and after (texts with a space count as
empty, so that prose may be mended), and a number where a function has that statement more than once. Names of
modules are no part of this, so the same mutant is found in a tree where files have moved. Where a class was
renamed, the method's name decides if it leaves one candidate. A mutant is **gone** where its statement no
longer exists; gone is not missed.

Each mutant gets a copy of the tree made of hard links. Tests run in four stages and stop at the first
failure: the unit tests of the module's room; those of its package; the property, model, scenario, simulation
and crash tests that import the module, directly or not; the integration tests. A test that also fails in an
unchanged copy notices nothing and is left out.

Outcomes: `noticed`; `timeout` (a stage took longer than `--timeout`, as an endless loop does); `missed`;
`gone`. They are written to `--out` after each mutant. A later run with the same `--out` skips those mutants.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
DRAWN_FROM = ("log", "cleaner", "remote", "compaction", "server")
STAGES = ("room", "package", "models", "integration")
MODELS = ("property", "model", "scenario", "simulation", "crash")
NOT_COPIED = shutil.ignore_patterns(
    ".git",
    ".venv",
    ".cache",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
    ".import_linter_cache",
)
LINES = {"lineno", "col_offset", "end_lineno", "end_col_offset"}
LOGGER = re.compile(r"^(self\.)?_?logger\.")
SWAPPED = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}


class Mutant(NamedTuple):
    """One change; `before` and `after` are headers of the statement, as `header_of` writes them."""

    package: str
    function: str
    before: str
    after: str
    number: int

    @property
    def loose(self) -> tuple[str, str, str, int]:
        """What is left of the identity where a class or a package got another name."""
        return self.function.rsplit(".", 1)[-1], self.before, self.after, self.number


class Place(NamedTuple):
    """Where a mutant is planted: the module, and its whole text with the change."""

    path: Path
    text: str


class Outcome(NamedTuple):
    """What became of a mutant: the stage and the test that noticed it, and how long that took."""

    mutant: Mutant
    outcome: str
    stage: str = ""
    test: str = ""
    seconds: float = 0.0


# --- mutants of a module ------------------------------------------------------------------------------------


SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def functions_of(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Each function with its qualified name, those inside of others too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, SCOPES):
            if not isinstance(node, ast.ClassDef):
                yield prefix + node.name, node
            yield from functions_of(node, f"{prefix}{node.name}.")
        else:
            yield from functions_of(node, prefix)


def statements_of(function: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a function in their order, without those of functions and classes in it."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, SCOPES):
            continue
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from statements_of(node)


class WithoutProse(ast.NodeTransformer):
    """Empties texts with a space in them: they are rewritten without a change of meaning. Used once."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("") if isinstance(node.value, str) and " " in node.value else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        parts = (part.value for part in node.values if isinstance(part, ast.Constant))
        return ast.Constant("") if any(" " in str(part) for part in parts) else node


def header_of(statement: ast.stmt) -> str:
    """The statement as text: without prose, and a compound one without the statements in it."""
    bare = copy.copy(statement)
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        if hasattr(bare, field):
            setattr(bare, field, [])
    return ast.unparse(WithoutProse().visit(copy.deepcopy(bare)))


def is_left_alone(statement: ast.stmt) -> bool:
    """True for docstrings, assertions, log calls, and a header without an expression of its own."""
    match statement:
        case ast.Expr(value=ast.Constant()) | ast.Assert() | ast.Try() | ast.Match():
            return True
        case ast.Expr(value=ast.Call(func=func)):
            return bool(LOGGER.match(ast.unparse(func)))
        case _:
            return False


def expressions_of(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions below `node`, but for annotations, arguments of errors and inner statements."""
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "exc", "cause", "format_spec"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.Call) and ast.unparse(child.func).endswith("Error"):
                continue
            if isinstance(child, ast.expr):
                yield child
            if isinstance(child, ast.expr | ast.comprehension | ast.withitem | ast.keyword):
                yield from expressions_of(child)


def changes_of(expression: ast.expr) -> Iterator[ast.expr]:
    """The expression with one small change, in every way that there is."""
    match expression:
        case ast.Compare(left=left, ops=[operator], comparators=comparators):
            for swapped in SWAPPED[type(operator)]:
                yield ast.Compare(left, [swapped()], comparators)
        case ast.BoolOp(op=operator, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield copy.copy(operand)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case _:
            pass


def whole_changes_of(statement: ast.stmt) -> Iterator[ast.stmt]:
    """The statement with its condition negated, with its value dropped, or removed."""
    match statement:
        case (
            ast.If(test=ast.Name() | ast.Attribute() | ast.Call() as test)
            | ast.While(test=ast.Name() | ast.Attribute() | ast.Call() as test)
        ):
            negated = copy.copy(statement)
            negated.test = ast.UnaryOp(ast.Not(), test)
            yield negated
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.AugAssign() | ast.Delete():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Continue() | ast.Break():
            yield ast.Pass()
        case _:
            pass


def become(node: ast.AST, other: ast.AST) -> None:
    """Turn `node` into `other` in place: its parent need not be known."""
    node.__class__ = other.__class__
    places = {name: value for name, value in vars(node).items() if name in LINES}
    vars(node).clear()
    vars(node).update(vars(other) | places)


def headers_with_a_change(statement: ast.stmt) -> Iterator[str]:
    """The statement's header after each change. The change is in place until the next one is asked for."""
    changes: list[tuple[ast.AST, Iterator[ast.AST]]] = [
        (expression, changes_of(copy.copy(expression))) for expression in list(expressions_of(statement))
    ]
    for node, changed in [*changes, (statement, whole_changes_of(copy.copy(statement)))]:
        original = copy.copy(node)
        for change in changed:
            become(node, change)
            yield header_of(statement)
            become(node, original)


def mutants_of(module: ast.Module, package: str) -> Iterator[Mutant]:
    """Each mutant of a module. The change is in `module` until the next mutant is asked for."""
    for name, function in functions_of(module):
        seen: Counter[tuple[str, str]] = Counter()
        for statement in [statement for statement in statements_of(function) if not is_left_alone(statement)]:
            before = header_of(statement)
            for after in headers_with_a_change(statement):
                yield Mutant(package, name, before, after, seen[before, after])
                seen[before, after] += 1


# --- mutants of a tree --------------------------------------------------------------------------------------


class Tree:
    """A checkout: its modules, its mutants, and the tests that import a module. Thread-safe: immutable."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def places(self) -> dict[Mutant, Path]:
        """All mutants with their modules, but for those that are in two modules of a package."""
        found: dict[Mutant, list[Path]] = defaultdict(list)
        for path in sorted(self.root.glob("*/stratalog/*/**/*.py")):
            package = path.relative_to(self.root).parts[2]
            for mutant in mutants_of(ast.parse(path.read_text()), package):
                found[mutant].append(path)
        return {mutant: paths[0] for mutant, paths in found.items() if len(paths) == 1}

    @cached_property
    def by_loose_name(self) -> dict[tuple[str, str, str, int], list[Mutant]]:
        found: dict[tuple[str, str, str, int], list[Mutant]] = defaultdict(list)
        for mutant in self.places:
            found[mutant.loose].append(mutant)
        return found

    def draw(self, count: int, seed: int) -> list[Mutant]:
        """`count` mutants of `DRAWN_FROM`, at most one a statement; the same seed draws the same ones."""
        mutants = sorted(mutant for mutant in self.places if mutant.package in DRAWN_FROM)
        random.Random(seed).shuffle(mutants)
        drawn: dict[tuple[str, str, str], Mutant] = {}
        for mutant in mutants:
            drawn.setdefault(mutant[:3], mutant)
        return list(drawn.values())[:count]

    def find(self, mutant: Mutant) -> Place | None:
        """Where a mutant is in this tree, None where its statement is gone."""
        if mutant not in self.places:
            candidates = self.by_loose_name.get(mutant.loose, [])
            here = [
                candidate for candidate in candidates if candidate.package == mutant.package
            ] or candidates
            if len(here) != 1:
                return None
            mutant = here[0]
        path = self.places[mutant]
        module = ast.parse(path.read_text())
        next(planted for planted in mutants_of(module, mutant.package) if planted == mutant)
        return Place(path.relative_to(self.root), ast.unparse(module))

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Dotted names of the modules and tests, each with the dotted names in its text."""
        paths = [*self.root.glob("*/stratalog/**/*.py"), *self.root.glob("tests/**/*.py")]
        found = {dotted(path.relative_to(self.root)): path.read_text() for path in paths}
        return {
            name: set(re.findall(r"\b(?:stratalog|tests)(?:\.\w+)+", text)) for name, text in found.items()
        }

    def reaches(self, start: str) -> set[str]:
        """Modules that `start` imports, directly or not."""
        reached: set[str] = set()
        waiting = [start]
        while waiting:
            name = waiting.pop()
            if name in self.imports and name not in reached:
                reached.add(name)
                waiting.extend(self.imports[name])
        return reached

    def tests_of(self, module: Path) -> Iterator[tuple[str, list[str]]]:
        """The stages for a module: the name of each, and its test files; no file is in two of them."""
        inside = Path(*module.parts[2:])

        def distance(path: Path) -> int:
            if path.name.startswith(f"test_{inside.stem}"):
                return 0
            imported = self.imports[dotted(path.relative_to(self.root))]
            return 1 if dotted(module) in imported else 2

        unit = self.root / "tests" / "unit"
        package = sorted(sorted((unit / inside.parts[0]).rglob("test_*.py")), key=distance)
        room = [path for path in package if path.parent == unit / inside.parent]
        models = [
            path
            for kind in MODELS
            for path in sorted((self.root / "tests" / kind).rglob("test_*.py"))
            if dotted(module) in self.reaches(dotted(path.relative_to(self.root)))
        ]
        integration = sorted((self.root / "tests" / "integration").rglob("test_*.py"))
        others = [path for path in package if path not in room]
        for stage, paths in zip(STAGES, (room, others, models, integration), strict=True):
            yield stage, [path.relative_to(self.root).as_posix() for path in paths]


def dotted(path: Path) -> str:
    """The module's name: `storage/stratalog/log/x.py` is `stratalog.log.x`."""
    parts = path.with_suffix("").parts
    return ".".join(parts[1:] if "stratalog" in parts else parts)


# --- running tests ------------------------------------------------------------------------------------------


class Runner:
    """Runs the tests of mutants in copies of a tree. Thread-safe: a lock guards `_broken`."""

    def __init__(self, tree: Tree, python: Path, timeout_s: float, stages: Sequence[str]) -> None:
        self._tree = tree
        self._python = python
        self._timeout_s = timeout_s
        self._stages = stages
        self._lock = Lock()
        self._broken: dict[str, bool] = {}

    def judge(self, mutant: Mutant) -> Outcome:
        """Plant one mutant in a copy of its own and run the tests that may notice it."""
        place = self._tree.find(mutant)
        if place is None:
            return Outcome(mutant, "gone")
        started_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            planted = self._copy(Path(folder) / "tree")
            (planted / place.path).unlink()
            (planted / place.path).write_text(place.text)
            for stage, files in self._tree.tests_of(place.path):
                if stage in self._stages and files:
                    outcome, test = self._run_stage(planted, files)
                    if outcome != "missed":
                        return Outcome(mutant, outcome, stage, test, time.monotonic() - started_s)
        return Outcome(mutant, "missed", seconds=time.monotonic() - started_s)

    def _copy(self, target: Path) -> Path:
        shutil.copytree(self._tree.root, target, copy_function=os.link, ignore=NOT_COPIED, symlinks=True)
        return target

    def _run_stage(self, planted: Path, files: list[str]) -> tuple[str, str]:
        """The outcome of one stage and the test that decided it."""
        left_out: list[str] = []
        while True:
            kept = [name for name in files if name not in left_out]
            deselected = [f"--deselect={test}" for test in left_out if "::" in test]
            if not kept:
                return "missed", ""
            code, output = self._pytest(planted, [*kept, *deselected])
            if code is None:
                return "timeout", ""
            failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
            if failed is None:
                return ("missed" if code in {0, 5} else "noticed"), ""
            if failed[1] in left_out or not self._is_broken(failed[1]):
                return "noticed", failed[1]
            left_out.append(failed[1])

    def _is_broken(self, test: str) -> bool:
        """True for a test that fails without any mutant."""
        with self._lock:
            if test not in self._broken:
                with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
                    self._broken[test] = self._pytest(self._copy(Path(folder) / "tree"), [test])[0] != 0
            return self._broken[test]

    def _pytest(self, tree: Path, arguments: list[str]) -> tuple[int | None, str]:
        """Pytest's exit code and output; None for the code where it took too long."""
        roots = sorted(path.parent for path in tree.glob("*/stratalog"))
        # The copy hides the checkout that the interpreter has installed, in processes that tests start too.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*roots, tree]))}
        environment["HYPOTHESIS_PROFILE"] = "ci"
        command = [str(self._python), "-m", "pytest", "-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider"]
        process = subprocess.Popen(
            [*command, "-m", "not kafka", *arguments],
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, ""
        return process.returncode, output


# --- files and the command line -----------------------------------------------------------------------------


def read_mutants(path: Path) -> list[Mutant]:
    """The mutants of a file that `--list` or a run has written."""
    rows = json.loads(path.read_text())
    return [Mutant(**{field: row[field] for field in Mutant._fields}) for row in rows]


def read_outcomes(path: Path) -> list[Outcome]:
    """The outcomes of an earlier run, none where there is no file."""
    rows = json.loads(path.read_text()) if path.exists() else []
    return [
        Outcome(mutant, **{field: row[field] for field in Outcome._fields[1:]})
        for mutant, row in zip(read_mutants(path) if rows else [], rows, strict=True)
    ]


def write_rows(path: Path, rows: list[dict[str, object]]) -> None:
    """One row a line, so that a file of mutants is read and compared line by line."""
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def row_of(outcome: Outcome) -> dict[str, object]:
    """The outcome as one flat row."""
    fields = {name: value for name, value in outcome._asdict().items() if name != "mutant"}
    return {**outcome.mutant._asdict(), **fields}


def print_table(outcomes: list[Outcome]) -> None:
    """Outcomes by package, then each mutant that was missed."""
    kinds = ("noticed", "timeout", "missed", "gone")
    print(f"{'package':12}" + "".join(f"{kind:>9}" for kind in kinds))
    for package in (*DRAWN_FROM, "all"):
        counts = Counter(row.outcome for row in outcomes if package in {row.mutant.package, "all"})
        print(f"{package:12}" + "".join(f"{counts[kind]:9}" for kind in kinds))
    for row in outcomes:
        if row.outcome == "missed":
            print(f"missed: {row.mutant.package}: {row.mutant.function}: {change_of(row.mutant)}")


def change_of(mutant: Mutant) -> str:
    """The change in words."""
    return f"`{mutant.before}` became `{mutant.after}`"


def run(runner: Runner, mutants: list[Mutant], out: Path, jobs: int) -> list[Outcome]:
    """Judge the mutants that `out` does not know yet, and write each outcome to it."""
    known = {outcome.mutant: outcome for outcome in read_outcomes(out)}
    waiting = [mutant for mutant in mutants if mutant not in known]
    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(runner.judge, mutant) for mutant in waiting]):
            outcome = future.result()
            known[outcome.mutant] = outcome
            write_rows(out, [row_of(known[mutant]) for mutant in mutants if mutant in known])
            print(
                f"{len(known)}/{len(mutants)} {outcome.outcome} after {outcome.seconds:.0f} s: "
                f"{outcome.mutant.function}: {change_of(outcome.mutant)} {outcome.test}",
                flush=True,
            )
    return [known[mutant] for mutant in mutants]


def parsed_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Plant small mistakes and report those that no test notices."
    )
    parser.add_argument("--tree", type=Path, default=REPOSITORY, help="the checkout to change copies of")
    parser.add_argument(
        "--python", type=Path, help="the interpreter for the tests (default: TREE/.venv/bin/python)"
    )
    parser.add_argument("--count", type=int, default=200, help="how many mutants (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="which mutants (default: 1)")
    parser.add_argument("--from", type=Path, dest="source", help="take the mutants from this file")
    parser.add_argument("--list", type=Path, dest="target", help="write the mutants to this file and stop")
    parser.add_argument(
        "--out", type=Path, default=Path("mutants-outcomes.json"), help="where outcomes are written"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many mutants at a time (default: 1)")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one stage (default: 1800)")
    parser.add_argument(
        "--stages", nargs="+", choices=STAGES, default=STAGES, help="which stages (default: all)"
    )
    return parser.parse_args()


def main() -> None:
    """Draw or read mutants, then list or judge them."""
    arguments = parsed_arguments()
    tree = Tree(arguments.tree.resolve())
    if arguments.source:
        mutants = read_mutants(arguments.source)[: arguments.count]
        print(f"{len(mutants)} mutants from {arguments.source}")
    else:
        mutants = tree.draw(arguments.count, arguments.seed)
        print(f"{len(mutants)} mutants, drawn with --seed {arguments.seed}")
    if arguments.target:
        write_rows(arguments.target, [mutant._asdict() for mutant in mutants])
        return
    python = arguments.python or tree.root / ".venv" / "bin" / "python"
    runner = Runner(tree, python.absolute(), arguments.timeout, arguments.stages)
    print_table(run(runner, mutants, arguments.out, arguments.jobs))


if __name__ == "__main__":
    main()
