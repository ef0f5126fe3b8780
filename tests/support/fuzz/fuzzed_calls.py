"""Calls with random inputs, each of which follows from the seed and its number, and the judgement of their
ends.

Only values that the server has given before, such as ids and page tokens, depend on the calls that came
before; a failure shows the bytes that were sent.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple, cast

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status

from stratalog.base.errors import ERROR_DOMAIN
from stratalog.server.app import SERVICES
from stratalog.server.rpc.status import KNOWN_ERRORS
from stratalog.v1 import log_pb2
from tests.support.fuzz.http2_connection import odd_call, send_bytes
from tests.support.fuzz.message_bytes import changed
from tests.support.fuzz.random_requests import Learned, RandomRequests

DEADLINE_S = 60.0
"""The time that a call has which does not wait for anything."""
_FOREIGN = (
    cast(Any, health_pb2).DESCRIPTOR.services_by_name["Health"],
    cast(Any, reflection_pb2).DESCRIPTOR.services_by_name["ServerReflection"],
)
"""Services that the server has, and whose errors have no details of ours."""
_OURS = [log_pb2.DESCRIPTOR.pool.FindServiceByName(name) for name in SERVICES]
METHODS: Sequence[MethodDescriptor] = [one for service in (*_OURS, *_FOREIGN) for one in service.methods]
"""Every call of the server."""
_OFTEN = ("Append", "AppendStream", "CopyBatches", "Fetch", "FetchStream", "Read", "CreateTopic")
_CHOICES = [one for one in METHODS for _ in range(3 if one.name in _OFTEN else 1)]
_WITHOUT_DETAILS = frozenset(
    {
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""The refusals of the transport."""
WROTE_TOO_LATE = "Internal error from Core"
"""The client's own end of a stream that the server had ended before a message was written. The status of the
server is lost then; its counts have it."""
_NEVER = frozenset(
    {"INTERNAL", "UNKNOWN", "STORE_ERROR", "STORE_CORRUPT", "CORRUPT_RECORD", "OBJECT_NOT_FOUND"}
)
"""Reasons that no request may cause while disk and store are sound."""
_INSIDE = re.compile(r"Traceback|\w+Error\b|Exception")
"""Signs of the inside of the server in an answer."""
_KNOWN = {reason: getattr(grpc.StatusCode, code).value[0] for code, reason in KNOWN_ERRORS}
MAX_SHOWN_BYTES = 4000


class FuzzInput(NamedTuple):
    """One input: a call with its messages."""

    number: int
    method: MethodDescriptor
    messages: Sequence[bytes]
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    compression: grpc.Compression = grpc.Compression.NoCompression
    patience_s: float = 0.05
    """A stream, or a call that may wait, is left after this time."""
    is_cut: bool = False
    """Whether a stream of requests is cancelled before its end."""
    connection: bytes = b""
    """Bytes of a connection of its own; empty: the call goes through gRPC."""

    @property
    def path(self) -> str:
        return f"/{self.method.containing_service.full_name}/{self.method.name}"

    @property
    def may_wait(self) -> bool:
        """Whether the call ends when the client leaves, and perhaps not before."""
        return self.method.server_streaming or self.method.name == "Fetch"

    def __str__(self) -> str:
        shown = " ".join(message.hex() for message in self.messages)[:MAX_SHOWN_BYTES]
        return f"input {self.number}, {self.path}, messages {shown}, metadata {self.metadata!r:.200}"


class Fuzz:
    """Makes inputs, sends them and judges the answers. Belongs to the event loop."""

    def __init__(self, seed: int, address: str, tls: ssl.SSLContext | None = None) -> None:
        """`tls` is that of connections that gRPC does not make."""
        self._seed = seed
        self._address = address
        self._tls = tls
        self._learned = Learned()

    def input(self, number: int) -> FuzzInput:
        """The input with this number."""
        random = Random(f"{self._seed} {number}")
        method = random.choice(_CHOICES)
        requests = RandomRequests(random, self._learned)
        count = random.randint(1, 5) if method.client_streaming else 1
        messages = [requests.request(method.input_type) for _ in range(count)]
        if method.name == "AppendStream" and random.random() < 0.8:
            for sequence, message in enumerate(messages, 1):
                cast(Any, message).sequence = sequence
        encoded = [message.SerializeToString() for message in messages]
        if random.random() < 0.5:
            at = random.randrange(count)
            encoded[at] = changed(random, encoded[at])
        found = FuzzInput(number, method, encoded, patience_s=random.choice((0.0, 0.01, 0.05, 0.2)))
        if random.random() < 0.05:
            return found._replace(connection=odd_call(random, found.path, encoded))
        return found._replace(
            metadata=_metadata(random),
            compression=random.choice((grpc.Compression.NoCompression,) * 8 + (grpc.Compression.Gzip,)),
            is_cut=random.random() < 0.2,
        )

    async def send(self, channel: grpc.aio.Channel, one: FuzzInput) -> str:
        """Send an input, and say what is wrong with the end of its call; empty: nothing."""
        if one.connection:
            await send_bytes(self._address, one.connection, one.patience_s, self._tls)
            return ""
        try:
            answers = await (self._stream if one.method.client_streaming else self._call)(channel, one)
        except grpc.aio.AioRpcError as error:
            return self._fault_of_call(one, error)
        except asyncio.CancelledError:
            if cast(asyncio.Task[None], asyncio.current_task()).cancelling():
                raise
            return ""
        answer_class = GetMessageClass(one.method.output_type)
        for data in answers:
            message: Message = answer_class.FromString(data)
            self._learned.take(message)
            for status in _statuses_in(message):
                fault = _fault_of(status)
                if fault:
                    return fault
        return ""

    async def _call(self, channel: grpc.aio.Channel, one: FuzzInput) -> list[bytes]:
        """The first answers of a call with one request."""
        raw = cast(Any, channel)
        options = {"metadata": one.metadata, "compression": one.compression, "timeout": DEADLINE_S}
        if one.method.server_streaming:
            return await _first_answers(raw.unary_stream(one.path)(one.messages[0], **options), one)
        call = raw.unary_unary(one.path)(one.messages[0], **options)
        if one.may_wait:
            asyncio.get_running_loop().call_later(one.patience_s + 0.1, call.cancel)
        return [await call]

    async def _stream(self, channel: grpc.aio.Channel, one: FuzzInput) -> list[bytes]:
        """The answers of a stream of requests, to its end unless it is cut."""
        call = cast(Any, channel).stream_stream(one.path)(
            metadata=one.metadata, compression=one.compression, timeout=DEADLINE_S
        )
        try:
            for message in one.messages:
                await call.write(message)
            if one.is_cut:
                return await _first_answers(call, one)
            await call.done_writing()
        except asyncio.InvalidStateError:
            # The server has ended it.
            pass
        return [answer async for answer in call]

    def _fault_of_call(self, one: FuzzInput, error: grpc.aio.AioRpcError) -> str:
        status = cast("Status | None", rpc_status.from_call(cast(grpc.Call, error)))  # pyright: ignore[reportUnknownMemberType]  # without types
        if status is not None:
            return _fault_of(status)
        is_foreign = one.method.containing_service in _FOREIGN
        if error.details() == WROTE_TOO_LATE:
            return ""
        if error.code() in _WITHOUT_DETAILS or (is_foreign and error.code() is grpc.StatusCode.NOT_FOUND):
            return ""
        return f"ended with {error.code()}, {error.details()!r:.300}"


async def _first_answers(call: Any, one: FuzzInput) -> list[bytes]:
    """The answers that come within the patience; the call is cancelled then."""
    answers: list[bytes] = []
    try:
        async with asyncio.timeout(one.patience_s):
            while (answer := await call.read()) is not grpc.aio.EOF:
                answers.append(answer)
            return answers
    except TimeoutError:
        return answers
    finally:
        call.cancel()


def _metadata(random: Random) -> tuple[tuple[str, str | bytes], ...]:
    if random.random() < 0.9:
        return ()
    odd: Sequence[tuple[str, str | bytes]] = (
        ("authorization", "Bearer x"),
        ("authorization", ""),
        ("traceparent", "00-zz-1-01"),
        ("traceparent", f"00-{random.randbytes(16).hex()}-{random.randbytes(8).hex()}-01"),
        ("tracestate", "a=" + "b" * 2000),
        ("baggage", "a=%ff"),
        ("x-bin", random.randbytes(random.choice((0, 10, 3000)))),
        ("x", "y" * random.choice((0, 1, 3000, 9000, 20_000))),
        ("user-agent", "x"),
    )
    return tuple(random.choice(odd) for _ in range(random.randint(1, 4)))


def _fault_of(status: Status) -> str:
    """The fault of a status of ours; empty: none."""
    info = ErrorInfo()
    if not any(detail.Unpack(info) for detail in status.details) or info.domain != ERROR_DOMAIN:
        return f"has a status without our details: {status!s:.300}"
    if _KNOWN.get(info.reason) != status.code or info.reason in _NEVER:
        return f"has an unwanted status: {status!s:.600}"
    if _INSIDE.search(status.message):
        return f"shows the inside of the server: {status!s:.600}"
    return ""


def _statuses_in(message: Message) -> Iterator[Status]:
    """The statuses of an answer with several results; that of a success is empty."""
    if isinstance(message, Status):
        if message.code:
            yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else (value,):
                yield from _statuses_in(inner)
