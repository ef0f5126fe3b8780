"""The gate under changes of the access file: who waits or ends meanwhile is not forgotten, nor are others."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from stratalog.base.errors import AuthorizationFailedError
from stratalog.base.randomness import SystemIdGenerator
from stratalog.server.access import access_policy
from stratalog.server.access.access_control import AccessControl
from stratalog.server.access.quotas import MAX_WAITING_COUNT, Quotas, Use
from stratalog.server.access.tokens import TokenDigest, digest_of, new_token
from stratalog.server.append.append_decoding import Decoded
from stratalog.server.call_counts import (
    CallCounts,
    CallerCounts,
    CallKind,
    CommitCalls,
    OpenCall,
    set_call,
)
from stratalog.server.rpc.access.access_gate import AccessGate
from stratalog.server.rpc.awaited_requests import AwaitedRequests
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.method_handlers import only_call
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.v1 import log_pb2

SERVICE = "stratalog.v1.LogService"
PATIENCE_S = 30.0
FETCH = log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic="t")])
APPEND = log_pb2.AppendRequest(topic="t")
WAIT_S = 0.3
Handler = Callable[[Any, Any], Awaitable[Any]]


class Context:
    """The context of a call with a token. `code` has the status with which it was ended."""

    def __init__(self, token: str) -> None:
        self._token = token
        self.code: grpc.StatusCode | None = None
        self.requests: asyncio.Queue[object] = asyncio.Queue()
        self._ended = asyncio.Event()

    async def read(self) -> object:
        """The next request. Raises AbortError once the call has ended, as gRPC does."""
        coming = asyncio.ensure_future(self.requests.get())
        ending = asyncio.ensure_future(self._ended.wait())
        await asyncio.wait({coming, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if self.code is not None:
            coming.cancel()
            raise grpc.aio.AbortError
        return await coming

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self._token}"),)

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1000"

    async def abort(self, code: grpc.StatusCode, *_details: object) -> None:
        self.code = code
        self._ended.set()
        raise grpc.aio.AbortError


class Bench:
    """A gate, and principals who may do all with the topic `t`."""

    def __init__(self, folder: Path, *names: str, quota: str = "") -> None:
        self._path = folder / "access.toml"
        self._quota = quota
        self.tokens = {name: new_token(SystemIdGenerator()) for name in (*names, "last")}
        self.write(*self.tokens)
        clock = ManualClock()
        self.quotas = Quotas(clock)
        self.control = AccessControl(str(self._path))
        statuses = ErrorStatuses(clock, SequentialIds())
        self.commits = CommitCalls(CallCounts(CallKind.COMMIT, 1_000), CallerCounts(1_000))
        self.counts = CallCounts(CallKind.APPEND, 1_000)
        kinds = (self.counts, self.commits.counts)
        requests = AwaitedRequests(clock, statuses)
        self.gate = AccessGate(self.control, self.quotas, statuses, kinds, requests, has_certificates=False)

    def write(self, *names: str, topic: str = "t") -> None:
        """`{}` in the topic is the name of the principal."""
        lines: list[str] = []
        for name in names:
            digest = digest_of(self.tokens[name])
            assert digest is not None
            lines += [f'[principals.{name}]\ntokens = ["{digest.entry}"]', self._quota]
            lines.append(f'allow = [{{ topics = ["{topic.format(name)}"], operations = ["all"] }}]')
        new = self._path.with_suffix(".new")
        new.write_text("\n".join(lines))
        os.replace(new, self._path)

    def take(self) -> None:
        """Take over the file as it is now."""
        assert self.control.file.look()
        self.gate.recheck()

    def guarded(self, method: str, shape: str, handler: Handler) -> Handler:
        """The handler behind the gate. It takes the requests of a stream, or the single one, if that has
        come."""
        make: Any = getattr(grpc, f"{shape}_rpc_method_handler")
        behind = only_call(self.gate.guarding(SERVICE, {method: make(handler)})[method])

        async def counted(request: Any, context: Any) -> Any:
            call = OpenCall(self.counts, context.peer(), self.commits)
            set_call(call)
            if request is not None:
                context.requests.put_nowait(request)
            try:
                return await behind(request, context)
            finally:
                call.end()

        return counted

    def spend(self, name: str, count: int) -> None:
        principal = next(one for one in self.control.policy.principals if one.name == name)
        self.quotas.charge(principal, Use(requests=count))


async def end_of(call: Awaitable[Any], context: Context) -> grpc.StatusCode | None:
    """The status with which the gate ends the call; None if it lets it through."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            await call
        except grpc.aio.AbortError:
            return context.code
    return None


class Service(grpc.GenericRpcHandler):
    """A service with a handler that does nothing."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        make: Any = grpc.unary_unary_rpc_method_handler
        return make(None)


class Details(grpc.HandlerCallDetails):
    """The begin of a call."""

    def __init__(self, context: Context) -> None:
        self.method = f"/{SERVICE}/Append"
        self.invocation_metadata = cast(Any, context.invocation_metadata())


async def test_a_token_is_hashed_once_for_each_content_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, "ours", "other")
    hashed: list[str] = []

    def counting(token: str) -> TokenDigest | None:
        hashed.append(token)
        return digest_of(token)

    monkeypatch.setattr(access_policy, "digest_of", counting)

    async def handler(_request: object, _context: object) -> None:
        pass

    call = bench.guarded("Append", "unary_unary", handler)
    service = bench.gate.known_callers(Service())

    async def ends(name: str) -> set[grpc.StatusCode | None]:
        found: set[grpc.StatusCode | None] = set()
        for _ in range(3):
            context = Context(bench.tokens[name])
            service.service(Details(context))
            found.add(await end_of(call(APPEND, context), context))
        return found

    assert await ends("ours") == await ends("other") == {None}
    assert hashed == [bench.tokens["ours"], bench.tokens["other"]]
    bench.write("ours", "last")
    # Before the gate hears of it.
    assert bench.control.file.look()
    assert await ends("ours") == {None}
    assert await ends("other") == {grpc.StatusCode.UNAUTHENTICATED}
    assert hashed.count(bench.tokens["ours"]) == 2


async def test_a_stream_that_takes_long_to_end_keeps_no_other_from_its_check(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "slow", "other")
    done = asyncio.Event()

    async def handler(_request: object, context: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            if context.invocation_metadata() == contexts["slow"].invocation_metadata():
                await done.wait()

    stream = bench.guarded("FetchStream", "unary_stream", handler)
    contexts = {name: Context(bench.tokens[name]) for name in ("slow", "other")}
    calls = {name: asyncio.create_task(end_of(stream(FETCH, one), one)) for name, one in contexts.items()}
    await asyncio.sleep(0)
    bench.write("other", "last")
    bench.take()
    # The cancellation reaches the slow one, which is not yet at its end.
    await asyncio.sleep(0.01)
    bench.write("last")
    bench.take()
    assert await calls["other"] is grpc.StatusCode.UNAUTHENTICATED
    done.set()
    assert await calls["slow"] is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("method", "shape", "request_message"),
    [("Append", "unary_unary", APPEND), ("FetchStream", "unary_stream", FETCH)],
)
async def test_a_token_that_goes_while_the_call_waits_for_its_quota_is_refused(
    tmp_path: Path, method: str, shape: str, request_message: object
) -> None:
    bench = Bench(tmp_path, "ours", quota="quota = { requests_per_s = 10 }")
    begun: list[object] = []

    async def handler(request: object, _context: object) -> None:
        begun.append(request)

    call = bench.guarded(method, shape, handler)
    context = Context(bench.tokens["ours"])
    bench.spend("ours", int(10 * WAIT_S))
    waiting = asyncio.create_task(end_of(call(request_message, context), context))
    await asyncio.sleep(0.01)
    bench.write("last")
    bench.take()
    assert await waiting is grpc.StatusCode.UNAUTHENTICATED
    assert begun == []


async def test_a_permission_that_goes_while_a_message_waits_ends_the_stream(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "ours", quota="quota = { requests_per_s = 10 }")
    stored: list[object] = []

    async def handler(requests: AsyncIterator[object], _context: object) -> None:
        while (request := await anext(requests, None)) is not None:
            stored.append(request)

    async def requests() -> AsyncIterator[object]:
        for number in range(2):
            if number == 1:
                bench.spend("ours", int(10 * WAIT_S))
                # The message waits by then.
                asyncio.get_running_loop().call_later(0.01, withdraw)
            yield Decoded(log_pb2.AppendStreamRequest(topic="t"), None, b"", 10)

    def withdraw() -> None:
        # Writing to another topic is permitted, so the stream as such goes on.
        bench.write("ours", "last", topic="u")
        bench.take()

    call = bench.guarded("AppendStream", "stream_stream", handler)
    context = Context(bench.tokens["ours"])
    with pytest.raises(AuthorizationFailedError):
        await end_of(call(requests(), context), context)
    assert len(stored) == 1


@pytest.mark.parametrize(
    ("method", "shape", "request_message"),
    [("Append", "unary_unary", APPEND), ("FetchStream", "unary_stream", FETCH)],
)
async def test_a_permission_that_one_principal_has_passed_lets_no_other_in(
    tmp_path: Path, method: str, shape: str, request_message: object
) -> None:
    bench = Bench(tmp_path, "t", "u")
    bench.write("t", "u", topic="{}")
    bench.take()

    async def handler(_request: object, _context: object) -> None:
        pass

    call = bench.guarded(method, shape, handler)
    ends: list[grpc.StatusCode | None] = []
    for name in ("t", "u", "t"):
        context = Context(bench.tokens[name])
        ends.append(await end_of(call(request_message, context), context))
    assert ends == [None, grpc.StatusCode.PERMISSION_DENIED, None]


async def test_a_stream_keeps_no_name_that_no_topic_has(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "ours")
    bench.write("ours", "last", topic="ours.*")
    bench.take()

    async def handler(requests: AsyncIterator[object], _context: object) -> int:
        while await anext(requests, None) is not None:
            pass
        [stream] = bench.gate._streams  # pyright: ignore[reportPrivateUsage]  # nothing else shows it
        passed = stream._checks._passed  # pyright: ignore[reportPrivateUsage]  # as above
        return sum(len(topic) for _, topic in passed)

    async def requests() -> AsyncIterator[object]:
        for number in range(5):
            topic = f"ours.{number}" + "x" * 100_000
            yield Decoded(log_pb2.AppendStreamRequest(topic=topic), None, b"", len(topic))
        yield Decoded(log_pb2.AppendStreamRequest(topic="ours.t"), None, b"", 10)

    call = bench.guarded("AppendStream", "stream_stream", handler)
    assert await call(requests(), Context(bench.tokens["ours"])) == len("ours.t")


async def test_calls_without_permission_are_charged_to_the_quota(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "ours", quota="quota = { requests_per_s = 1 }")

    async def handler(_request: object, _context: object) -> None:
        raise AssertionError

    call = bench.guarded("Append", "unary_unary", handler)
    codes: list[object] = []
    for spent in (0, 100):
        bench.spend("ours", spent)
        context = Context(bench.tokens["ours"])
        codes.append(await end_of(call(log_pb2.AppendRequest(topic="theirs"), context), context))
    assert codes == [grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED]


async def test_a_principal_at_its_quota_has_few_calls_that_wait(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "ours", quota="quota = { requests_per_s = 1_000 }")

    async def handler(_request: object, _context: object) -> None:
        pass

    call = bench.guarded("Append", "unary_unary", handler)
    contexts = [Context(bench.tokens["ours"]) for _ in range(2 * MAX_WAITING_COUNT)]
    ends = await asyncio.gather(*(end_of(call(APPEND, one), one) for one in contexts))
    # The first one passes, and as many as may wait.
    assert ends.count(None) == 1 + MAX_WAITING_COUNT
    assert set(ends) == {None, grpc.StatusCode.RESOURCE_EXHAUSTED}
    bench.spend("ours", 1)
    context = Context(bench.tokens["ours"])
    assert await end_of(call(APPEND, context), context) is None


async def test_strangers_leave_nothing_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(tmp_path)
    service = bench.gate.known_callers(Service())
    contexts = [Context(new_token(SystemIdGenerator())) for _ in range(20)]
    handlers = [service.service(Details(one)) for one in contexts]
    # Callers keep handlers: one that were made for each call would grow them.
    assert len({id(one) for one in handlers}) == 1
    handler: Any = handlers[0]
    for context in contexts:
        assert await end_of(handler.stream_stream(None, context), context) is grpc.StatusCode.UNAUTHENTICATED
    # The id of a token is the caller's choice, and fills no log.
    assert len(caplog.records) == 1
    assert bench.control.refusals == {"AUTHENTICATION_FAILED": 20}
