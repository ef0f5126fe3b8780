"""The build is what people install: a wheel in a clean environment, with and without a C compiler."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
KERNELS = sorted(
    path.relative_to(REPOSITORY).as_posix().split("/", 1)[1]
    for path in REPOSITORY.glob("*/stratalog/**/*.pyx")
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str | Path, **environment: str) -> str:
    """Standard output and error of a command that has to succeed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=REPOSITORY,
        env={**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def build_wheel(target: Path, **environment: str) -> tuple[Path, str]:
    """The wheel of this tree and what the build said."""
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation")
    said = run(*build, "--outdir", target, REPOSITORY, **environment)
    (wheel,) = target.glob("*.whl")
    return wheel, said


def clean_environment(target: Path, wheel: Path) -> Path:
    """The Python of a new environment that holds the wheel and nothing else.

    Its dependencies are lent by the environment that runs this test, through a .pth file that comes last: the
    question is what our wheel brings, not whether an index can be reached.
    """
    venv.create(target, with_pip=False, symlinks=True)
    python = target / "bin" / "python"
    # Python compiles what is imported, which is not all.
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-compile")
    run(*pip, "--quiet", "--no-deps", "--no-index", wheel)
    lent = [path for path in sys.path if path.endswith("site-packages")]
    (site,) = target.glob("lib/python*/site-packages")
    (site / "zz_lent.pth").write_text("".join(f"{path}\n" for path in lent))
    return python


@pytest.fixture(scope="module")
def wheel_with_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled without optimisation and symbols: installations compile with both, which takes longer."""
    target = tmp_path_factory.mktemp("wheel")
    compiler = target / "cc"
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O0 -g0 -w\n')
    compiler.chmod(0o755)
    return build_wheel(target, CC=str(compiler), STRATALOG_REQUIRE_KERNELS="1")[0]


def test_wheel_holds_every_kernel_and_no_source_of_one(wheel_with_kernels: Path) -> None:
    names = zipfile.ZipFile(wheel_with_kernels).namelist()
    compiled = sorted(name for name in names if name.endswith(".so"))

    assert KERNELS
    assert [name.split(".")[0] for name in compiled] == [kernel[:-4] for kernel in KERNELS]
    assert not [name for name in names if name.endswith((".pyx", ".pxi", ".c", ".h"))]
    assert "stratalog/py.typed" in names
    assert "none-any" not in wheel_with_kernels.name


def test_wheel_installs_no_generic_name(wheel_with_kernels: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel_with_kernels).namelist()}

    assert {top for top in tops if not re.fullmatch(r"stratalog-[\d.]+\.dist-info", top)} <= {
        "stratalog",
        "pyspark_stratalog",
    }


def test_installed_wheel_imports_whole_and_runs(wheel_with_kernels: Path, tmp_path: Path) -> None:
    python = clean_environment(tmp_path / "env", wheel_with_kernels)
    site = str(next((tmp_path / "env").glob("lib/python*/site-packages")))
    program = (
        "import importlib, pkgutil, stratalog\n"
        f"assert list(stratalog.__path__) == [{site + '/stratalog'!r}], stratalog.__path__\n"
        "names = [m.name for m in pkgutil.walk_packages(stratalog.__path__, 'stratalog.')]\n"
        "for name in names:\n"
        "    if not name.startswith('stratalog.pipeline') and not name.endswith('__main__'):\n"
        "        importlib.import_module(name)\n"
        "from stratalog.record.native.kernels import NATIVE\n"
        "print(len(names), NATIVE)\n"
    )

    count, native = run(python, "-P", "-c", program).split()

    assert int(count) > 50
    assert native == "True"
    assert "0.1.0" in run(tmp_path / "env" / "bin" / "stratalog", "--version")


def test_without_a_compiler_the_build_warns_and_the_wheel_works(tmp_path: Path) -> None:
    wheel, said = build_wheel(tmp_path / "wheel", CC="/bin/false")
    python = clean_environment(tmp_path / "env", wheel)

    assert "without its native kernels" in said
    assert wheel.name.endswith("-py3-none-any.whl")
    program = "from stratalog.record.native.kernels import NATIVE; print(NATIVE)"
    assert run(python, "-P", "-c", program).strip() == "False"


def test_a_publisher_may_insist_on_kernels(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="without its native kernels"):
        build_wheel(tmp_path, CC="/bin/false", STRATALOG_REQUIRE_KERNELS="1")
