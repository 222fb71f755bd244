"""TLS for what this process serves: a given certificate, or one that it signs itself at the start, as kube-scheduler does."""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socket import gethostname
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID: Final = timedelta(days=365)
"""As long as client-go's ``GenerateSelfSignedCertKey`` makes certificates valid."""


def server_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """
    The TLS context of a server, TLS 1.2 and later. Without files, a new self-signed certificate for this host.

    Raises ``OSError`` and ``ssl.SSLError`` (an ``OSError``) for files that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None and key is not None:
        context.load_cert_chain(certificate, key)
        return context
    with _as_file(_self_signed(gethostname())) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path for the ssl module, which reads files only; in memory where the system can, as root file systems are read-only."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("koord-numa-certificate")
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.name


def _self_signed(host: str) -> bytes:
    """Key and certificate as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    # Common names are at most 64 characters long (RFC 5280).
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName(host), x509.DNSName("localhost")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    # A little in the past, for clients whose clocks are behind.
    builder = builder.not_valid_before(now - timedelta(minutes=5)).not_valid_after(now + VALID)
    signed = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return private + signed.public_bytes(serialization.Encoding.PEM)
