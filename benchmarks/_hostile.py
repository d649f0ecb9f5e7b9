"""Requests that no client makes: mutations of what clients send."""

from random import Random

STATED = (10**9, 1, -1)
"""Lengths that a request states and does not have."""

TICKETS = ("1", str(2**64), "-1", "x")


FLOOD = 200
"""Requests of a flood."""


def flood(round_id: str) -> bytes:
    """Return many whole requests, each with an answer that no round takes."""
    body = b"?" * 4096
    head = f"POST /v1/rounds/{round_id}/answers HTTP/1.1\r\nhost: a\r\nrknn-ticket: 1\r\n"
    return (head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body) * FLOOD


def mutated(random: Random, round_id: str) -> bytes:
    """Return the bytes of a request that is wrong, cut or damaged, or a nosy one.

    None of them counts: a body is no message of any mechanism.

    Args:
      random: Random numbers.
      round_id: Id of the round that is served.
    """
    name = round_id if random.random() < 0.8 else "0" * 64
    path, body = random.choice(
        [
            (
                f"/v1/rounds/{name}/answers",
                random.randbytes(random.choice((0, 1, 7))) + b"?" * 4096,
            ),
            (f"/v1/rounds/{name}/statement", b""),
            (f"/v1/rounds/{name}/refusal", b"x" * 9),
            ("/v1/round", b""),
            (f"/v1/rounds/{name}/sum/0", b"1"),
        ]
    )
    length = len(body) if random.random() < 0.7 else random.choice(STATED)
    head = (
        f"{random.choice(('POST', 'GET', 'PUT'))} {path} HTTP/1.1",
        "host: a",
        f"rknn-ticket: {random.choice(TICKETS)}",
        f"content-length: {length}",
        "",
        "",
    )
    data = bytearray("\r\n".join(head).encode() + body)
    for _ in range(random.choice((0, 0, 1, 5))):
        data[random.randrange(len(data))] = random.randrange(256)
    return bytes(data[: random.choice((len(data), random.randrange(len(data))))])
