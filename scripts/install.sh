#!/usr/bin/env bash
# Installs stratalog from this tree into .venv, editable, with the extras named: scripts/install.sh demo,spark
set -euo pipefail
cd "$(dirname "$0")/.."

echo "Installing stratalog[$1] into .venv (the first time this takes a minute or two)"
# pyspark comes as sources, and most of what packages hold is never imported: no time is spent on compressing the jars of
# a wheel that is unpacked at once, nor on compiling modules before somebody needs them.
DIST_EXTRA_CONFIG="${DIST_EXTRA_CONFIG:-$PWD/scripts/wheels.cfg}" .venv/bin/python -m pip install \
    --quiet --disable-pip-version-check --no-compile --editable ".[$1]"
# pip shows a build's warnings only where it fails, so the one that matters is said here.
.venv/bin/python - <<'PYTHON'
from stratalog.record.native.kernels import NATIVE

if not NATIVE:
    print("WARNING: no C compiler or no Python headers: the kernels run as pure Python, many times slower.")
    print("         Install them (Debian: apt install gcc python3-dev), then: make clean")
PYTHON
