"""The project's own files, read as rules of style see them."""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.support.places import REPOSITORY

ENGINE = ("storage", "tiering")
PRODUCTION = ("cli", "client", "migration", "pipeline", "proto", "service", "storage", "testing", "tiering")
EVERYTHING = (*PRODUCTION, "benchmarks", "tests")


class Source(NamedTuple):
    """One file; `name` is relative to the repository."""

    name: str
    text: str

    @property
    def tree(self) -> ast.Module:
        """Parsed once for all rules: they only read it."""
        return parsed(self.text)

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree: to find them takes longer than most rules."""
        return nodes_of(self.text)


@cache
def parsed(text: str) -> ast.Module:
    """The tree of a text. No garbage is collected meanwhile, nor is the tree ever looked through for it: over
    all files that would take three times as long as the parser."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@cache
def nodes_of(text: str) -> tuple[ast.AST, ...]:
    """All nodes of the tree of a text, each before its children."""
    return tuple(ast.walk(parsed(text)))


Rule = Callable[[Source], Iterator[str]]
"""Yields the complaints about one file, each with its line where it has one."""


def files_below(folders: tuple[str, ...], *suffixes: str) -> list[Path]:
    """Files that people write: without the output of protoc and Python."""
    found = [
        path for folder in folders for path in (REPOSITORY / folder).rglob("*") if path.suffix in suffixes
    ]
    return sorted(path for path in found if "_pb2" not in path.name and "__pycache__" not in path.parts)


def sources_below(folders: tuple[str, ...], *suffixes: str) -> list[Source]:
    paths = files_below(folders, *suffixes)
    return [Source(path.relative_to(REPOSITORY).as_posix(), path.read_text()) for path in paths]


def complaints_about(rule: Rule, folders: tuple[str, ...], *suffixes: str) -> list[str]:
    """Complaints of a rule about the tree, each with its file."""
    return [
        f"{source.name}:{complaint}"
        for source in sources_below(folders, *suffixes)
        for complaint in rule(source)
    ]
