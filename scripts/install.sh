#!/usr/bin/env bash
# Installs stratalog from this tree into .venv, editable, with the extras named: scripts/install.sh demo,spark
#
# uv does in seconds what takes pip a minute, and builds packages that come as sources while it fetches the others. It
# does not read pip's settings. So pip installs where these name another index, and where uv cannot be had or fails.
set -euo pipefail
cd "$(dirname "$0")/.."

with_uv() {
    [ -z "$(.venv/bin/python -m pip config list | grep -E 'index-url|no-index')" ] || return 1
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile 'uv>=0.8' || return 1
    # uv takes an unchanged pyproject.toml for an unchanged package, whatever its kernels are made of.
    .venv/bin/uv pip install --quiet --python .venv/bin/python --reinstall-package stratalog --editable ".[$1]"
}

with_pip() {
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --editable ".[$1]"
}

echo "Installing stratalog[$1] into .venv (the first time this takes a minute or two)"
# pyspark comes as sources, and most modules of the packages are never imported. So the jars of a wheel that is unpacked
# at once are not compressed, and modules are not compiled before their first import.
export DIST_EXTRA_CONFIG="${DIST_EXTRA_CONFIG:-$PWD/scripts/wheels.cfg}"
with_uv "$1" || with_pip "$1"
# The warnings of a build are shown only if it fails, so the one that matters is printed here.
.venv/bin/python - <<'PYTHON'
from stratalog.record.native.kernels import NATIVE

if not NATIVE:
    print("WARNING: no C compiler or no Python headers: the kernels run as pure Python, many times slower.")
    print("         Install them (Debian: apt install gcc python3-dev), then: make clean")
PYTHON
