"""The server: a gRPC endpoint on top of a storage engine, and the order in which both start and stop.

Start: take the port (so that a mistyped address fails before a claim), answer health checks and metrics and
refuse all other calls as retriable, open the engine, start tasks, serve, report healthy. Stop: report
unhealthy, accept no calls any more, end waiting calls and long work (uploads, compactions), let other calls
finish within the grace, appends with their commits, upload what the store lacks if the settings say so, end
the tasks, wait for the writers, close the engine, which marks the shutdown as clean as its last step. A stop
does not wait for what does nothing for `STOP_PATIENCE_S`: it leaves a log directory whose disk hangs without
its marker, and marks the others.

Threads: the event loop runs handlers and never blocks; `WorkerPools` and `ThreadScheduler` own all others.
The loop of a server's process is uvloop's. gRPC's asyncio makes ten to twenty short passes of the loop for
each call, and asyncio's own loop spends as much of the processor on these as our handlers do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

import grpc
import uvloop
from grpc_reflection.v1alpha import reflection
from prometheus_client import ProcessCollector

from stratalog.base.clock import Clock, SystemClock
from stratalog.base.errors import DataDirectoryError, InvalidConfigError, LogStoreError
from stratalog.base.filesystem import FileSystem
from stratalog.base.posix_filesystem import PosixFileSystem, open_file_limit, raise_open_file_limit
from stratalog.base.process_tuning import (
    exempt_loaded_objects,
    keep_freed_memory,
    share_interpreter_lock,
    share_one_heap,
)
from stratalog.base.randomness import IdGenerator, SystemIdGenerator, seeded_random
from stratalog.manager.log_manager import LogManager
from stratalog.objectstore.counted import CountedObjectStore
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.open_store import open_store
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.store_layout import kind_of_key
from stratalog.server import health_servicer
from stratalog.server.access.access_control import AccessControl
from stratalog.server.access.quotas import Quotas
from stratalog.server.access.reloaded_files import ReloadedFiles
from stratalog.server.access.server_tls import ServerTls, TlsPaths
from stratalog.server.append.long_validation import LongValidations
from stratalog.server.append.partition_writer import WriterShared
from stratalog.server.background.thread_scheduler import ThreadScheduler
from stratalog.server.background_tasks import start_background_tasks
from stratalog.server.call_counts import CallCounts, CallKind
from stratalog.server.configuration.settings import ServerSettings, listen_address
from stratalog.server.engine.component_settings import request_prices
from stratalog.server.engine.engine_builder import StorageEngineBuilder
from stratalog.server.engine.storage_engine import EngineSeams, StorageEngine
from stratalog.server.fetch.closing import Closing
from stratalog.server.freed_memory import FREED_MEMORY_MS, freed_memory
from stratalog.server.health_servicer import HealthServicer
from stratalog.server.job_processes.job_processes import JobProcesses
from stratalog.server.job_processes.messages import Hello
from stratalog.server.loop_mailbox import LoopMailbox
from stratalog.server.meters.append_groups import AppendGroups
from stratalog.server.meters.call_meter import CallMeter
from stratalog.server.meters.error_counts import ErrorCounts
from stratalog.server.metrics.endpoint import MetricsEndpoint
from stratalog.server.metrics.health_probes import NOT_SERVING, HealthProbes
from stratalog.server.metrics.server_metrics import ServerMetrics
from stratalog.server.partitions.opening.partition_opener import DirectoryThreads, PartitionHost
from stratalog.server.partitions.patient_disk_calls import PatientDiskCalls
from stratalog.server.request_memory import AppendMemory, FetchMemory, RequestMemories
from stratalog.server.rpc.access.access_gate import AccessGate
from stratalog.server.rpc.access.reflection_servicer import REFLECTION, ReflectionServicer
from stratalog.server.rpc.access.shown_topics import showing_all
from stratalog.server.rpc.admin.admin_servicer import AdminServicer
from stratalog.server.rpc.admin.operation_servicer import OperationServicer
from stratalog.server.rpc.admin.server_info import ServerInfo
from stratalog.server.rpc.admin.tier_servicer import TierServicer
from stratalog.server.rpc.append_intake import AppendIntake
from stratalog.server.rpc.awaited_requests import AwaitedRequests
from stratalog.server.rpc.call_limits import CallLimits
from stratalog.server.rpc.copy_servicer import CopyServicer
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.log_servicer import LogServicer
from stratalog.server.rpc.metadata_servicer import MetadataServicer
from stratalog.server.rpc.method_handlers import (
    Handlers,
    LateServices,
    described_handlers,
    refusing_undecodable,
)
from stratalog.server.rpc.producer_servicer import ProducerServicer
from stratalog.server.rpc.read.read_servicer import ReadServicer
from stratalog.server.rpc.read.record_reads import RecordReads
from stratalog.server.rpc.read_only_gate import ReadOnlyGate
from stratalog.server.rpc.status import KNOWN_ERRORS
from stratalog.server.rpc.topic_gate import TopicGate
from stratalog.server.topics.missed_topics import MissedTopics
from stratalog.server.tracing.call_tracing import CallTracing, tracing_of_environment
from stratalog.server.tracing.carrying_threads import carrying
from stratalog.server.transport import Transport, grpc_server, within_open_files
from stratalog.server.worker_pools import WorkerPools, begin_beside, closing_threads
from stratalog.v1 import admin_pb2, log_pb2, operation_pb2, tier_pb2

logger = logging.getLogger(__name__)

MAX_LONG_WORK_COUNT = 4096
"""Limit of operations and cleans of local logs that run at once, far above what is useful."""

COMMIT_SHARE_OF_GRACE = 0.9
"""Appends that wait for their commit, or are being validated, for this part of the grace fail then, so that
they get an answer."""

STOP_PATIENCE_S = 30.0
"""A stop waits so long for threads to end, and for a log directory as long as a log is closed in such a time.
An fsync of a large segment on a slow disk may take seconds."""

ACCESS_MS = 1_000
"""Time between looks at the files of TLS and of access. One without news reads some small files."""

_LOG = log_pb2.DESCRIPTOR.services_by_name["LogService"]
LOG_SERVICE = _LOG.full_name
_ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
_OPERATION = operation_pb2.DESCRIPTOR.services_by_name["OperationService"]
_TIER = tier_pb2.DESCRIPTOR.services_by_name["TierService"]
_SERVICES = (_LOG, _ADMIN, _OPERATION, _TIER)
SERVICES = tuple(one.full_name for one in _SERVICES)


class Server:
    """One server in this process. Belongs to the event loop on which it is started.

    async with Server(settings) as server:
        ... server.port ...
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        filesystem: FileSystem | None = None,
        store: ObjectStore | None = None,
        clock: Clock | None = None,
        ids: IdGenerator | None = None,
        tracing: CallTracing | None = None,
        has_processes: bool = True,
    ) -> None:
        """The defaults are the operating system's, and the store that the settings name. `has_processes`:
        jobs of compaction go to processes beside this one, unless it alone has the filesystem or the store.
        `tracing` makes spans, and is closed with the server. Raises InvalidConfigError.
        """
        if not __debug__:
            raise InvalidConfigError(
                "python -O strips the assertions that protect the data; start without it",
                name="-O",
                value="set",
            )
        self.settings = within_open_files(settings, open_file_limit())
        self._filesystem = filesystem or PosixFileSystem()
        self._clock = clock or SystemClock()
        self._ids = ids or SystemIdGenerator()
        opened = store or open_store(
            settings.effective_store_url, filesystem=self._filesystem, clock=self._clock, ids=self._ids
        )
        self._tracing = tracing
        span_of = None if tracing is None else tracing.span_of
        self._store = CountedObjectStore(opened, kind_of_key, self._clock, span_of)
        is_shared = filesystem is None and store is None and not isinstance(opened, MemoryObjectStore)
        self._has_processes = has_processes and is_shared
        self.processes: JobProcesses | None = None
        """The processes beside this one, once started."""
        self._engine: StorageEngine | None = None
        self.append_memory = AppendMemory(settings.request_memory_share_bytes)
        """Bytes of running appends."""
        self.fetch_memory = FetchMemory(settings.request_memory_share_bytes)
        """Bytes of fetch answers that are not sent yet."""
        self._memories = RequestMemories(appends=self.append_memory, fetches=self.fetch_memory)
        self.calls: Mapping[CallKind, CallCounts] = {}
        """Open calls by kind, once started."""
        self.port = 0
        """The port of gRPC, once started."""
        self.metrics_port = 0
        """The port of the metrics, once started; 0 without metrics."""
        self.has_left_threads = False
        """A stop has left threads that a disk keeps, and files that they use. If the disk does not answer any
        more, only the end of the process ends them."""

    @property
    def engine(self) -> StorageEngine:
        assert self._engine is not None, "the server is started"
        return self._engine

    @property
    def awaited_request_count(self) -> int:
        """Open calls whose message has not come. Any thread may ask."""
        return self._requests.count

    async def start(self) -> None:
        """Start; the server serves once this returns. Raises InvalidConfigError (port in use),
        DataDirectoryError, StoreError, and leaves nothing running then.
        """
        loop = asyncio.get_running_loop()
        self._open_access()
        interceptors = () if self._tracing is None else (self._tracing.interceptor,)
        make = partial(grpc_server, self.settings, interceptors)
        self._transport = Transport(self.settings.listen, self._tls, make)
        self.port = self._transport.port
        self._metrics = ServerMetrics()
        self._metrics.process = ProcessCollector(registry=None)
        self._metrics.is_listening = lambda: not self._transport.fault
        self._closing = Closing(loop)
        errors = self._metrics.errors = ErrorCounts(KNOWN_ERRORS)
        statuses = ErrorStatuses(self._clock, self._ids, errors)
        self._health = HealthServicer(SERVICES, self._closing, statuses)
        try:
            self._metrics_endpoint = self._open_metrics(HealthProbes(loop, self.why_not_ready))
        except InvalidConfigError:
            await self._transport.stop(None)
            raise
        self._open_threads(loop)
        self._all_failed = asyncio.Event()
        limits = CallLimits(self.settings, statuses, self._pools.turns)
        self._requests = AwaitedRequests(self._clock, statuses)
        self._metrics.awaited_request_count = lambda: self.awaited_request_count
        self.calls = self._metrics.calls = limits.counts
        late = LateServices(_SERVICES, statuses)
        handlers = self._early_handlers(limits, late)
        try:
            await self._transport.start(handlers)
            if self.reloaded_files:
                # Metrics are served while the logs are opened, which may take long.
                look = partial(self.look_at_access, loop)
                self._scheduler.every("access", look, ACCESS_MS, delay_ms=ACCESS_MS)
            await self._open(loop, limits, late)
        except BaseException:
            await self._give_up()
            raise

    async def _open(self, loop: asyncio.AbstractEventLoop, limits: CallLimits, late: LateServices) -> None:
        """Open the engine and all that works on it, and serve."""
        engine = await self._open_engine(loop)
        self._watch_engine(engine)
        runtime = engine.topics.runtime
        runtime.add(self._pools)
        self._pools.apply(runtime.current)
        if self._access_gate is not None:
            self._access_gate.operations = engine.operations
        services = self._services(engine, limits, limits.statuses)
        start_background_tasks(self._scheduler, engine, self.settings)
        engine.local.cleaning.workers.start()
        await self._pools.task(engine.local.directories.resume_moves)
        late.open(services)
        # Another server may have taken over meanwhile.
        self._health.report(is_serving=not engine.tier.shards.is_replaced)

    async def _give_up(self) -> None:
        """End what a start that fails has begun. It has accepted no append."""
        self._end_waiting_calls(ends_work=True)
        await self._transport.stop(None)
        engine = self._take_engine()
        if engine is not None:
            await asyncio.to_thread(engine.end_commits)
            await self._end(engine)
            return
        ending = await self._end_threads()
        # The thread of a start that was cancelled went on meanwhile: it failed, or has opened the engine.
        engine = self._take_engine()
        if engine is not None:
            await asyncio.to_thread(self._close_engine, engine, ending)

    def _take_engine(self) -> StorageEngine | None:
        """The engine, which is the caller's to close from now on; None if it is not open."""
        engine, self._engine = self._engine, None
        return engine

    def _open_threads(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the threads, and let the metrics have them."""
        self._mailbox = LoopMailbox(loop)
        self._pools = WorkerPools(self.settings, self._clock, carries_context=self._tracing is not None)
        self._scheduler = ThreadScheduler(self.settings.task_thread_count)
        self._long_scheduler = ThreadScheduler(MAX_LONG_WORK_COUNT, "work")
        self._metrics.schedulers = (self._scheduler, self._long_scheduler)
        self._metrics.pools = self._pools
        self._metrics.memories = self._memories
        self._writers = WriterShared(AppendGroups(), LongValidations(self._clock))
        self._metrics.groups, self._metrics.validations = self._writers
        if self._has_processes:
            self.processes = JobProcesses(
                Hello(self.settings.effective_store_url, logger.getEffectiveLevel()),
                self._filesystem,
                self._clock,
                self._long_scheduler,
                self._store.add_use,
            )

    async def _open_engine(self, loop: asyncio.AbstractEventLoop) -> StorageEngine:
        seams = EngineSeams(
            filesystem=self._filesystem,
            store=self._store,
            clock=self._clock,
            scheduler=self._scheduler,
            long_scheduler=self._long_scheduler,
            ids=self._ids,
            stop=self._closing.stop,
        )
        endpoint = self.settings.endpoint(self.port)
        run_request = self._pools.request_threads.run
        builder = StorageEngineBuilder(
            seams,
            self.settings,
            endpoint,
            self._pools.reading,
            run_request if self._tracing is None else carrying(run_request),
            None if self.processes is None else self.processes.execution,
        )
        pools = self._pools
        hosts = PartitionHost(
            self._clock,
            loop,
            self._mailbox,
            DirectoryThreads(pools.append, pools.flush, pools.validate),
            self._writers,
        )

        def open_engine() -> StorageEngine:
            engine = self._engine = builder.open(
                hosts,
                self._pools.opening,
                lambda: self._hop_to_tell(loop),
                lambda: self._hop_to_end(loop),
                self._watch_logs,
            )
            return engine

        return await self._pools.task(open_engine)

    async def stop(self) -> None:
        """Stop cleanly, in the order of the module's description. Keeps every acknowledged record. May be
        called twice.
        """
        engine = self._take_engine()
        if engine is None:
            return
        self._health.report(is_serving=False)
        grace_s = self.settings.shutdown_grace_s
        ending = asyncio.ensure_future(self._transport.stop(grace_s))
        # First the transport accepts nothing any more, or the calls that end now could come back.
        await asyncio.sleep(0)
        uploads = self.settings.drain_upload_s > 0 and not self.settings.read_only
        self._end_waiting_calls(ends_work=not uploads)
        engine.hurry_commits()
        # The calls of appends at `object` end with the commits that they wait for.
        await asyncio.wait({ending}, timeout=grace_s * COMMIT_SHARE_OF_GRACE)
        self._writers.validations.end()
        await asyncio.to_thread(engine.end_commits)
        await ending
        if uploads:
            await self._drain(engine)
        await self._end(engine)

    def _end_waiting_calls(self, *, ends_work: bool) -> None:
        """End long polls and streams, calls whose message has not come, and also long work if it
        `ends_work`."""
        self._closing.set(ends_work=ends_work)
        self._requests.close()

    async def _end(self, engine: StorageEngine) -> None:
        """End all threads, and close the engine."""
        ending = await self._end_threads(engine.end_long_work)
        await asyncio.to_thread(self._close_engine, engine, ending)

    async def _end_threads(self, end_work: Callable[[], None] = lambda: None) -> Future[None]:
        """End long work, and all threads, and take the last calls that they have left. Some may not end,
        because a disk hangs: these are left."""
        ending = await asyncio.to_thread(self._wait_for_threads, end_work)
        if not self.has_left_threads:
            # A thread that is left may still ring, and no other file may have the number of its pipe then.
            self._mailbox.close()
        return ending

    def _wait_for_threads(self, end_work: Callable[[], None]) -> Future[None]:
        """End long work, and all threads; wait for them as long as a stop does."""

        def end() -> None:
            end_work()
            self._close_threads()

        ending = begin_beside(self._pools.request_threads.run, end)
        wait([ending], STOP_PATIENCE_S)
        self.has_left_threads = not ending.done()
        if ending.done():
            ending.result()
        else:
            logger.warning(
                "some threads have not ended after %d s, because a disk or the store does not answer; the"
                " logs are closed without them",
                STOP_PATIENCE_S,
            )
        return ending

    def _close_engine(self, engine: StorageEngine, ending: Future[None]) -> None:
        """Close the engine; what does not answer is left as it is. `ending`: the end of all threads. Raises
        DataDirectoryError then, and what `LogManager.close` raises."""
        logs, run = engine.local.logs, self._pools.request_threads.run
        disk_calls = PatientDiskCalls(self._clock, run, len(logs.data_dirs), STOP_PATIENCE_S)
        thread_count = engine.topics.runtime.current.recovery_thread_count

        def close() -> None:
            with closing_threads(logs.data_dirs, thread_count) as threads:
                engine.close(threads, disk_calls, are_tasks_left=not ending.done())

        closing, closed_count = begin_beside(run, close), -1
        while not closing.done() and logs.closed_count > closed_count:
            closed_count = logs.closed_count
            # It gives up single directories before.
            wait([closing], 2 * STOP_PATIENCE_S)
        have_ended = ending.done() and closing.done()
        self.has_left_threads = not have_ended or any(map(disk_calls.is_silent, logs.data_dirs))
        if not closing.done():
            raise DataDirectoryError(
                "the log directories could not be closed, because a disk does not answer; the next start"
                " recovers their logs",
                log_dirs=", ".join(logs.data_dirs),
            )
        closing.result()

    async def _drain(self, engine: StorageEngine) -> None:
        """Upload what the store lacks, within the time that the settings give it, and end long work."""
        upload = partial(engine.tier.manager.upload_now, (), delete_local=False)
        uploading = asyncio.ensure_future(self._pools.long_task(upload))
        await asyncio.wait({uploading}, timeout=self.settings.drain_upload_s)
        self._closing.stop.set()
        await asyncio.wait({uploading}, timeout=STOP_PATIENCE_S)
        if not uploading.done():
            uploading.add_done_callback(lambda late: late.cancelled() or late.exception())
            logger.warning(
                "the upload at the stop has not ended after %d s, because a disk or the store does not"
                " answer; the next start uploads the rest",
                STOP_PATIENCE_S,
            )
            return
        try:
            uploaded = uploading.result()
        except LogStoreError as error:
            logger.warning(
                "stopping with records that are not in the store; the next start uploads them: %s", error
            )
        except Exception:
            # The logs must be closed, whatever failed here.
            logger.exception("the upload at the stop failed unexpectedly; the next start uploads")
        else:
            logger.info("stopping with all tiered records in the store: %s", uploaded)

    def why_not_ready(self) -> str:
        """Why a probe of readiness fails; empty: the server serves. Any thread may call it."""
        return self._transport.fault or ("" if self._health.is_serving else NOT_SERVING)

    def run_every(self, name: str, task: Callable[[], None], period_ms: int) -> None:
        """Run a task of the process beside those of the started server, until that stops."""
        self._scheduler.every(name, task, period_ms, delay_ms=period_ms)

    async def until_no_disk_is_left(self) -> None:
        """Wait until the last log directory has failed, after which nothing can be served."""
        await self._all_failed.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def _open_access(self) -> None:
        """Read the files of TLS and of access. Raises InvalidConfigError."""
        settings = self.settings
        paths = TlsPaths(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        self._tls = ServerTls(paths, self._clock) if settings.tls_cert else None
        if self._tls is not None:
            self._tls.complain()
        self._access = AccessControl(settings.access_file) if settings.access_file else None
        tls_files = () if self._tls is None else (self._tls.files,)
        access_files = () if self._access is None else (self._access.file,)
        self.reloaded_files: Sequence[ReloadedFiles] = (*tls_files, *access_files)
        self._access_gate: AccessGate | None = None
        if settings.insecure:
            logger.warning("--insecure: strangers who reach %s may come in", settings.listen)

    def look_at_access(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take over files of TLS and of access that have changed. For one background thread."""
        news = [files for files in self.reloaded_files if files.look()]
        if self._access is not None and self._access.file in news and self._access_gate is not None:
            loop.call_soon_threadsafe(self._access_gate.recheck)

    def _early_handlers(self, limits: CallLimits, late: LateServices) -> Sequence[grpc.GenericRpcHandler]:
        """The services that answer before the engine is open, and those that refuse until then."""
        meter = self._metrics.methods = CallMeter(self._clock)
        gate = self._access_gate = self._open_gate(limits)
        # Without authentication: load balancers and probes have no token, and it says whether the server
        # serves.
        handlers = self._requests.reading(self._health.method_handlers(), health_servicer.PATIENCE_S)
        checks = limits.limiting(health_servicer.SERVICE_NAME, handlers)
        services = meter.metering(late if gate is None else gate.known_callers(late))
        return checks, services, self._reflection(gate, limits)

    def _services(
        self, engine: StorageEngine, limits: CallLimits, statuses: ErrorStatuses
    ) -> list[grpc.GenericRpcHandler]:
        """The services over an open engine, behind their gates and caps."""
        info = ServerInfo(self._clock, engine.tier, self.settings)
        admin_servicer = AdminServicer(engine, self._pools, statuses, info)
        operation_servicer = OperationServicer(
            engine.operations, engine.topics.registry, self._pools, self._closing, statuses
        )
        tier_servicer = TierServicer(self._clock, engine, self._pools, statuses)
        log_handlers = self._log_handlers(engine, statuses)
        gated = self._gates(engine, statuses)
        gate = self._access_gate

        def ready(name: str, handlers: Handlers) -> grpc.GenericRpcHandler:
            checked: Handlers = refusing_undecodable(gated(handlers))
            if gate is not None:
                return limits.limiting(name, gate.guarding(name, checked))
            return limits.limiting(name, self._requests.reading(showing_all(name, checked)))

        return [
            ready(LOG_SERVICE, log_handlers),
            ready(_ADMIN.full_name, described_handlers(admin_servicer, _ADMIN)),
            ready(_OPERATION.full_name, described_handlers(operation_servicer, _OPERATION)),
            ready(_TIER.full_name, described_handlers(tier_servicer, _TIER)),
        ]

    def _log_handlers(self, engine: StorageEngine, statuses: ErrorStatuses) -> Handlers:
        """The calls of the data plane."""
        intake = AppendIntake(
            self._clock,
            seeded_random(self._ids),
            engine.topics.registry,
            engine.topics.producer_ids,
            self._pools,
        )
        log_servicer = LogServicer(
            intake=intake,
            partitions=engine.topics.registry,
            pools=self._pools,
            closing=self._closing,
            memories=self._memories,
            settings=self.settings,
            statuses=statuses,
        )
        producer_servicer = ProducerServicer(engine.topics, self._pools, statuses)
        copy_servicer = CopyServicer(
            intake.require_producer,
            log_servicer.prepare,
            engine.topics.registry,
            self._pools,
            self._memories.fetches,
            statuses,
        )
        metadata_servicer = MetadataServicer(engine, self._pools, self.settings, statuses)
        reads = RecordReads(
            self._clock,
            engine.topics.registry,
            self._pools,
            self._closing,
            self.fetch_memory,
            self.settings,
            statuses,
        )
        return (
            log_servicer.method_handlers()
            | ReadServicer(reads, statuses).method_handlers()
            | metadata_servicer.method_handlers()
            | producer_servicer.method_handlers()
            | copy_servicer.method_handlers()
        )

    def _reflection(self, gate: AccessGate | None, limits: CallLimits) -> grpc.GenericRpcHandler:
        services = (*SERVICES, health_servicer.SERVICE_NAME, reflection.SERVICE_NAME)
        servicer = ReflectionServicer(services, self._closing, limits.statuses)
        handlers = refusing_undecodable(described_handlers(servicer, cast(Any, REFLECTION)))
        if gate is not None:
            handlers = gate.guarding(REFLECTION.full_name, handlers)
        service = limits.limiting(REFLECTION.full_name, handlers)
        return service if gate is None else gate.known_callers(service)

    def _open_gate(self, limits: CallLimits) -> AccessGate | None:
        """The gate before all calls; None without an access file."""
        self._metrics.reloaded_files, self._metrics.tls = self.reloaded_files, self._tls
        if self._access is None:
            return None
        quotas = Quotas(self._clock)
        self._metrics.access, self._metrics.quotas = self._access, quotas
        return AccessGate(
            self._access,
            quotas,
            limits.statuses,
            tuple(limits.counts.values()),
            self._requests,
            has_certificates=bool(self.settings.tls_client_ca),
        )

    def _gates(self, engine: StorageEngine, statuses: ErrorStatuses) -> Callable[[Handlers], Handlers]:
        """Puts handlers behind the gates that this server needs."""
        shards = engine.tier.shards
        read_only_gate = ReadOnlyGate(shards, statuses)
        missed = MissedTopics(engine.topics.manager, self._pools)
        topic_gate = TopicGate(missed, statuses, is_of_only_server=not shards.foreign)

        def gated(handlers: Handlers) -> Handlers:
            handlers = topic_gate.guarding(handlers)
            return read_only_gate.guarding(handlers) if self.settings.read_only else handlers

        return gated

    def _hop_to_tell(self, loop: asyncio.AbstractEventLoop) -> None:
        """Handle the takeover by another server, which a task noticed on its thread."""
        loop.call_soon_threadsafe(self._tell_fenced)

    def _watch_engine(self, engine: StorageEngine) -> None:
        """Let the metrics have the components of the engine."""
        self._metrics.cleaning, self._metrics.local_retention = engine.local.cleaning, engine.local.retention
        self._metrics.registry = engine.topics.registry
        self._metrics.passes, self._metrics.shards = engine.passes, engine.tier.shards
        self._metrics.verifications = engine.tier.upkeep.verifications
        self._metrics.reads = engine.tier.upkeep.reads
        self._metrics.commits = engine.tier.manager.commits
        self._metrics.requests = self._store
        self._metrics.prices = lambda: request_prices(engine.topics.runtime.current)
        self._metrics.space = engine.local.pressure.space
        self._metrics.copy_lag = engine.topics.copy_lag
        self._metrics.compaction = engine.tier.compaction

    def _watch_logs(self, logs: LogManager) -> None:
        self._metrics.logs = logs

    def _hop_to_end(self, loop: asyncio.AbstractEventLoop) -> None:
        """Handle the failure of the last log directory, which any thread may notice."""
        loop.call_soon_threadsafe(self._all_failed.set)

    def _tell_fenced(self) -> None:
        """Wake readers so that they see the error, and tell load balancers once no shard is left."""
        if self._engine is None:
            return
        for partition in self._engine.topics.registry.partitions():
            partition.signal.notify()
        if self._engine.tier.shards.is_replaced:
            self._health.report(is_serving=False)

    def _open_metrics(self, probes: HealthProbes) -> MetricsEndpoint | None:
        if not self.settings.metrics_listen:
            return None
        listen = self.settings.metrics_listen
        endpoint = MetricsEndpoint(listen, self._metrics, self._tls, self._access, probes)
        self.metrics_port = endpoint.port
        logger.info("metrics are at port %d", endpoint.port)
        return endpoint

    def _close_threads(self) -> None:
        if self._metrics_endpoint is not None:
            self._metrics_endpoint.close()
        for scheduler in (self._scheduler, self._long_scheduler):
            scheduler.stop()
        self._scheduler.close()
        self._long_scheduler.close()
        self._pools.close()
        if self.processes is not None:
            self.processes.close()
        if self._tracing is not None:
            self._tracing.close()


def serve(settings: ServerSettings, on_ready: Callable[[Server], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then stop cleanly. Raises what `Server.start` raises."""
    keep_freed_memory()
    share_one_heap()
    share_interpreter_lock()
    raise_open_file_limit()
    uvloop.run(_serve(settings, on_ready))


async def _serve(settings: ServerSettings, on_ready: Callable[[Server], None] | None) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stopping, number)
    server = Server(settings, tracing=tracing_of_environment(os.environ))
    await _start(server)
    exempt_loaded_objects()
    memory = freed_memory()
    try:
        if memory is not None:
            server.run_every("freed-memory", memory.look, FREED_MEMORY_MS)
        if on_ready is not None:
            on_ready(server)
        logger.info("listening on %s:%d", listen_address(settings.listen)[0], server.port)
        failing = asyncio.ensure_future(server.until_no_disk_is_left())
        await asyncio.wait(
            {failing, asyncio.ensure_future(stopping.wait())}, return_when=asyncio.FIRST_COMPLETED
        )
        logger.info("stopping")
        if failing.done():
            raise DataDirectoryError(
                "every log directory has failed, so there is nothing to serve; repair a disk and start again",
                log_dirs=", ".join(settings.all_log_dirs),
            )
    finally:
        await _stop(server)


async def _start(server: Server) -> None:
    """Start the server. If it fails and leaves threads behind, end the process at once."""
    try:
        await server.start()
    except LogStoreError as error:
        if server.has_left_threads:
            logger.critical("the server cannot start: %s", error)
            _end_with_threads("the next start finds what they have left")
        raise


def _end_with_threads(advice: str) -> None:
    """End the process at once: the interpreter would wait for threads that wait."""
    logger.warning("ending the process with threads that still wait; %s", advice)
    logging.shutdown()
    os._exit(1)


async def _stop(server: Server) -> None:
    """Stop the server. If it leaves threads behind, end the process at once, which would wait for them."""
    try:
        await server.stop()
    except LogStoreError as error:
        if not server.has_left_threads:
            raise
        logger.error("stopping left something open: %s", error)
    if server.has_left_threads:
        _end_with_threads("the next start recovers what is open")


def _on_signal(stopping: asyncio.Event, number: int) -> None:
    """The first signal asks for a clean stop, a second one ends the process at once."""
    if stopping.is_set():
        logger.warning("stopping at once; the next start recovers")
        os._exit(128 + number)
    stopping.set()
