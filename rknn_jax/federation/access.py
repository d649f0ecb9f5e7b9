"""Access to the processes of a federation: the gate of a port, client keys, certificates."""

import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEADER = "x-rknn-gate"
TRY_AGAIN = 503
NOT_FOUND = 404


class Gate:
    """ASGI middleware that admits only requests with the secret.

    Requests to the paths under `open_to` need no secret once `ready` is set.
    """

    def __init__(
        self,
        app: Any,
        secret: str,
        open_to: str | None = None,
        ready: threading.Event | None = None,
    ) -> None:
        self.app = app
        self.secret = secret.encode()
        self.open_to = open_to
        self.ready = ready

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass an admitted request on, and answer any other one with an error."""
        told = dict(scope.get("headers", ())).get(HEADER.encode(), b"")
        known = scope["type"] == "lifespan" or (
            scope["type"] == "http" and secrets.compare_digest(told, self.secret)
        )
        public = (
            scope["type"] == "http"
            and self.open_to is not None
            and scope["path"].startswith(self.open_to)
        )
        if known or (public and (self.ready is None or self.ready.is_set())):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send(
                {
                    "type": "http.response.start",
                    "status": TRY_AGAIN if public else NOT_FOUND,
                    "headers": [],
                }
            )
            await send({"type": "http.response.body", "body": b""})


class Pass:
    """Interceptor that adds the secret to the requests of this process."""

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Add the secret to a request."""
        context.request.headers[HEADER] = self.secret
        return call_next(context)


def public_key(text: str) -> Any:
    """Return the key that OpenSSH wrote as `text`; `ValueError` if it is no elliptic curve's."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(text.encode())
    except ValueError as error:
        raise ValueError(
            f"Expected a public key as OpenSSH writes it, got {text[:40]!r}: {error}"
        ) from error
    if not isinstance(key, EllipticCurvePublicKey):
        raise ValueError(
            f"Expected a key of an elliptic curve, got {text[:40]!r}; ssh-keygen -t ecdsa -b 384 "
            "makes one."
        )
    return key


def check_name(certificate: Path, name: str) -> None:
    """Check that this process can reach itself under its own certificate.

    Raises:
      ValueError: If the certificate cannot be read, has no names, or is for other names alone.
    """
    from cryptography import x509

    try:
        names = x509.load_pem_x509_certificate(
            certificate.read_bytes()
        ).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise ValueError(
            f"Expected a certificate with a subjectAltName in {certificate}: {error}"
        ) from error
    found = [str(alternative.value) for alternative in names.value]
    if name not in found:
        raise ValueError(
            f"Expected the certificate {certificate} to be for {name} too, got "
            f"{', '.join(found)}; add it to subjectAltName."
        )
