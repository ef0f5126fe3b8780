"""The files of TLS while they are exchanged, and the dates of certificates."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from stratalog.base.errors import InvalidConfigError
from stratalog.server.access.certificate_dates import CertificateDates, dates_of
from stratalog.server.access.server_tls import ServerTls, TlsPaths
from tests.support.access.certificates import Authority

EARLY, LATE = dt.datetime(2031, 5, 4, 3, 2, 1, tzinfo=dt.UTC), dt.datetime(2093, 1, 1, tzinfo=dt.UTC)
BEGIN = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def test_a_pair_that_was_torn_is_not_taken(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    used, issued = authority.issue("used"), authority.issue("issued")
    tls = ServerTls(TlsPaths(*used))
    context, dates = tls.context, tls.dates
    former_cert = Path(used.cert).read_bytes()
    # The certificate was read before the exchange, the key behind it; what is there now fits together.
    Path(used.cert).write_bytes(Path(issued.cert).read_bytes())
    Path(used.key).write_bytes(Path(issued.key).read_bytes())
    torn = [former_cert, Path(used.key).read_bytes()]
    with pytest.raises(InvalidConfigError):
        tls._take(torn)  # pyright: ignore[reportPrivateUsage]  # no chance would come between
    assert (tls.context, tls.dates) == (context, dates)
    assert tls.files.look()
    assert tls.context is not context


def test_each_server_of_grpc_begins_with_the_configuration_in_force_and_takes_a_change_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path, "ca")
    used, issued = authority.issue("used"), authority.issue("issued")
    tls = ServerTls(TlsPaths(*used))
    firsts: list[object] = []
    changes: list[Callable[[], object]] = []

    def make(first: object, change: Callable[[], object], **_: object) -> None:
        firsts.append(first)
        changes.append(change)

    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", make)
    for _ in range(2):
        tls.credentials()
    former = tls.configuration
    assert firsts == [former, former]
    assert [take() for take in changes] == [None, None]
    Path(used.cert).write_bytes(Path(issued.cert).read_bytes())
    Path(used.key).write_bytes(Path(issued.key).read_bytes())
    assert tls.files.look()
    assert tls.configuration is not former
    tls.credentials()
    assert firsts[-1] is tls.configuration
    assert [take() for take in changes] == [tls.configuration, tls.configuration, None]
    assert [take() for take in changes] == [None, None, None]


def test_the_dates_of_a_chain_are_those_that_all_of_it_has(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    late = Path(authority.issue("late", end=LATE).cert).read_bytes()
    # An encoding has two digits of the year up to 2049, and four from 2050 on.
    assert dates_of(late) == CertificateDates(BEGIN.timestamp(), LATE.timestamp())
    early = Path(authority.issue("early", begin=BEGIN + dt.timedelta(1), end=EARLY).cert).read_bytes()
    expected = CertificateDates((BEGIN + dt.timedelta(1)).timestamp(), EARLY.timestamp())
    assert dates_of(b"Subject: early\n" + early + b"\n" + late) == expected
    assert dates_of(late + early) == expected


def test_what_is_no_certificate_has_no_dates(tmp_path: Path) -> None:
    pem = Path(Authority(tmp_path, "ca").path).read_bytes()
    der = base64.b64decode(b"".join(pem.splitlines()[1:-1]))
    for count in range(0, len(der), 7):
        cut = b"-----BEGIN CERTIFICATE-----\n%s\n-----END CERTIFICATE-----\n" % base64.b64encode(der[:count])
        assert refused(cut)
    assert refused(b"")


def refused(pem: bytes) -> bool:
    try:
        dates_of(pem)
    except ValueError:
        return True
    return False
