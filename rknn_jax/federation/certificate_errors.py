"""Errors of certificates with their remedies, and text of others for printing."""

import ssl

MOST_LETTERS = 500

REMEDIES = {
    "CERTIFICATE_VERIFY_FAILED": "check --ca and the server's name, and that neither has expired",
    "UNKNOWN_CA": "the server does not know this certificate; send it --certificate for its --keys",
    "CERTIFICATE_UNKNOWN": "the server does not know this certificate; send it --certificate",
    "BAD_CERTIFICATE": "the server does not accept this certificate; make a new one",
    "CERTIFICATE_EXPIRED": "this certificate has expired; make a new one from the same --key",
    "CERTIFICATE_REQUIRED": "the server wants a certificate; pass --certificate and --key",
    "WRONG_VERSION_NUMBER": "the server does not speak TLS; start it with --certificates",
    "PROTOCOL_VERSION": "the server speaks another version of TLS than 1.2 and 1.3",
    "HANDSHAKE_FAILURE": "the server and this client have no way of encryption in common",
}
"""Remedy for each reason, or end of a reason, of OpenSSL that another attempt does not mend."""


def check_certificates(error: BaseException | None) -> None:
    """Raise a ValueError with a remedy if the error is about a certificate."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            reason = (error.reason or "").upper().replace(" ", "_")
            for end, remedy in REMEDIES.items():
                if reason.endswith(end):
                    raise ValueError(
                        f"The server cannot be joined ({printable(str(error))}); {remedy}."
                    ) from error
        error = error.__cause__ or error.__context__


def printable(text: str) -> str:
    """Return text of others for printing, without characters that could control a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:MOST_LETTERS])
