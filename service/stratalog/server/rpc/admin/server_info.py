"""The answer of ServerInfo: the installed package, the process, the shards that it owns and its limits."""

from __future__ import annotations

import json
import platform
from importlib import metadata

from stratalog.base.clock import Clock
from stratalog.record.native.kernels import NATIVE
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.engine.storage_engine import ObjectTier
from stratalog.v1 import admin_pb2

PACKAGE = "stratalog"


class ServerInfo:
    """Describes this server. Immutable, hence thread-safe; the package is looked up once."""

    def __init__(self, clock: Clock, tier: ObjectTier, settings: ServerSettings) -> None:
        """The uptime begins now."""
        self._clock = clock
        self._tier = tier
        self._settings = settings
        self._start_time_ms = clock.now_ms()
        self._started_s = clock.monotonic_s()
        self._version, self._git_commit = installed_version()

    def message(self) -> admin_pb2.ServerInfoResponse:
        settings = self._settings
        return admin_pb2.ServerInfoResponse(
            version=self._version,
            git_commit=self._git_commit,
            python_version=platform.python_version(),
            platform=platform.platform(),
            native_kernels=NATIVE,
            start_time_ms=self._start_time_ms,
            uptime_ms=round((self._clock.monotonic_s() - self._started_s) * 1000),
            store_url=self._tier.store.url,
            store_id=str(self._tier.identity.store_id),
            owned_shards=[
                admin_pb2.OwnedShard(shard=shard.metadata.shard, epoch=shard.claimed.epoch)
                for shard in self._tier.shards
                if not shard.is_fenced and not shard.is_followed
            ],
            limits=admin_pb2.ServerLimits(
                max_request_bytes=settings.max_request_bytes,
                max_fetch_bytes=settings.max_fetch_bytes,
                max_fetch_wait_ms=settings.max_fetch_wait_ms,
                max_partition_count=settings.max_partition_count,
                max_append_call_count=settings.max_append_call_count,
                max_read_call_count=settings.max_read_call_count,
                max_admin_call_count=settings.max_admin_call_count,
                max_request_memory_bytes=settings.max_request_memory_bytes,
            ),
        )


def installed_version() -> tuple[str, str]:
    """The version and the source's commit of the installed package; empty texts if they are unknown."""
    try:
        package = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        return "", ""
    return package.version, _git_commit(package.read_text("direct_url.json"))


def _git_commit(direct_url: str | None) -> str:
    """The commit in the record that pip makes of an installation from a repository (PEP 610)."""
    if direct_url is None:
        return ""
    commit = json.loads(direct_url).get("vcs_info", {}).get("commit_id", "")
    assert isinstance(commit, str)
    return commit
