#!/usr/bin/env python
"""Writes the calls of the synchronous client from the sources of the asynchronous one.

scripts/sync_client.py

Each public method of a class has a counterpart with the same parameters, defaults and docstring, which waits
for the result. An iteration becomes a generator; a producer, a consumer or a table becomes its synchronous
form. A property is read in the thread of the caller.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDER = Path("client/stratalog/client/blocking")

_CLIENT = Path("client/stratalog/client")
_THREAD = "from stratalog.client.blocking.loop_thread import LoopThread"
_SYNCHRONOUS = {"Consumer": "SyncConsumer", "Producer": "SyncProducer", "Table": "SyncTable"}
"""The classes that stand for results which belong to an event loop."""
_WORDS = {
    "Belongs to one event loop": "Thread-safe",
    "`async with`": "`with`",
    "in another task": "in another thread",
    "was not awaited": "was not waited for",
}
"""Words of docstrings that mean something else without an event loop."""
_WIDTH = 106


_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Face(NamedTuple):
    """A class to write."""

    name: str
    sources: tuple[str, ...]
    """The classes that have the methods, with their modules in the client. The last one inherits from the
    others."""
    by_hand: Collection[str] = ()
    """Methods that a subclass has, which is written by hand."""
    only: Collection[str] = ()
    """The methods for users, if there are others."""

    @property
    def path(self) -> Path:
        """The file, which has the name of the class."""
        return FOLDER / f"{_snake_case(self.name)}.py"

    def has(self, method: str) -> bool:
        """Whether the method is written."""
        if method.startswith("_") or method in self.by_hand:
            return False
        return not self.only or method in self.only


FACES = (
    Face("SyncTopics", ("topics.Topics",)),
    Face(
        "SyncAdmin",
        (
            "topics_admin.TopicsAdmin",
            "partitions_admin.PartitionsAdmin",
            "tier_admin.TierAdmin",
            "admin.Admin",
        ),
    ),
    Face("SyncOperations", ("operations.Operations",)),
    Face("ClientCalls", ("client.Client",), by_hand={"close"}),
    Face("ConsumerCalls", ("consuming.consumer.Consumer",), by_hand={"batches"}),
    Face("TableCalls", ("consuming.table.Table",), by_hand={"get", "items", "keys", "values"}),
    Face(
        "ProducerCalls",
        ("producer.Producer",),
        only={"abandon", "close", "flush", "learn", "ready", "send_many"},
    ),
)


class _Source(NamedTuple):
    """An asynchronous class in its module."""

    path: Path
    text: str
    tree: ast.Module
    definition: ast.ClassDef

    @classmethod
    def of(cls, place: str) -> _Source:
        """The class at this place of the client."""
        module, _, name = place.rpartition(".")
        path = _CLIENT / f"{module.replace('.', '/')}.py"
        text = (ROOT / path).read_text()
        tree = ast.parse(text)
        [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
        return cls(path, text, tree, found)

    @property
    def module(self) -> str:
        """The name by which others import the module."""
        return ".".join(["stratalog.client", *self.path.relative_to(_CLIENT).with_suffix("").parts])

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.definition.name

    def docstring(self, node: ast.ClassDef | _Function) -> str:
        """The docstring as it is written, with its quotes."""
        assert ast.get_docstring(node) is not None, f"{self.name}: {node.name} needs a docstring"
        written = ast.get_source_segment(self.text, node.body[0])
        assert written is not None
        for word, other in _WORDS.items():
            written = written.replace(word, other)
        assert not re.search(r"\basync|\bawait|event loop", written), f"{node.name}: without an event loop?"
        return written

    def imports(self, names: Collection[str]) -> Iterator[tuple[str, bool]]:
        """The imports of those of the names that the module has, and whether each is for types only."""
        for node in self.tree.body:
            is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for one in node.body if isinstance(node, ast.If) and is_for_types else [node]:
                for name, line in _bound(one, self.module):
                    if name in names:
                        yield line, is_for_types


class _Method(NamedTuple):
    """A method or property that users have."""

    source: _Source
    node: _Function

    @property
    def is_property(self) -> bool:
        """Whether it is read, and not called."""
        return "property" in [ast.unparse(one) for one in self.node.decorator_list]

    @property
    def result(self) -> str:
        """The type of the result of the asynchronous method."""
        assert self.node.returns is not None
        return ast.unparse(self.node.returns)

    @property
    def synchronous_class(self) -> str | None:
        """The class that stands for the result, if that belongs to an event loop."""
        return _SYNCHRONOUS.get(self.result)

    @property
    def names(self) -> set[str]:
        """The names that the signature needs."""
        parts = [self.node.args, ast.parse(self.signature_result)]
        return {one.id for part in parts for one in ast.walk(part) if isinstance(one, ast.Name)}

    @property
    def signature_result(self) -> str:
        """The type of the result, for a caller who waits."""
        waited = self.synchronous_class or re.sub(r"^AsyncGenerator\b", "Generator", self.result)
        assert not re.match("Async|Await", waited), f"{self.node.name}: no rule for {self.result}"
        return waited

    def lines(self, target: str) -> list[str]:
        """The definition, which calls the method of `target`."""
        arguments = ast.unparse(self.node.args)
        return [
            *(["    @property"] if self.is_property else []),
            f"    def {self.node.name}({arguments}) -> {self.signature_result}:",
            f"        {self.source.docstring(self.node)}",
            *(f"        {line}" for line in self._body(f"{target}.{self.node.name}")),
            "",
        ]

    def _body(self, method: str) -> list[str]:
        passed = ", ".join(_passed(self.node.args))
        call = f"{method}({passed})"
        postponed = f"lambda: {call}" if passed else method
        if self.is_property:
            return [f"return {method}"]
        if self.synchronous_class is None:
            if self.result.startswith("AsyncGenerator["):
                waiting = f"self._thread.iterate({postponed})"
            elif isinstance(self.node, ast.AsyncFunctionDef):
                waiting = f"self._thread.run({call})"
            else:
                waiting = f"self._thread.call({postponed})"
            return [waiting if self.result == "None" else f"return {waiting}"]
        # Imported when it is needed, as the source does.
        module = f"stratalog.client.blocking.{_snake_case(self.synchronous_class)}"
        made = _snake_case(self.result)
        return [
            f"from {module} import {self.synchronous_class}",
            "",
            f"{made} = self._thread.call({postponed})",
            f"return {self.synchronous_class}(self._thread, {made})",
        ]


def generated() -> dict[Path, str]:
    """The text of each generated file."""
    return {face.path: _formatted(_module(face), face.path) for face in FACES}


def _module(face: Face) -> str:
    sources = [_Source.of(place) for place in face.sources]
    own = sources[-1]
    methods = [method for source in sources for method in _methods(source, face)]
    attribute = _snake_case(own.name)
    always, for_types = _imports(own, methods)
    files = [f"`{source.path.relative_to(_CLIENT)}`" for source in sources]
    origin = (
        f"Generated by `scripts/sync_client.py` from {', '.join(files)}: edit there, then `make sync-client`."
    )
    is_complete = not face.by_hand and not face.only
    plain = f'"""The calls of a `{own.name}`, each of which waits for its result. Thread-safe."""'
    return "\n".join(
        [
            f'"""Calls of `{own.name}` for threads without an event loop.',
            "",
            textwrap.fill(origin, _WIDTH, break_on_hyphens=False),
            '"""',
            "",
            "from __future__ import annotations",
            "",
            *always,
            *(["if TYPE_CHECKING:", *(f"    {line}" for line in for_types)] if for_types else []),
            "",
            f"class {face.name}:",
            f"    {own.docstring(own.definition) if is_complete else plain}",
            "",
            f"    def __init__(self, thread: LoopThread, {attribute}: {own.name}) -> None:",
            "        self._thread = thread",
            f"        self._{attribute} = {attribute}",
            "",
            *(line for method in methods for line in method.lines(f"self._{attribute}")),
        ]
    )


def _methods(source: _Source, face: Face) -> Iterator[_Method]:
    for node in source.definition.body:
        if isinstance(node, _Function) and face.has(node.name):
            yield _Method(source, node)


def _imports(own: _Source, methods: list[_Method]) -> tuple[list[str], list[str]]:
    """The imports of the module, and those for types."""
    always, for_types = {_THREAD, f"from {own.module} import {own.name}"}, set[str]()
    for method in methods:
        for line, is_for_types in method.source.imports(method.names):
            (for_types if is_for_types else always).add(line)
        if "Generator" in method.names:
            always.add("from collections.abc import Generator")
        if method.synchronous_class is not None:
            module = _snake_case(method.synchronous_class)
            for_types.add(f"from stratalog.client.blocking.{module} import {method.synchronous_class}")
    if for_types:
        always.add("from typing import TYPE_CHECKING")
    return sorted(always), sorted(for_types)


def _bound(node: ast.stmt, module: str) -> Iterator[tuple[str, str]]:
    """The names that a statement of a module binds, and how others import each."""
    match node:
        case ast.ImportFrom(module=origin, names=aliases):
            yield from ((one.asname or one.name, f"from {origin} import {_alias(one)}") for one in aliases)
        case ast.Import(names=aliases):
            yield from ((one.asname or one.name, f"import {_alias(one)}") for one in aliases)
        case ast.ClassDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
            yield name, f"from {module} import {name}"
        case _:
            pass


def _alias(alias: ast.alias) -> str:
    return alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"


def _passed(parameters: ast.arguments) -> Iterator[str]:
    """The parameters, as a call with the same ones passes them."""
    assert parameters.vararg is None
    yield from (one.arg for one in [*parameters.posonlyargs, *parameters.args] if one.arg != "self")
    yield from (f"{one.arg}={one.arg}" for one in parameters.kwonlyargs)
    if parameters.kwarg is not None:
        yield f"**{parameters.kwarg.arg}"


def _snake_case(name: str) -> str:
    """The name of a class as that of a module or a variable."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _formatted(text: str, path: Path) -> str:
    for command in (["check", "--select", "I", "--fix"], ["format"]):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(path), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
    return text


if __name__ == "__main__":
    for path, text in generated().items():
        (ROOT / path).write_text(text)
