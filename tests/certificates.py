"""Certificates of a federation for tests, made in a moment: a server's and its clients'."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = datetime.timedelta(days=1)
HERE = "127.0.0.1"
PEM = serialization.Encoding.PEM


def named(name):
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def new_key():
    return ec.generate_private_key(ec.SECP256R1())


def certificate(name, key, signer=None, issuer=None, *, names=(), authority=False, ends=DAY):
    """Return a certificate of a key, signed by itself or by another one."""
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer or name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * DAY)
        .not_valid_after(now + ends)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if names:
        made = made.add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
    return made.sign(signer or key, hashes.SHA256())


def write_certificate(path, made):
    path.write_bytes(made.public_bytes(PEM))


def write_key(path, key):
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(PEM, form, plain))


def write_server(folder: Path, names=(x509.IPAddress(ipaddress.ip_address(HERE)),)):
    """Write a root and a server's certificate into a new folder."""
    folder.mkdir(parents=True)
    root = new_key()
    server = new_key()
    write_certificate(folder / "ca.pem", certificate("CA", root, authority=True))
    write_certificate(folder / "server.pem", certificate("server", server, root, "CA", names=names))
    write_key(folder / "server.key", server)


def write_client(folder: Path, name, **options):
    """Write a client's key and certificate, and return both."""
    key = new_key()
    made = certificate(name, key, **options)
    write_key(folder / f"{name}.key", key)
    write_certificate(folder / f"{name}.pem", made)
    return key, made
