"""Certificates for tests of a federation: a server's, and those of its clients.

They say in their subject that they are for tests, and end after a week. The key of the root is
thrown away, so nobody can sign another server's certificate. A federation beyond tests has
certificates whose keys never leave their owners; `docs/federation_server.md` has the commands.
"""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rknn_jax._internal.disk import OWNER, write_whole
from rknn_jax._internal.option_names import option

DAY = datetime.timedelta(days=1)
LIFE = 7 * DAY
"""Time after which a certificate ends."""

HERE = "127.0.0.1"
PURPOSE = "FOR TESTS ONLY"
"""Organization in the subject of each certificate."""

PEM = serialization.Encoding.PEM


def write_federation(folder: Path, hosts: Sequence[str], clients: int) -> None:
    """Write certificates for tests: a server's, and those of its clients.

    The folder then holds `ca.pem`, `server.pem`, `server.key`, `clients.pem`, and `party0.pem` and
    `party0.key` for each client. Only their owner can read them.

    Args:
      folder: New or empty folder.
      hosts: Names or addresses by which clients reach the server.
      clients: Number of clients.

    Raises:
      ValueError: As `check_free`.
    """
    check_free(folder)
    write_server(folder, hosts)
    made = [write_client(folder, f"party{number}")[1] for number in range(clients)]
    listed = b"".join(certificate.public_bytes(PEM) for certificate in made)
    write_whole(folder / "clients.pem", listed, OWNER)


def check_free(folder: Path) -> None:
    """Check that a folder is new or empty.

    Raises:
      ValueError: If the folder holds something, or is none.
    """
    if folder.is_dir() and not os.listdir(folder):
        return
    if os.path.lexists(folder):
        raise ValueError(
            f"Expected a new folder, got {option('make_test_certificates')} {folder}, which is "
            f"there; use its certificates with {option('certificates')} {folder} {option('keys')} "
            f"{folder / 'clients.pem'}, or name a new folder."
        )


def write_server(folder: Path, hosts: Sequence[str] = (HERE,)) -> None:
    """Write a root's certificate, and a server's certificate and key.

    Args:
      folder: Folder of `ca.pem`, `server.pem` and `server.key`, made if it is not there.
      hosts: Names or addresses by which clients reach the server.
    """
    folder.mkdir(parents=True, exist_ok=True)
    root = new_key()
    server = new_key()
    signed = certificate("server", server, root, "CA", hosts=hosts)
    _write_certificate(folder / "ca.pem", certificate("CA", root, authority=True))
    _write_certificate(folder / "server.pem", signed)
    _write_key(folder / "server.key", server)


def write_client(
    folder: Path, name: str, *, authority: bool = False, life: datetime.timedelta = LIFE
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Write a client's certificate, signed by itself, and its key, and return both."""
    key = new_key()
    made = certificate(name, key, authority=authority, life=life)
    write_pair(folder, name, key, made)
    return key, made


def write_pair(
    folder: Path, name: str, key: ec.EllipticCurvePrivateKey, made: x509.Certificate
) -> None:
    """Write a certificate and its key under a name."""
    _write_certificate(folder / f"{name}.pem", made)
    _write_key(folder / f"{name}.key", key)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey | None = None,
    issuer: str | None = None,
    *,
    hosts: Sequence[str] = (),
    authority: bool = False,
    life: datetime.timedelta = LIFE,
) -> x509.Certificate:
    """Return a certificate of a key.

    Args:
      name: Common name of the key's owner.
      key: Key that is certified.
      signer: Key that signs. Defaults to None, the key itself.
      issuer: Common name of the signer. Defaults to None, the owner.
      hosts: Names or addresses of a server.
      authority: Permission to sign other certificates.
      life: Time from now until the end, negative for a certificate that has ended.
    """
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(_named(issuer or name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * DAY)
        .not_valid_after(now + life)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        made = made.add_extension(names, critical=False)
    return made.sign(signer or key, hashes.SHA256())


def _named(name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, PURPOSE),
            x509.NameAttribute(x509.NameOID.COMMON_NAME, name),
        ]
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host)


def _write_certificate(path: Path, made: x509.Certificate) -> None:
    write_whole(path, made.public_bytes(PEM), OWNER)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    form = serialization.PrivateFormat.PKCS8
    write_whole(path, key.private_bytes(PEM, form, serialization.NoEncryption()), OWNER)
