#!/bin/sh
# Generates the committed gRPC stubs beside the .proto files: messages, services, and type stubs for both.
#
#   scripts/generate_stubs.sh [TARGET]
#
# TARGET is the import root that receives stratalog/v1/*_pb2*; by default proto/ itself. The output depends on the .proto
# files and on the versions of grpcio-tools and mypy-protobuf alone; tests/style/test_generated_stubs.py generates into an
# empty directory and compares. PYTHON names the interpreter that has both tools (default: .venv/bin/python).
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
target=${1:-"$root/proto"}
python=${PYTHON:-"$root/.venv/bin/python"}
# protoc finds its plugins, protoc-gen-mypy and protoc-gen-mypy_grpc, on the path.
PATH="$(dirname -- "$python"):$PATH"
export PATH

# The directory that holds google/rpc/status.proto of googleapis-common-protos.
googleapis=$("$python" -c 'import pathlib, google.rpc.status_pb2 as m; print(pathlib.Path(m.__file__).parents[2])')

mkdir -p "$target"
cd "$root/proto"
"$python" -m grpc_tools.protoc \
    --proto_path=. \
    --proto_path="$googleapis" \
    --python_out="$target" \
    --grpc_python_out="$target" \
    --mypy_out="quiet:$target" \
    --mypy_grpc_out="quiet:$target" \
    stratalog/v1/admin.proto stratalog/v1/log.proto stratalog/v1/operation.proto stratalog/v1/partition.proto \
    stratalog/v1/tier.proto
