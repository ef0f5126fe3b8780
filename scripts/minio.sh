#!/usr/bin/env bash
# Builds MinIO into .cache/bin, once, for trials and tests; `make minio` and `stratalog dev s3 minio` serve it. It is no
# part of Stratalog: MinIO is AGPL.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${MINIO_VERSION:-latest}
binary=$PWD/.cache/bin/minio

if [ -x "$binary" ]; then
    exit 0
fi
if ! command -v go >/dev/null; then
    echo "minio.sh: building MinIO needs Go: install it from https://go.dev/dl, or put a minio at $binary" >&2
    exit 1
fi
echo "building MinIO ($version) into .cache/bin: a few minutes the first time" >&2
mkdir -p "$(dirname "$binary")"
GOBIN=$(dirname "$binary") nice -n 10 go install "github.com/minio/minio@$version"
