#!/usr/bin/env bash
# MinIO for trials and tests. `scripts/minio.sh` builds it if needed and serves S3 on this machine until it is
# interrupted; `scripts/minio.sh build` only builds. It is in .cache/ and not a part of Stratalog: MinIO is AGPL.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${MINIO_VERSION:-latest}
address=${MINIO_ADDRESS:-127.0.0.1:9000}
console=${MINIO_CONSOLE_ADDRESS:-127.0.0.1:9001}
bucket=${S3_BUCKET:-stratalog}
export MINIO_ROOT_USER=${MINIO_ROOT_USER:-stratalog}
export MINIO_ROOT_PASSWORD=${MINIO_ROOT_PASSWORD:-stratalog-for-trying-out}
binary=$PWD/.cache/bin/minio
data=$PWD/.cache/minio

if [ ! -x "$binary" ]; then
    if ! command -v go >/dev/null; then
        echo "minio.sh: building MinIO needs Go: install it from https://go.dev/dl, or put a minio at $binary" >&2
        exit 1
    fi
    echo "building MinIO ($version) into .cache/bin: a few minutes the first time" >&2
    mkdir -p "$(dirname "$binary")"
    GOBIN=$(dirname "$binary") nice -n 10 go install "github.com/minio/minio@$version"
fi
if [ "${1:-serve}" = build ]; then
    exit 0
fi

# A folder below the data directory is a bucket.
mkdir -p "$data/$bucket"
cat >&2 <<END
MinIO serves http://$address (console: http://$console); data in .cache/minio. In another terminal:

    export AWS_ACCESS_KEY_ID=$MINIO_ROOT_USER AWS_SECRET_ACCESS_KEY=$MINIO_ROOT_PASSWORD
    stratalog demo --store 's3://$bucket/demo?endpoint=http://$address'
    S3_ENDPOINT_URL=http://$address S3_BUCKET=$bucket make test ARGS=tests/integration/tier/test_object_store_servers.py

END
MINIO_UPDATE=off exec "$binary" server --quiet --address "$address" --console-address "$console" "$data"
