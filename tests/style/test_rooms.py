"""Folders are rooms: few modules on one level, the same rooms in tests/unit, unique names of test files."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from tests.support.places import REPOSITORY
from tests.support.style.sources import EVERYTHING, PRODUCTION, files_below, sources_below

MAX_FOLDER_MODULES = 20
MODULES = (".py", ".pyx", ".pxi", ".c")


def crowded_folders(names: list[str]) -> list[str]:
    """Folders with more than `MAX_FOLDER_MODULES` modules on one level, with their counts."""
    counts = Counter(str(Path(name).parent) for name in names if Path(name).name != "__init__.py")
    return [f"{folder}: {count}" for folder, count in sorted(counts.items()) if count > MAX_FOLDER_MODULES]


def test_folders_are_rooms_and_not_halls() -> None:
    assert crowded_folders([source.name for source in sources_below(EVERYTHING, *MODULES)]) == []


def test_crowded_folder_is_found() -> None:
    names = [f"a/b/m{index}.py" for index in range(MAX_FOLDER_MODULES)]

    assert crowded_folders([*names, "a/b/__init__.py"]) == []
    assert crowded_folders([*names, "a/b/one_more.py"]) == [f"a/b: {MAX_FOLDER_MODULES + 1}"]


def rooms_of_modules() -> dict[str, set[str]]:
    """The rooms of the modules with each name, such as `log/read`."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for root in PRODUCTION:
        for path in (REPOSITORY / root / "stratalog").rglob("*.py"):
            rooms[path.stem].add(path.parent.relative_to(REPOSITORY / root / "stratalog").as_posix())
    return rooms


def rooms_of_unit_tests() -> dict[str, str]:
    """The room of each file of tests/unit, by its name without `test_`."""
    unit = REPOSITORY / "tests" / "unit"
    return {
        path.stem.removeprefix("test_"): path.parent.relative_to(unit).as_posix()
        for path in unit.rglob("test_*.py")
    }


def test_unit_tests_mirror_the_packages() -> None:
    packages = rooms_of_modules()["__init__"]

    assert set(rooms_of_unit_tests().values()) - packages == {"benchmarks", "scripts"}


def test_unit_test_of_a_module_lies_in_its_room() -> None:
    modules, tests = rooms_of_modules(), rooms_of_unit_tests()

    assert [f"{name}: {room}" for name, room in tests.items() if room not in modules.get(name, {room})] == []


def test_test_files_have_unique_names() -> None:
    names = [path.name for path in files_below(("tests",), ".py") if path.name.startswith("test_")]

    assert sorted(names) == sorted(set(names))
