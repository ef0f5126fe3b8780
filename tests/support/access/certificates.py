"""Authorities and certificates for tests, in files.

Example::

    authority = Authority(tmp_path, "ca")
    server = authority.issue("server", "localhost", "127.0.0.1")
    ServerSettings(tls_cert=server.cert, tls_key=server.key, ...)
"""

from __future__ import annotations

import datetime as dt
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.oid import NameOID

_BEGIN = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
_END = dt.datetime(2120, 1, 1, tzinfo=dt.UTC)

Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey | rsa.RSAPrivateKey


class CertificateFiles(NamedTuple):
    """Paths of a certificate and its key, in PEM."""

    cert: str
    key: str


class Authority:
    """A certificate authority. Not thread-safe."""

    def __init__(self, folder: Path, name: str) -> None:
        """Writes `NAME.pem` to the folder."""
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.path = str(folder / f"{name}.pem")
        certificate = self._signed(name, self._key, (), _BEGIN, _END, is_authority=True)
        Path(self.path).write_bytes(certificate)

    def issue(
        self,
        common_name: str,
        *names: str,
        file_name: str = "",
        begin: dt.datetime = _BEGIN,
        end: dt.datetime = _END,
        key: Key | None = None,
    ) -> CertificateFiles:
        """A certificate for these names: addresses, URIs or names of hosts."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        stem = file_name or common_name
        paths = CertificateFiles(str(self._folder / f"{stem}.cert"), str(self._folder / f"{stem}.key"))
        Path(paths.cert).write_bytes(self._signed(common_name, key, names, begin, end, is_authority=False))
        Path(paths.key).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return paths

    def _signed(
        self,
        common_name: str,
        key: Key,
        names: tuple[str, ...],
        begin: dt.datetime,
        end: dt.datetime,
        *,
        is_authority: bool,
    ) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(common_name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general(name) for name in names]), critical=False
            )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
