#!/usr/bin/env bash
# Runs all static checks, to the last one whichever fails. A failure is said again at the end, with its output and its
# exit code, because a record of a long run keeps its end. A tool that crashes, which is any code but 0 and 1, has found
# nothing, and is started once more.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${1:-.venv/bin}
output=$(mktemp) failures=$(mktemp)
trap 'rm -f "$output" "$failures"' EXIT

check() {
  local code
  for try in first second; do
    echo "== $*"
    code=0
    "$@" >"$output" 2>&1 || code=$?
    cat "$output"
    [ "$code" -le 1 ] && break
    echo "== $1 crashed with exit code $code in its $try run" | tee -a "$failures"
  done
  if [ "$code" != 0 ]; then
    { echo "== failed with exit code $code: $*"; tail -n 100 "$output"; } >>"$failures"
    failed="$failed ${1##*/}"
  fi
}

failed=
check "$bin/ruff" format --check .
check "$bin/ruff" check .
check "$bin/mypy"
check "$bin/basedpyright" --pythonpath "$bin/python"
check "$bin/lint-imports"
check scripts/check_stubs.sh
cat "$failures" >&2
if [ -n "$failed" ]; then
  echo "failed:$failed" >&2
  exit 1
fi
