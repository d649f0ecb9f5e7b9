"""Answers that a real `rknn serve` takes: with TLS and without, of one record and of a thousand.

The server is a process of its own, and its CPU time is what counts: from `/proc`, for whole visits.
A visit connects, fetches the question and sends an answer, of which the client hears when it is on
disk. Clients are plain sockets in threads of this process, as many at once as an address may have.
Each comes from an address of its own among 200 of this host, because the server bounds the
handshakes of an address. Before the clock starts, some clients answer, for which the server
compiles.
"""

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._measure import save
from rknn_jax.federation import certificates, wire
from rknn_jax.federation.certificates import HERE
from rknn_jax.federation.collector import QUESTION
from rknn_jax.federation.rounds import Round

CLIENTS = 1_500
FIRST = 200
"""Clients of a round, and those that answer before the clock starts."""

RECORDS = (1, 1_000)
THREADS = 24
ADDRESSES = 200
TICK = os.sysconf("SC_CLK_TCK")


class Server:
    """`rknn serve` in a process of its own, over embeddings of nine rows and three classes.

    Args:
      folder: Folder with `public.npz`, and certificates in `tls`.
      secured: Flag to serve with TLS.
    """

    def __init__(self, folder: Path, *, secured: bool) -> None:
        self.folder = folder
        self.secured = secured
        with socket.create_server((HERE, 0)) as free:
            self.port = free.getsockname()[1]
        out = folder / f"out{self.port}"
        words = "--epsilon 1 --classes 3 --student none --collect-only --json".split()
        options = {"public": folder / "public.npz", "clients": CLIENTS, "out": out}
        options |= {"port": self.port, "deadline": 10**6}
        if secured:
            tls = folder / "tls"
            options |= {"certificates": tls, "keys": tls / "clients.pem"}
        for name, value in options.items():
            words += [f"--{name}", str(value)]
        command = [sys.executable, "-m", "rknn_jax", "serve", *words]
        with open(folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        while self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection((HERE, self.port)):
                break
            time.sleep(0.1)
        self.round = Round.of((out / QUESTION).read_bytes())

    def cpu(self) -> float:
        """Return the CPU time of the process so far, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    @contextlib.contextmanager
    def connected(self, number: int) -> Iterator[socket.socket]:
        """Connect as a client, from one of the addresses of this host."""
        source = (f"127.0.0.{2 + number % ADDRESSES}", 0)
        with socket.create_connection((HERE, self.port), source_address=source) as plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self.secured:
                yield plain
                return
            tls = self.folder / "tls"
            context = ssl.create_default_context(cafile=tls / "ca.pem")
            context.load_cert_chain(tls / f"party{number}.pem", tls / f"party{number}.key")
            with context.wrap_socket(plain, server_hostname=HERE) as secured:
                yield secured


def asked(connection: socket.socket, path: str, number: int, body: bytes | None = None) -> bytes:
    """Send a request, a POST if it has a body, and return the body of the response."""
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nhost: {HERE}\r\n"
    head += f"rknn-ticket: {number}\r\ncontent-length: {len(body or b'')}\r\n\r\n"
    connection.sendall(head.encode() + (body or b""))
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(2**16)
    lines, _, rest = received.partition(b"\r\n\r\n")
    sizes = [line for line in lines.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while len(rest) < int(sizes[0].partition(b":")[2]):
        rest += connection.recv(2**16)
    return rest


def visit(server: Server, number: int, body: bytes) -> None:
    """Connect, fetch the question, and answer."""
    with server.connected(number) as connection:
        asked(connection, "/v1/round", number)
        path = f"/v1/rounds/{server.round.id}/answers"
        fate = asked(connection, path, number, body)
    if fate != b'{"fate":"counted"}':
        raise RuntimeError(f"client {number}: {fate!r}")


def in_threads(server: Server, numbers: list[int], body: bytes) -> float:
    """Let clients visit, and return the CPU time of the server, in seconds."""
    before = server.cpu()
    failures: list[BaseException] = []

    def work() -> None:
        with contextlib.suppress(IndexError):
            while not failures:
                number = numbers.pop()
                try:
                    visit(server, number, body)
                except Exception as error:
                    failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return server.cpu() - before


def measure(folder: Path, *, secured: bool, records: int) -> dict[str, Any]:
    """Measure visits of clients with so many records each."""
    server = Server(folder, secured=secured)
    try:
        # Zeros are a message: a seed, and the first bucket.
        size = wire.message_bytes(server.round.mechanism)
        body = bytes(size * records)
        in_threads(server, list(range(FIRST)), body)
        # Not the last client, with whom the server ends.
        many = list(range(FIRST, CLIENTS - 1))
        visits = len(many)
        began = time.perf_counter()
        cpu = in_threads(server, many, body)
        wall = time.perf_counter() - began
    finally:
        server.process.kill()
        server.process.wait()
    row = {"secured": secured, "records": records, "message_bytes": size, "visits": visits}
    return row | {"cpu_seconds": cpu, "seconds": wall}


def main() -> None:
    """Measure all forms."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificates.write_federation(folder / "tls", (HERE,), CLIENTS)
        features = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
        np.savez(folder / "public.npz", embeddings=features)
        for secured in (True, False):
            for records in RECORDS:
                rows.append(measure(folder, secured=secured, records=records))
                print(rows[-1], flush=True)
    save("serving", rows, load=os.getloadavg()[0])


if __name__ == "__main__":
    main()
