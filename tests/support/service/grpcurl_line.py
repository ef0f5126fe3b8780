"""Command lines of grpcurl, run by grpcurl itself or by a small interpreter on plain grpcio and reflection.

The interpreter knows `-plaintext`, `-d`, `-max-time`, and the verbs `list` and `describe`. It has no part of
our client and no generated code: it knows a server by its reflection alone.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

from tests.support.places import REPOSITORY

RUN_TIMEOUT_S = 60


class Output(NamedTuple):
    """The result of a command line."""

    documents: list[dict[str, Any]]
    """The responses, as JSON."""
    text: str
    """All other output."""


def grpcurl_binary() -> str | None:
    """The real one, from PATH or from `.cache/bin`, as `GOBIN=$PWD/.cache/bin go install` leaves it."""
    built = REPOSITORY / ".cache" / "bin" / "grpcurl"
    return shutil.which("grpcurl") or (str(built) if built.is_file() else None)


def run_grpcurl(binary: str, line: str) -> Output:
    """Run the command line with the real grpcurl."""
    arguments = [binary, *_words(line)[1:]]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    assert (done.returncode == 0) == (not done.stderr), (done.returncode, done.stderr)
    if done.stdout.startswith("{"):
        return Output(list(_documents(done.stdout)), done.stderr)
    return Output([], done.stdout + done.stderr)


def interpret(line: str) -> Output:
    """Run the command line on grpcio."""
    name, *arguments = _words(line)
    assert name == "grpcurl"
    options: dict[str, str] = {}
    while arguments and arguments[0].startswith("-"):
        option = arguments.pop(0)
        options[option] = "" if option == "-plaintext" else arguments.pop(0)
    assert options.keys() <= {"-plaintext", "-d", "-max-time"}, f"the interpreter does not know {options}"
    assert "-plaintext" in options
    address, *rest = arguments
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = descriptor_pool.DescriptorPool(database)
        if rest == ["list"]:
            return Output([], "".join(f"{service}\n" for service in sorted(database.get_services())))
        if rest[0] == "describe":
            found = pool.FindMessageTypeByName(rest[1])
            return Output([], f"{found.full_name} is a message:\n")
        [path] = rest
        service, _, method = path.partition("/")
        described = pool.FindServiceByName(service).methods_by_name[method]
        timeout_s = float(options["-max-time"]) if "-max-time" in options else RUN_TIMEOUT_S
        return _call(channel, pool, described, options.get("-d", "{}"), timeout_s)


def _call(
    channel: grpc.Channel,
    pool: descriptor_pool.DescriptorPool,
    method: MethodDescriptor,
    data: str,
    timeout_s: float,
) -> Output:
    request = json_format.Parse(data, message_factory.GetMessageClass(method.input_type)())
    answer = message_factory.GetMessageClass(method.output_type)
    assert not method.client_streaming
    make: Any = channel.unary_stream if method.server_streaming else channel.unary_unary
    path = f"/{method.containing_service.full_name}/{method.name}"
    call: Callable[..., Any] = make(
        path, request_serializer=_serialized, response_deserializer=answer.FromString
    )
    documents: list[dict[str, Any]] = []
    try:
        answered = call(request, timeout=timeout_s)
        responses = answered if method.server_streaming else [answered]
        # Those before an error count.
        documents.extend(_as_json(response, pool) for response in responses)
    except grpc.RpcError as error:
        return Output(documents, _error_text(cast(Any, error), pool))
    return Output(documents, "")


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


def _as_json(message: Message, pool: descriptor_pool.DescriptorPool) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=pool)


def _error_text(error: Any, pool: descriptor_pool.DescriptorPool) -> str:
    """The error as grpcurl prints it."""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "ERROR:\n  Code: DeadlineExceeded\n  Message: context deadline exceeded\n"
    code = error.code().name.title().replace("_", "")
    lines = ["ERROR:", f"  Code: {code}", f"  Message: {error.details()}"]
    status = cast(Status | None, rpc_status.from_call(error))  # pyright: ignore[reportUnknownMemberType]  # without types
    if status is not None and status.details:
        lines.append("  Details:")
        for number, detail in enumerate(status.details, 1):
            document = json_format.MessageToDict(detail, descriptor_pool=pool)
            first, *others = json.dumps(document, indent=2, sort_keys=True).splitlines()
            lines += [f"  {number})\t{first}", *(f"    \t{other}" for other in others)]
    return "\n".join(lines) + "\n"


def _words(line: str) -> list[str]:
    return shlex.split(line.replace("\\\n", " "))


def _documents(text: str) -> Iterator[dict[str, Any]]:
    """The JSON documents that follow each other."""
    decoder, position = json.JSONDecoder(), 0
    while position < len(text):
        document, position = decoder.raw_decode(text, position)
        yield document
        while position < len(text) and text[position].isspace():
            position += 1


def documents_of(text: str) -> list[dict[str, Any]]:
    """The JSON documents in a text that has nothing else."""
    return list(_documents(text.strip()))
