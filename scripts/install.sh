#!/usr/bin/env bash
# Installs stratalog from this tree into .venv, editable, with the extras named: scripts/install.sh demo,spark
set -euo pipefail
cd "$(dirname "$0")/.."

echo "Installing stratalog[$1] into .venv (the first time this takes a minute or two)"
# pyspark comes as sources, and most modules of the packages are never imported. So the jars of a wheel that is unpacked
# at once are not compressed, and modules are not compiled before their first import.
DIST_EXTRA_CONFIG="${DIST_EXTRA_CONFIG:-$PWD/scripts/wheels.cfg}" .venv/bin/python -m pip install \
    --quiet --disable-pip-version-check --no-compile --editable ".[$1]"
# pip shows the warnings of a build only if it fails, so the one that matters is printed here.
.venv/bin/python - <<'PYTHON'
from stratalog.record.native.kernels import NATIVE

if not NATIVE:
    print("WARNING: no C compiler or no Python headers: the kernels run as pure Python, many times slower.")
    print("         Install them (Debian: apt install gcc python3-dev), then: make clean")
PYTHON
