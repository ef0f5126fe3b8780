#!/usr/bin/env bash
# Creates .venv with the first suitable Python; PYTHON=/path/to/python3 chooses another.
set -euo pipefail
cd "$(dirname "$0")/.."

will_do() {
    command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

for python in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
    will_do "$python" && break
    python=""
done
if [ -z "$python" ]; then
    echo "stratalog needs Python 3.11 or later: install it, or name one: make PYTHON=/path/to/python3 ..." >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    echo "$python cannot make virtual environments: install its venv package (Debian: apt install python3-venv)" >&2
    exit 1
fi
echo "Creating .venv with $("$python" --version)"
# Deletes the stamps of an environment that was deleted by hand.
rm -f .venv/.installed-*
"$python" -m venv .venv
