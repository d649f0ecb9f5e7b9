"""Errors of certificates with their remedies, and text of others for printing."""

import ssl

from rknn_jax._internal.option_names import option

MOST_LETTERS = 500


def _remedies() -> dict[str, str]:
    """Return what mends a reason, or an end of a reason, of OpenSSL that no other attempt does."""
    return {
        "CERTIFICATE_VERIFY_FAILED": (
            f"check {option('ca')} and the server's name, and that neither has expired"
        ),
        "UNKNOWN_CA": (
            f"the server does not know this certificate; send it {option('certificate')} for its "
            f"{option('keys')}"
        ),
        "CERTIFICATE_UNKNOWN": (
            f"the server does not know this certificate; send it {option('certificate')}"
        ),
        "BAD_CERTIFICATE": "the server does not accept this certificate; make a new one",
        "CERTIFICATE_EXPIRED": (
            f"this certificate has expired; make a new one from the same {option('key')}"
        ),
        "CERTIFICATE_REQUIRED": (
            f"the server wants a certificate; pass {option('certificate')} and {option('key')}"
        ),
        "WRONG_VERSION_NUMBER": (
            f"the server does not speak TLS; start it with {option('certificates')}"
        ),
        "PROTOCOL_VERSION": "the server speaks another version of TLS than 1.2 and 1.3",
        "HANDSHAKE_FAILURE": "the server and this client have no way of encryption in common",
    }


def check_certificates(error: BaseException | None) -> None:
    """Raise a ValueError with a remedy if the error is about a certificate."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            reason = (error.reason or "").upper().replace(" ", "_")
            for end, remedy in _remedies().items():
                if reason.endswith(end):
                    raise ValueError(
                        f"The server cannot be joined ({printable(str(error))}); {remedy}."
                    ) from error
        error = error.__cause__ or error.__context__


def printable(text: str) -> str:
    """Return text of others for printing, without characters that could control a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:MOST_LETTERS])
