"""The gate: authenticates each call, asks for its permission, and charges the quota of its principal.

It stands before all other gates, so that what they look up is no answer to a stranger. A stranger's call is
refused before its message is read, and one with a wrong token before it counts as open. A call that
`CALL_PERMISSIONS` does not have is refused: a new one has to say what it needs.

A call counts as one of its principal's from here to its end, also while its message comes and while it waits
for the quota, and is refused where that has too many open. One whose principal goes meanwhile ends.

A call is checked when it begins, after its wait for the quota. Streams are checked again after each change of
the access file, and end if they would not begin now: one with a revoked token within a second or two. The
requests of a stream of appends name their topics one by one, and each topic is checked when it comes first,
and again after a change. A request for a topic that the principal may not write to ends the stream, after the
answers to those before it.
A long poll that began before a change is checked once more before its answer goes out.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import grpc
from google.protobuf.message import Message

from stratalog.base.errors import (
    AuthenticationFailedError,
    AuthorizationFailedError,
    LogStoreError,
    OverloadedError,
    UnsupportedOperationError,
)
from stratalog.remote.metadata.catalog.topic_entry import MAX_NAME_LENGTH
from stratalog.server.access.access_control import AccessControl, require_topic
from stratalog.server.access.access_policy import AccessPolicy, Caller, Credentials, Principal, SeenTokens
from stratalog.server.access.permissions import Operation
from stratalog.server.access.quotas import MAX_WAITING_COUNT, Quotas, Use
from stratalog.server.append.append_decoding import Decoded
from stratalog.server.call_counts import CallCounts, current_call
from stratalog.server.operations.operation_registry import OperationRegistry, unknown_operation
from stratalog.server.rpc.access.call_permissions import (
    CALL_PERMISSIONS,
    CallPermission,
    Scope,
    named_topics,
)
from stratalog.server.rpc.access.shown_topics import set_caller, shows_work
from stratalog.server.rpc.access.unpacked_charge import set_charge
from stratalog.server.rpc.awaited_requests import AwaitedRequests
from stratalog.server.rpc.call_guard import Context, guarded, require_decoded
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.method_handlers import (
    Handlers,
    begun_at_once,
    is_stream_of_requests,
    only_call,
)

_Handler = Callable[[Any, Context], Awaitable[Any]]
_HEADER = "authorization"
_NEWS = "the server's access file has changed while the call came; send it again"
_MAX_KNOWN_TOPIC_COUNT = 10_000


class _Admission(NamedTuple):
    """A call that may go on."""

    policy: AccessPolicy
    credentials: Credentials
    principal: Principal
    topics: tuple[str, ...]


class _Checks:
    """The checks of a call: its permission, and what has passed under one policy, so that it is asked once.
    Belongs to the event loop."""

    def __init__(self, permission: CallPermission) -> None:
        self.permission = permission
        self._policy: AccessPolicy | None = None
        self._passed: set[tuple[str, str]] = set()
        """Names of principals and topics."""

    def require(self, policy: AccessPolicy, principal: Principal, topics: Sequence[str]) -> None:
        """Raise AuthorizationFailedError unless the principal may make the call with these topics."""
        if policy is not self._policy or len(self._passed) >= _MAX_KNOWN_TOPIC_COUNT:
            self._policy = policy
            self._passed.clear()
        if not topics:
            self.permission.require(principal, ())
        for topic in topics:
            if (principal.name, topic) not in self._passed:
                self.permission.require(principal, (topic,))
                # No topic has a longer name, and it may be as long as a request.
                if len(topic) <= MAX_NAME_LENGTH:
                    self._passed.add((principal.name, topic))


class _OpenStream:
    """A stream that is open. Belongs to the event loop."""

    def __init__(self, admission: _Admission, checks: _Checks, *, names_topics_later: bool) -> None:
        self.principal = admission.principal
        self.operation = checks.permission.operation
        self._policy = admission.policy
        self._credentials = admission.credentials
        self._topics = admission.topics
        self._checks = checks
        self._names_topics_later = names_topics_later
        self.failure: LogStoreError | None = None
        """The reason why it ends early."""
        self.scope = asyncio.timeout(None)

    def require(self, topic: str) -> None:
        """Raise AuthorizationFailedError unless the stream may go on to this topic."""
        self._checks.require(self._policy, self.principal, (topic,))

    def recheck(self, policy: AccessPolicy) -> None:
        """End the stream if it would not begin under this policy."""
        if self.failure is not None:
            return
        try:
            self._policy, self.principal = policy, policy.principal(self._credentials)
            if self._names_topics_later:
                _require_begin(self._checks.permission, self.principal)
            else:
                self._checks.require(policy, self.principal, self._topics)
        except LogStoreError as error:
            self.end(error)

    def end(self, error: LogStoreError) -> None:
        """End the stream with the error, wherever it waits. Once it ends it has its reason."""
        if self.failure is not None:
            return
        self.failure = error
        self.scope.reschedule(asyncio.get_running_loop().time())


class AccessGate:
    """Lets the calls of known principals through, as far as they may go. Belongs to the event loop."""

    def __init__(
        self,
        control: AccessControl,
        quotas: Quotas,
        statuses: ErrorStatuses,
        calls: Collection[CallCounts],
        requests: AwaitedRequests,
        *,
        has_certificates: bool,
    ) -> None:
        """`calls` are the open ones of each kind, and `requests` reads their requests. `has_certificates`:
        clients may show certificates in place of tokens."""
        self._control = control
        self._seen = SeenTokens(control.policy)
        self._quotas = quotas
        self._calls = calls
        self._requests = requests
        self._waiting: dict[Context, Credentials] = {}
        """The callers of calls whose request has not come."""
        self.operations: OperationRegistry | None = None
        """Long work, once the engine is open; no call gets that far before."""
        self._has_certificates = has_certificates
        self._streams: set[_OpenStream] = set()
        self._waiting_counts: Counter[str] = Counter()
        """Calls that wait for their quota before they begin, by principal."""
        self._stream_counts: Counter[str] = Counter()
        """Open streams, by the principal that began them."""
        self.statuses = statuses
        # One for all such calls, because callers keep handlers. A handler of streams begins before the first
        # message is read, whichever form the client's call has.
        self._refusal: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
            cast(Any, self._refuse_stranger)
        )

    def guarding(self, service: str, handlers: Handlers) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handlers of a service behind this gate, in the form in which gRPC calls them before a message
        has come."""
        return {
            name: self._guarding(CALL_PERMISSIONS.get(f"/{service}/{name}"), handler)
            for name, handler in handlers.items()
        }

    def known_callers(self, handler: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        """A service that refuses calls without known credentials before their messages are read."""
        return _KnownCallers(self, handler)

    def refusal_of_strangers(
        self, metadata: Iterable[tuple[str, Any]] | None
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a call whose headers alone show that it will be refused; None for others."""
        return None if self._first_refusal(metadata) is None else self._refusal

    def recheck(self) -> None:
        """Look again at all open streams, and at calls whose request has not come: the policy has changed."""
        policy = self._control.policy
        self._quotas.keep({one.name: one for one in policy.principals})
        for stream in tuple(self._streams):
            stream.recheck(policy)
        for context, credentials in tuple(self._waiting.items()):
            try:
                policy.principal(credentials)
            except AuthenticationFailedError as error:
                self._requests.end(context, partial(self.refuse, None, error, context))

    def _first_refusal(self, metadata: Iterable[tuple[str, Any]] | None) -> AuthenticationFailedError | None:
        """The error for a call whose headers alone show that it will be refused."""
        authorization = _authorization(metadata)
        if authorization is None and self._has_certificates:
            return None
        try:
            self._tokens().caller(authorization)
        except AuthenticationFailedError as error:
            return error
        return None

    async def _refuse_stranger(self, request: object, context: Context) -> None:
        error = self._first_refusal(context.invocation_metadata())
        # The access file may have changed since.
        await self.refuse(request, error or AuthenticationFailedError(_NEWS), context)

    @guarded
    async def refuse(self, _request: object, error: Exception, context: Context) -> None:
        """End a call with the error."""
        if isinstance(error, AuthenticationFailedError | AuthorizationFailedError):
            self._control.count_refusal(error.code)
            # Without the port, which is another one for each connection.
            caller = error.fields.get("principal") or context.peer().rpartition(":")[0]
            self.statuses.note(f"a call of {caller} was refused", error)
        raise error

    async def _admit(
        self, requests: object, checks: _Checks, context: Context, *, has_many_requests: bool
    ) -> tuple[Any, _Admission]:
        """Authenticate a call, read its single request, wait for its quota, and ask for its permission. Ends
        it where one fails. The requests are the first one of the pair if there are many."""
        request = requests
        # Not `guarded`: that would cost each call another coroutine, and only refusals need it.
        try:
            policy, caller = self._caller(context)
            self._quotas.admit(caller.principal, current_call(), self._calls)
            if not has_many_requests:
                self._waiting[context] = caller.credentials
                try:
                    request = await self._requests.read(context)
                finally:
                    del self._waiting[context]
                if self._control.policy is not policy:
                    policy, caller = self._again(caller.credentials)
            quota = caller.principal.quota
            if quota.is_set:
                # Before the permission: calls that are refused use the server, too, and who may come in may
                # change while the call waits.
                await self._wait_to_begin(
                    caller.principal,
                    Use(
                        bytes_in=_size(request) if quota.bytes_in_per_s is not None else None,
                        bytes_out=0 if checks.permission.operation is Operation.READ else None,
                        requests=1,
                    ),
                )
                policy, caller = self._again(caller.credentials)
            require_decoded(request)
            return request, self._checked(request, checks, policy, caller)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await self.refuse(request, error, context)
            raise AssertionError("a refusal ends the call") from error

    async def _check_again(
        self, request: object, checks: _Checks, admission: _Admission, context: Context
    ) -> None:
        """End a call that may not have its answer any more."""
        try:
            self._checked(request, checks, *self._again(admission.credentials))
        except LogStoreError as error:
            await self.refuse(request, error, context)

    def _caller(self, context: Context) -> tuple[AccessPolicy, Caller]:
        """The policy in force, and the caller of a call. Raises AuthenticationFailedError."""
        authorization = _authorization(context.invocation_metadata())
        seen = self._tokens()
        caller = seen.find(authorization)
        if caller is None:
            names = _certificate_names(context) if self._has_certificates else ()
            caller = seen.caller(authorization, names)
        return seen.policy, caller

    def _again(self, credentials: Credentials) -> tuple[AccessPolicy, Caller]:
        """The policy in force by now, and the caller. Raises AuthenticationFailedError."""
        policy = self._control.policy
        return policy, Caller(credentials, policy.principal(credentials))

    def _tokens(self) -> SeenTokens:
        """The tokens that were seen under the policy in force."""
        policy = self._control.policy
        if self._seen.policy is not policy:
            self._seen = SeenTokens(policy)
        return self._seen

    def _checked(self, request: object, checks: _Checks, policy: AccessPolicy, caller: Caller) -> _Admission:
        """The admission of a caller under this policy. Raises LogStoreError."""
        credentials, principal = caller
        set_caller(principal)
        has_quota = principal.quota.bytes_in_per_s is not None
        set_charge(partial(self._charge_request, principal) if has_quota else None)
        if isinstance(request, AsyncIterator):
            _require_begin(checks.permission, principal)
            return _Admission(policy, credentials, principal, ())
        topics = self._topics(checks.permission, request)
        checks.require(policy, principal, topics)
        return _Admission(policy, credentials, principal, topics)

    def _topics(self, permission: CallPermission, request: object) -> tuple[str, ...]:
        """The topics that a request is about. Raises UnknownOperationError for long work that the caller may
        not see."""
        if permission.scope is Scope.OPERATION:
            operation_id: str = cast(Any, request).operation_id
            assert self.operations is not None, "calls are refused until the engine is open"
            topics = self.operations.find(operation_id).view.topics
            if not shows_work()(topics):
                raise unknown_operation(operation_id)
            return topics
        return named_topics(request)

    def _guarding(
        self, permission: CallPermission | None, handler: grpc.RpcMethodHandler[Any, Any]
    ) -> grpc.RpcMethodHandler[Any, Any]:
        call = only_call(handler)
        if permission is None:
            behind = self._undeclared(call)
        elif cast(Any, handler).response_streaming:
            behind = self._stream(call, _Checks(permission), has_many_requests=is_stream_of_requests(handler))
        else:
            assert not is_stream_of_requests(handler), "no method has many requests and one response"
            behind = self._single(call, _Checks(permission))
        return begun_at_once(handler, behind)

    def _single(self, handler: _Handler, checks: _Checks) -> _Handler:
        is_read = checks.permission.operation is Operation.READ

        @functools.wraps(handler)
        async def handling(requests: Any, context: Context) -> Any:
            request, admission = await self._admit(requests, checks, context, has_many_requests=False)
            response = await handler(request, context)
            if is_read and self._control.policy is not admission.policy:
                await self._check_again(request, checks, admission, context)
            if admission.principal.quota.bytes_out_per_s is not None:
                self._quotas.settle(admission.principal, bytes_out=_size(response))
            return response

        return handling

    def _stream(self, handler: _Handler, checks: _Checks, *, has_many_requests: bool) -> _Handler:
        @functools.wraps(handler)
        async def handling(requests: Any, context: Context) -> Any:
            request, admission = await self._admit(
                requests, checks, context, has_many_requests=has_many_requests
            )
            name = admission.principal.name
            try:
                self._quotas.require_stream(admission.principal, self._stream_counts[name])
            except OverloadedError as error:
                return await self.refuse(request, error, context)
            stream = _OpenStream(admission, checks, names_topics_later=has_many_requests)
            if has_many_requests:
                request = self._each(request, stream)
            metered = cast(Context, _MeteredContext(context, self._charge_answer, stream))
            self._streams.add(stream)
            self._stream_counts[name] += 1
            try:
                async with stream.scope:
                    return await handler(request, metered)
            except TimeoutError:
                if stream.failure is None:
                    raise
            finally:
                self._streams.discard(stream)
                self._stream_counts[name] -= 1
                if not self._stream_counts[name]:
                    del self._stream_counts[name]
            return await self.refuse(request, stream.failure, context)

        return handling

    async def _each(self, requests: AsyncIterator[Any], stream: _OpenStream) -> AsyncIterator[Any]:
        """The requests of a stream, each after its check and its wait. Raises what ends the stream."""
        async for request in requests:
            if isinstance(request, Decoded):
                if stream.principal.quota.is_set:
                    # Before the check, because a permission may go while the request waits.
                    await self._wait(stream.principal, bytes_in=request.size_bytes, requests=1)
                topic: str = cast(Any, request).request.topic
                try:
                    stream.require(topic)
                except AuthorizationFailedError as error:
                    self._control.count_refusal(error.code)
                    raise
            elif stream.principal.quota.is_set:
                await self._wait(stream.principal, requests=1)
            yield request

    async def _charge_answer(self, stream: _OpenStream, response: object) -> None:
        if stream.principal.quota.bytes_out_per_s is None:
            return
        if stream.operation is not Operation.READ:
            # It says what has had its effect: refused for now, the request would come twice.
            self._quotas.settle(stream.principal, bytes_out=_size(response))
            return
        try:
            await self._wait(stream.principal, bytes_out=_size(response))
        except OverloadedError as error:
            # A write that raises would mean that the client has gone.
            stream.end(error)
            await asyncio.Future()

    def _charge_request(self, principal: Principal, bytes_in: int) -> None:
        """Charge what a request has turned out to have beyond its size."""
        self._quotas.settle(principal, bytes_in=bytes_in)

    async def _wait_to_begin(self, principal: Principal, use: Use) -> None:
        """Charge a call, and wait for its quota. Raises OverloadedError for one too many that would wait."""
        name = principal.name
        may_wait = self._waiting_counts[name] < MAX_WAITING_COUNT
        wait_s = self._quotas.charge(principal, use, may_wait=may_wait)
        if wait_s > 0:
            self._waiting_counts[name] += 1
            try:
                await asyncio.sleep(wait_s)
            finally:
                self._waiting_counts[name] -= 1

    async def _wait(self, principal: Principal, **use: int | None) -> None:
        """Charge a part of a stream, and wait for its quota. Raises OverloadedError."""
        wait_s = self._quotas.charge(principal, Use(**use))
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    def _undeclared(self, handler: _Handler) -> _Handler:
        @functools.wraps(handler)
        async def handling(request: Any, context: Context) -> None:
            error = UnsupportedOperationError(
                "the call has no permission in this version, so no principal may make it; use another call"
            )
            await self.refuse(request, error, context)

        return handling


class _KnownCallers(grpc.GenericRpcHandler):
    """A service behind a first look at the headers."""

    def __init__(self, gate: AccessGate, handler: grpc.GenericRpcHandler) -> None:
        self._gate = gate
        self._handler = handler

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = self._handler.service(handler_call_details)
        # Another service may have the method.
        if handler is None:
            return None
        metadata = cast(Any, handler_call_details).invocation_metadata
        return self._gate.refusal_of_strangers(metadata) or handler


class _MeteredContext:
    """The context of a call whose answers are charged before they are sent. Belongs to the event loop."""

    def __init__(
        self,
        context: Context,
        charge: Callable[[_OpenStream, object], Awaitable[None]],
        stream: _OpenStream,
    ) -> None:
        self._context = context
        self._charge = charge
        self._stream = stream

    async def write(self, message: object) -> None:
        await self._charge(self._stream, message)
        await self._context.write(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _require_begin(permission: CallPermission, principal: Principal) -> None:
    """Raise AuthorizationFailedError if no request of a stream could pass."""
    if permission.scope is not Scope.SHOWN and not principal.permissions.allow_somewhere(
        permission.operation
    ):
        require_topic(principal, permission.operation, "")


def _authorization(metadata: Iterable[tuple[str, Any]] | None) -> str | None:
    for key, value in metadata or ():
        if key == _HEADER:
            return cast(str, value)
    return None


def _certificate_names(context: Context) -> tuple[str, ...]:
    """The alternative names of the client's certificate, and its common name."""
    found = context.auth_context()
    names = (*found.get("x509_subject_alternative_name", ()), *found.get("x509_common_name", ()))
    return tuple(name.decode(errors="replace") for name in names)


def _size(message: object) -> int:
    """The bytes of a request or of an answer."""
    if isinstance(message, Decoded):
        return message.size_bytes
    if isinstance(message, bytes):
        return len(message)
    return message.ByteSize() if isinstance(message, Message) else 0
