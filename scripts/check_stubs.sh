#!/usr/bin/env bash
# Generates the gRPC stubs into an empty folder and compares them with the committed ones.
set -euo pipefail
cd "$(dirname "$0")/.."

fresh="$(mktemp -d)"
trap 'rm -rf "$fresh"' EXIT
scripts/generate_stubs.sh "$fresh"
if ! diff --recursive --brief --exclude='*.proto' --exclude=__init__.py --exclude=__pycache__ \
        "$fresh/stratalog/v1" proto/stratalog/v1; then
    echo "The committed stubs differ from those of the .proto files: run make proto, and commit." >&2
    exit 1
fi
