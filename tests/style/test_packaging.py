"""The lists of import roots in pyproject.toml are equal to each other and to the folders that hold them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
TOOL: dict[str, Any] = PYPROJECT["tool"]
ROOTS: list[str] = TOOL["hatch"]["build"]["dev-mode-dirs"]
NOT_ROOTS = {"benchmarks", "deploy", "docs", "scripts", "tests"}


def folders(parent: Path) -> list[str]:
    """Names of the visible folders of `parent` that hold anything at all (git keeps no others)."""
    return sorted(
        path.name
        for path in parent.iterdir()
        if path.is_dir() and not path.name.startswith((".", "_")) and any(path.iterdir())
    )


def wheel_packages_of(roots: list[str]) -> set[str]:
    """Packages that the wheel has to list: Spark looks its data sources up by a name outside our
    namespace."""
    return {f"{root}/stratalog" for root in roots} | {"pipeline/pyspark_stratalog"}


def lower_bounds(dependencies: list[str]) -> dict[str, tuple[int, ...]]:
    """Version numbers of the `name>=version` lines, by name."""
    found = (re.match(r"([\w-]+)(?:\[.*\])?>=([\d.]+)", line) for line in dependencies)
    return {match[1]: tuple(map(int, match[2].split("."))) for match in found if match}


@pytest.mark.parametrize(
    "roots",
    [
        pytest.param(TOOL["mypy"]["mypy_path"].split(":")[: len(ROOTS)], id="mypy_path"),
        pytest.param(TOOL["mypy"]["files"][: len(ROOTS)], id="mypy files"),
        pytest.param(TOOL["basedpyright"]["extraPaths"][: len(ROOTS)], id="basedpyright extraPaths"),
        pytest.param(TOOL["basedpyright"]["include"][: len(ROOTS)], id="basedpyright include"),
        pytest.param(TOOL["ruff"]["src"][: len(ROOTS)], id="ruff src"),
        pytest.param(TOOL["pytest"]["ini_options"]["pythonpath"][: len(ROOTS)], id="pytest pythonpath"),
        pytest.param([name for name in folders(REPOSITORY) if name not in NOT_ROOTS], id="folders"),
    ],
)
def test_every_list_of_roots_is_the_same(roots: list[str]) -> None:
    assert roots == ROOTS


def test_wheel_ships_every_root() -> None:
    assert set(TOOL["hatch"]["build"]["targets"]["wheel"]["packages"]) == wheel_packages_of(ROOTS)


def test_makefile_knows_every_root() -> None:
    line = re.search(r"^ROOTS := (.*)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)

    assert line is not None
    assert line[1].split() == ROOTS


@pytest.mark.parametrize("root", ROOTS)
def test_root_is_part_of_a_namespace_package(root: str) -> None:
    assert not (REPOSITORY / root / "__init__.py").exists()
    assert not (REPOSITORY / root / "stratalog" / "__init__.py").exists()


def test_root_holds_nothing_but_what_ships() -> None:
    for root in ROOTS:
        allowed = {"stratalog", "pyspark_stratalog"} if root == "pipeline" else {"stratalog"}
        assert set(folders(REPOSITORY / root)) <= allowed, root


def test_one_py_typed_serves_the_namespace() -> None:
    found = [
        str(path.relative_to(REPOSITORY)) for root in ROOTS for path in (REPOSITORY / root).rglob("py.typed")
    ]

    assert found == ["storage/stratalog/py.typed"]


def test_every_subpackage_is_known_to_import_linter() -> None:
    packages = {
        f"stratalog.{path.parent.name}"
        for root in ROOTS
        for path in REPOSITORY.glob(f"{root}/stratalog/*/__init__.py")
    }

    assert packages == set(TOOL["importlinter"]["root_packages"])


def test_stubs_run_with_the_oldest_runtime_that_may_be_installed() -> None:
    bounds = lower_bounds(PYPROJECT["project"]["dependencies"])
    generated = REPOSITORY / "proto" / "stratalog" / "v1"
    of_protobuf = re.search(
        r"^# Protobuf Python Version: ([\d.]+)$", (generated / "log_pb2.py").read_text(), re.MULTILINE
    )
    of_grpc = re.search(
        r"^GRPC_GENERATED_VERSION = '([\d.]+)'$", (generated / "log_pb2_grpc.py").read_text(), re.MULTILINE
    )

    assert of_protobuf is not None
    assert of_grpc is not None
    assert bounds["protobuf"] == tuple(map(int, of_protobuf[1].split(".")))
    assert bounds["grpcio"] == tuple(map(int, of_grpc[1].split(".")))


def test_dependencies_have_no_upper_bounds() -> None:
    assert set(lower_bounds(PYPROJECT["project"]["dependencies"])) == {
        re.split(r"[\[>=<!~ ]", line)[0] for line in PYPROJECT["project"]["dependencies"]
    }
    assert not any("<" in line or "==" in line for line in PYPROJECT["project"]["dependencies"])
