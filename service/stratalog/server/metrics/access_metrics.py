"""The metrics of access: files that are read again, refused callers, and quotas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from stratalog.base.errors import AuthenticationFailedError, AuthorizationFailedError
from stratalog.server.access.access_control import AccessControl
from stratalog.server.access.quotas import QuotaCounts, Quotas
from stratalog.server.access.reloaded_files import ReloadedFiles
from stratalog.server.access.server_tls import ServerTls
from stratalog.server.metrics.families import counters, gauge, gauges


def of_reloads(files: Sequence[ReloadedFiles]) -> Iterator[Metric]:
    """Yield the changes of files that the server reads again."""
    yield counters(
        "access_reloads",
        "Changes of files that were taken over.",
        ("file",),
        (((one.name,), one.reload_count) for one in files),
    )
    yield counters(
        "access_reload_failures",
        "Changes of files that were refused.",
        ("file",),
        (((one.name,), one.failure_count) for one in files),
    )
    yield gauges(
        "access_stale_files",
        "1 if the files as they are now were refused, so that former contents are in force.",
        "file",
        {one.name: float(one.has_failed) for one in files},
    )


def of_certificate(tls: ServerTls) -> Iterator[Metric]:
    """Yield the end of the certificate in force, if it is known."""
    if tls.dates is not None:
        yield gauge(
            "access_certificate_expiry_timestamp_secs",
            "Seconds since 1970 UTC at which the server's certificate, or one behind it, is valid no more.",
            tls.dates.end_s,
        )


def of_access(access: AccessControl, quotas: Quotas) -> Iterator[Metric]:
    """Yield the calls that were refused, and those that met a quota, by principals that have one, or that
    were refused without one for having too many calls open."""
    refusals = access.refusals
    yield counters(
        "access_refused_calls",
        "Calls that were refused for their credentials or permissions.",
        ("code",),
        (
            ((error.code,), refusals.get(error.code, 0))
            for error in (AuthenticationFailedError, AuthorizationFailedError)
        ),
    )
    found = quotas.counts
    counts = {
        principal.name: found.get(principal.name, QuotaCounts())
        for principal in access.policy.principals
        if principal.quota.is_set or principal.name in found
    }
    yield counters(
        "quota_throttled_calls",
        "Calls and messages that waited for a quota.",
        ("principal",),
        (((name,), one.throttled_count) for name, one in counts.items()),
    )
    yield counters(
        "quota_throttled_secs",
        "Seconds that they waited.",
        ("principal",),
        (((name,), one.throttled_s) for name, one in counts.items()),
    )
    yield counters(
        "quota_refused_calls",
        "Calls and streams that were refused for a quota.",
        ("principal",),
        (((name,), one.refused_count) for name, one in counts.items()),
    )
