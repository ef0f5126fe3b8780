"""The floor of `remote_read.py`: the least that a gRPC server in Python can do to stream objects of a bucket.

A call names ranges of objects as JSON, and each range comes back as one message, in order. A range is one GET
by boto3, on one of as many threads as our server has for reads of tiered data. Each stream has its share of
them in flight. Nothing is checked, decoded, cached or bounded.

    plain_stream_server.py ENDPOINT BUCKET CONNECTIONS STREAMS
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

import boto3
import grpc
from botocore.config import Config

from stratalog.base.process_tuning import keep_freed_memory, share_interpreter_lock

METHOD = "/floor/Ranges"


class ObjectRange(NamedTuple):
    """A range of an object."""

    key: str
    start: int
    size_bytes: int


class RangeService(grpc.GenericRpcHandler):
    """Answers calls of `METHOD`. Belongs to the event loop; only `_get` runs on threads."""

    def __init__(self, client: Any, bucket: str, connection_count: int, stream_count: int) -> None:
        self._client = client
        self._bucket = bucket
        self._pool = ThreadPoolExecutor(connection_count)
        self._share_count = max(connection_count // stream_count, 1)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        return grpc.unary_stream_rpc_method_handler(cast("Any", self._stream))

    async def _stream(self, request: bytes, _: object) -> AsyncIterator[bytes]:
        ranges = deque(ObjectRange(*one) for one in json.loads(request))
        loop = asyncio.get_running_loop()
        coming: deque[asyncio.Future[bytes]] = deque()
        while ranges or coming:
            while ranges and len(coming) < self._share_count:
                coming.append(loop.run_in_executor(self._pool, self._get, ranges.popleft()))
            yield await coming.popleft()

    def _get(self, one: ObjectRange) -> bytes:
        last = one.start + one.size_bytes - 1
        answer = self._client.get_object(Bucket=self._bucket, Key=one.key, Range=f"bytes={one.start}-{last}")
        body: bytes = answer["Body"].read()
        return body


async def _serve(endpoint_url: str, bucket: str, connection_count: int, stream_count: int) -> None:
    # As for our server: its processes are tuned alike.
    keep_freed_memory()
    share_interpreter_lock()
    config = Config(max_pool_connections=connection_count)
    client = cast("Any", boto3.session.Session()).client("s3", endpoint_url=endpoint_url, config=config)
    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers([RangeService(client, bucket, connection_count, stream_count)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    endpoint_url, bucket, connection_count, stream_count = sys.argv[1:]
    asyncio.run(_serve(endpoint_url, bucket, int(connection_count), int(stream_count)))
