"""Folders are rooms: few modules on one level, the same rooms in tests/unit, unique names of test files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.support.places import REPOSITORY
from tests.support.style.sources import EVERYTHING, PRODUCTION, files_below, sources_below

MAX_FOLDER_MODULES = 20


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

    assert folders - packages == {"benchmarks", "scripts"}


def test_test_files_have_unique_names() -> None:
    names = [path.name for path in files_below(("tests",), ".py") if path.name.startswith("test_")]

    assert sorted(names) == sorted(set(names))
