"""Certificates of a federation: who may connect, and the number by which a client counts.

Both sides show a certificate. The server has one that is signed by the federation's root. Each
client makes its own, signed by itself, and gives it to the server once. The server admits exactly
the certificates of its list. A client's number comes from its public key, so a client counts once
whatever it calls itself, and keeps its number when it renews its certificate.
"""

import datetime
import hashlib
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rknn_jax._internal.option_names import option

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

MAKE_ONE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365 "
    "-subj /CN=party0 -keyout party0.key -out party0.pem makes one"
)

NOT_ACCEPTED = ("CERTIFICATE_VERIFY_FAILED", "PEER_DID_NOT_RETURN_A_CERTIFICATE")
"""Reasons of OpenSSL for a client's certificate that is unknown or missing."""


class Alerting(ssl.SSLObject):
    """TLS connection that tells its peer that its certificate is not accepted.

    asyncio sends waiting bytes, such as an alert, only while a handshake goes on. So a failed one
    goes on until the peer reacts.
    """

    failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        """Shake hands, and fail one step later than asyncio would."""
        if self.failure:
            raise self.failure
        try:
            super().do_handshake()
        except ssl.SSLError as error:
            if error.reason not in NOT_ACCEPTED:
                raise
            self.failure = error
            raise ssl.SSLWantReadError(error.reason) from error


def key_number(certificate: bytes) -> int:
    """Return a client's number, the first 8 bytes of its public key's SHA-256, little-endian.

    Args:
      certificate: X.509 certificate, DER.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = x509.load_der_x509_certificate(certificate).public_key()
    public = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return int.from_bytes(hashlib.sha256(public).digest()[:8], "little")


def read_clients(path: Path) -> dict[bytes, int]:
    """Return the number of each client whose certificate is in a file, by certificate, DER.

    Args:
      path: File of PEM certificates, one after the other. Other text between them is ignored.

    Raises:
      ValueError: If the file cannot be read or holds no certificates.
    """
    try:
        return {der: key_number(der) for der in _certificates(path)}
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"Expected certificates of clients in {option('keys')} {path}, got none that can be "
            f"read: {reason}; {MAKE_ONE}."
        ) from error


def _certificates(path: Path) -> list[bytes]:
    """Return the certificates of a PEM file, DER.

    Raises:
      ValueError: If it holds none, or one that cannot be read.
      OSError: If the file cannot be read.
    """
    from cryptography.hazmat.primitives.serialization import Encoding

    return [certificate.public_bytes(Encoding.DER) for certificate in _read(path)]


def _read(path: Path) -> "list[Certificate]":
    """Return the certificates of a PEM file; raises as `_certificates`."""
    from cryptography import x509

    return x509.load_pem_x509_certificates(path.read_bytes())


def server_context(folder: Path, clients: Mapping[bytes, int]) -> ssl.SSLContext:
    """Return the TLS settings of a server that admits only clients with these certificates.

    Args:
      folder: Folder of `server.pem` and `server.key`, PEM.
      clients: Certificates of the clients, DER, as `read_clients` returns them.

    Raises:
      ValueError: If a file is missing, or if certificate and key do not fit or are not valid now.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.sslobject_class = Alerting
    # A listed certificate is trusted by itself, whoever signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _load_chain(context, folder / "server.pem", folder / "server.key", option("certificates"))
    now, own = datetime.datetime.now(datetime.UTC), _read(folder / "server.pem")[0]
    first, last = own.not_valid_before_utc, own.not_valid_after_utc
    if not first <= now <= last:
        raise ValueError(
            f"Expected a certificate that is valid now in {option('certificates')}, got "
            f"{folder / 'server.pem'}, valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}; renew it."
        )
    context.load_verify_locations(cadata=b"".join(clients))
    return context


class ClientContext(ssl.SSLContext):
    """TLS settings of a client.

    Attributes:
      number: Number of the client, by its public key.
      root: Hash of the server's root certificate, which another server at the address has not.
    """

    number: int = 0
    root: str = ""


def client_context(ca: Path, certificate: Path, key: Path) -> ClientContext:
    """Return the TLS settings of a client, which knows its server by a root certificate.

    Args:
      ca: Root certificate of the server, PEM.
      certificate: Certificate of the client, PEM.
      key: Private key of the client, PEM.

    Raises:
      ValueError: If a file cannot be used, or if certificate and key do not fit.
    """
    context = ClientContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_chain(context, certificate, key, f"{option('certificate')} and {option('key')}")
    context.number = next(iter(read_clients(certificate).values()))
    try:
        context.load_verify_locations(ca)
        context.root = hashlib.sha256(b"".join(sorted(_certificates(ca)))).hexdigest()[:16]
    except (OSError, ValueError) as error:
        raise ValueError(
            f"Expected the server's root certificate as {option('ca')}, PEM, got {ca}: "
            f"{_reason(error)}."
        ) from error
    return context


def _load_chain(context: ssl.SSLContext, certificate: Path, key: Path, options: str) -> None:
    def no_password() -> str:
        raise ValueError(f"Expected a key without a password in {options}, got {key}.")

    try:
        context.load_cert_chain(certificate, key, no_password)
    except OSError as error:
        raise ValueError(
            f"Expected a certificate and its private key in {options}, PEM, got {certificate} and "
            f"{key}: {_reason(error)}."
        ) from error


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no PEM").replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)
