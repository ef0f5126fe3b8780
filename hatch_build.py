"""Compiles the native kernels while a wheel is built, for an ordinary and for an editable install.

Convention: every ``*.pyx`` below an import root is an extension module named after its place. It is linked
with the ``*.c`` files of the folder ``c`` beside it, which are written by hand, and includes the files of the
folder ``cython``. The C that Cython generates never enters the tree.

What is compiled is always optional, because each kernel has a pure-Python twin: where a probe shows that
there is no working C compiler, or no Python headers, the build warns and goes on without. A compiler that
passed the probe and then fails on our sources has found a bug, and fails the build. Two variables choose:

* ``STRATALOG_PURE_KERNELS=1`` compiles nothing;
* ``STRATALOG_REQUIRE_KERNELS=1`` makes the warning an error (for those who build wheels to publish).

A wheel gets its extensions from a temporary folder; an editable install gets them beside their sources, where
git ignores them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

if TYPE_CHECKING:
    # Not needed, and so not imported, where nothing is compiled.
    from setuptools import Extension

COMPILE_ARGUMENTS = ["-O3", "-g0"]
"""Nothing that depends on the machine that compiles: a wheel has to run on another. No symbols for
debuggers, which Python's own arguments ask for: they take a quarter of the time."""


class KernelBuildHook(BuildHookInterface[Any]):
    """Used by hatchling, once a build. Not thread-safe."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell hatchling what to add. `version` is "standard" or "editable"."""
        self._scratch = Path(tempfile.mkdtemp(prefix="stratalog-build-"))
        try:
            self._compile(version, build_data)
        except BaseException:
            # Nobody calls `finalize` then.
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise

    def _compile(self, version: str, build_data: dict[str, Any]) -> None:
        roots = [Path(self.root, name) for name in self.build_config.dev_mode_dirs]
        sources = [(root, source) for root in roots for source in sorted(root.rglob("*.pyx"))]
        if version == "editable":
            for _, source in sources:
                remove_built(source)
        reason = reason_for_pure_python(self._scratch)
        if reason is not None:
            self._fall_back(reason)
            return
        for root, source in sources:
            built = compile_extension(source, root, self._scratch)
            if version == "editable":
                shutil.copy2(built, source.parent / built.name)
            else:
                name_in_wheel = source.relative_to(root).parent / built.name
                build_data["force_include"][str(built)] = name_in_wheel.as_posix()
        if sources:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Forget the temporary folder: the wheel has its contents."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _fall_back(self, reason: str) -> None:
        message = f"stratalog is installed without its native kernels and will be many times slower: {reason}"
        if os.environ.get("STRATALOG_REQUIRE_KERNELS") == "1":
            raise SystemExit(message)
        self.app.display_warning(message)


def remove_built(source: Path) -> None:
    """Delete what an earlier editable install left beside `source`, so that nothing stale is imported."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    source.with_name(source.stem + suffix).unlink(missing_ok=True)


def reason_for_pure_python(scratch: Path) -> str | None:
    """Why nothing can be compiled, as the end of a sentence; None where a trial compilation succeeds."""
    from setuptools import Extension

    if os.environ.get("STRATALOG_PURE_KERNELS") == "1":
        return "STRATALOG_PURE_KERNELS is set"
    probe = scratch / "probe.c"
    probe.write_text("#include <Python.h>\nPyMODINIT_FUNC PyInit_probe(void) { return NULL; }\n")
    try:
        _build(Extension("probe", [str(probe)]), scratch / "probe")
    except Exception as error:  # noqa: BLE001 - compilers fail in as many ways as there are compilers
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"no C compiler works here, or the headers of Python {version} are missing ({error})"
    return None


def compile_extension(source: Path, root: Path, scratch: Path) -> Path:
    """The shared library made of `source` and the C files in the folder `c` beside it."""
    from setuptools import Extension

    name = ".".join(source.relative_to(root).with_suffix("").parts)
    generated = scratch / f"{name}.c"
    subprocess.run(
        [sys.executable, "-m", "cython", "-3", "--module-name", name, "-o", generated, source], check=True
    )
    extension = Extension(
        name,
        [str(generated), *map(str, sorted(source.parent.glob("c/*.c")))],
        include_dirs=[str(source.parent / "c")],
        extra_compile_args=COMPILE_ARGUMENTS,
    )
    return _build(extension, scratch / "kernels")


def _build(extension: Extension, target: Path) -> Path:
    """Compile its files beside each other and link them below `target`; returns the shared library."""
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    class ParallelBuild(build_ext):
        def build_extensions(self) -> None:
            compile_all: Callable[..., list[str]] = self.compiler.compile

            def compile_each(sources: Sequence[str], **settings: Any) -> list[str]:
                def compile_one(source: str) -> list[str]:
                    return compile_all([source], **settings)

                # The one that Cython generates takes as long as all others, so it begins first.
                with ThreadPoolExecutor(os.cpu_count()) as threads:
                    return [name for names in threads.map(compile_one, sources) for name in names]

            self.compiler.compile = compile_each
            super().build_extensions()

    command = ParallelBuild(Distribution({"ext_modules": [extension]}))
    command.build_lib = str(target / "lib")
    command.build_temp = str(target / "temp")
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath(extension.name))
