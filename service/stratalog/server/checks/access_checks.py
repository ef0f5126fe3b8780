"""Checks of the files of a start that say who may come in: those of TLS, and the access file."""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.base.errors import InvalidConfigError
from stratalog.server.access.access_control import AccessControl
from stratalog.server.access.certificate_dates import CertificateDates, dates_of
from stratalog.server.access.reloaded_files import read_files
from stratalog.server.access.server_tls import ServerTls, TlsPaths
from stratalog.server.checks.start_check import CheckedStart, Finding, Verdict

MIN_DAYS_LEFT = 30
"""A certificate that ends earlier should be renewed by now."""
_DAY_S = 24 * 60 * 60


def tls(start: CheckedStart) -> Iterator[Finding]:
    """The certificate and its key fit, and the certificates are valid now and for a while."""
    settings = start.settings
    if not settings.tls_cert:
        return
    paths = TlsPaths(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    try:
        # As a start does.
        found = ServerTls(paths, start.seams.clock)
    except InvalidConfigError as refusal:
        yield Finding("tls", Verdict.ERROR, str(refusal))
        return
    for name, path in (("tls-cert", paths.cert), ("tls-client-ca", paths.client_ca)):
        if path:
            yield _validity(start, name, path)
    if found.rare_key:
        yield Finding(
            "tls-cert",
            Verdict.WARNING,
            f"{paths.cert} has a key of the kind {found.rare_key}, and no client of gRPC's C core, such as"
            " one in Python, connects with it; use P-256, P-384 or RSA",
        )


def access(start: CheckedStart) -> Iterator[Finding]:
    """The access file can be read and is valid."""
    path = start.settings.access_file
    if not path:
        return
    try:
        count = len(AccessControl(path).policy.principals)
    except InvalidConfigError as refusal:
        yield Finding("access-file", Verdict.ERROR, str(refusal))
    else:
        yield Finding("access-file", Verdict.OK, f"{path} has {count:,} principal(s)")


def _validity(start: CheckedStart, name: str, path: str) -> Finding:
    try:
        dates = dates_of(read_files(name, [path])[0])
    except (InvalidConfigError, ValueError) as failure:
        return Finding(name, Verdict.WARNING, f"the dates of {path} cannot be read: {failure}")
    return Finding(name, *_judged(dates, path, start.seams.clock.now_ms() / 1000))


def _judged(dates: CertificateDates, path: str, now_s: float) -> tuple[Verdict, str]:
    if now_s < dates.begin_s:
        text = f"{path} is valid in {_days(dates.begin_s - now_s)}, and no client takes it before"
        return Verdict.ERROR, f"{text}; correct the clock, or use another one"
    if now_s >= dates.end_s:
        return Verdict.ERROR, f"{path} has expired {_days(now_s - dates.end_s)} ago; renew it"
    left = f"{path} expires in {_days(dates.end_s - now_s)}"
    if dates.end_s - now_s < MIN_DAYS_LEFT * _DAY_S:
        return Verdict.WARNING, f"{left}; renew it"
    return Verdict.OK, left


def _days(time_s: float) -> str:
    count = int(time_s // _DAY_S)
    return "less than a day" if count == 0 else "1 day" if count == 1 else f"{count:,} days"
