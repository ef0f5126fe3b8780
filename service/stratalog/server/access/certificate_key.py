"""Keys of certificates that most clients cannot use, found in their encodings (RFC 5280, 4.1.2.7)."""

from __future__ import annotations

import ssl

_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
_RARE = {
    bytes.fromhex("302a300506032b6570032100"): "Ed25519",
    bytes.fromhex("3043300506032b6571033a00"): "Ed448",
    bytes.fromhex("06072a8648ce3d020106052b8104002303"): "P-521",
}
"""The encodings in front of the bits of a key, as far as they say which kind it is."""


def rare_key(pem: bytes) -> str:
    """The kind of the key of a file's first certificate, if clients of gRPC's C core (Python, C++, Ruby and
    more) do not offer its signatures in the handshake of TLS, so that none can connect; else empty."""
    begin = pem.find(_BEGIN)
    end = pem.find(_END, begin)
    if begin < 0 or end < 0:
        return ""
    try:
        der = ssl.PEM_cert_to_DER_cert(pem[begin : end + len(_END)].decode("ascii"))
    except ValueError:
        return ""
    return next((name for encoding, name in _RARE.items() if encoding in der), "")
