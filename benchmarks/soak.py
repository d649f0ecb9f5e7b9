"""Soak of `rknn serve`: thousands of clients with TLS come and go for hours, some of them hostile.

The server is a real one, in a process of its own. Clients are real ones too, with keys and ledgers
of their own, as threads of this process: each comes, takes part, and leaves in the middle of
waiting. One visit in a hundred is hostile: mutations of requests by a client whose key is known, or
garbage before TLS. Answers come evenly over the whole time, and a last client ends the round.
The server's own metrics tell its memory and its open files.

    make soak                                      # three hours; the same command continues
    python -m benchmarks.soak --minutes 20 --save
"""

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks._hostile import mutated
from benchmarks._measure import save
from rknn_jax.federation import answer_frames, certificates, tls
from rknn_jax.federation.client import Client
from rknn_jax.federation.collector import ANSWERS, QUESTION
from rknn_jax.federation.connection import Connection
from rknn_jax.federation.participation import take_part
from rknn_jax.federation.rounds import Round
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.ledger import Ledger

CLIENTS = 2_000
HOSTILE = 20
"""Clients, and those of them with a known key who send mutations."""

HOSTILE_SHARE = 0.01
THREADS = 64
STAYS = 0.1
LONGEST_STAY = 20.0
PATIENCE = 60.0
"""Probability that a client waits for news before it leaves, its longest wait, and the time that it
tries to reach the server, in seconds.
"""

SAMPLE_SECONDS = 10.0
WARM_SHARE = 0.1
"""Part of the time after which memory is compared."""

HERE = certificates.HERE
DEADLINE = 10**6


FATES = ("answered", "refused", "not counted", "too late")
"""Words after which a client leaves."""


class LeftError(Exception):
    """End of a client's visit."""


class Soak:
    """Soak in a folder, which a later process continues.

    Args:
      folder: Folder of certificates, ledgers, the round, and what was measured so far.
      seconds: Time of the whole soak.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds
        self.state_path = folder / "state.json"
        self.counts = Counter[str]()
        self.samples: list[dict[str, float]] = []
        self.before = 0.0
        self.lock = threading.Lock()
        self.sessions = 1
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "tls" / "clients.pem").exists():
            certificates.write_federation(folder / "tls", (HERE,), CLIENTS + 1)
        if not (folder / "public.npz").exists():
            features = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
            np.savez(folder / "public.npz", embeddings=features)
        if self.state_path.exists():
            kept = json.loads(self.state_path.read_text())
            self.before = kept["seconds"]
            self.samples = kept["samples"]
            self.counts.update(kept["counts"])
            self.sessions = kept["sessions"] + 1

    @property
    def elapsed(self) -> float:
        """Seconds of all sessions so far."""
        return self.before + time.monotonic() - self.began

    def run(self) -> dict[str, Any]:
        """Run until the time is over, end the round, and return what was measured."""
        self.port, self.metrics_port = _free_port(), _free_port()
        server = self._server()
        try:
            self._wait_for_server(server)
            self.round = Round.of((self.folder / "out" / QUESTION).read_bytes())
            self.began = time.monotonic()
            threads = [
                threading.Thread(target=self._visit_on, args=(number,), daemon=True)
                for number in range(THREADS)
            ]
            for thread in threads:
                thread.start()
            while self.elapsed < self.seconds:
                time.sleep(min(SAMPLE_SECONDS, max(0.1, self.seconds - self.elapsed)))
                self._sample()
                if server.poll() is not None:
                    raise RuntimeError(f"the server ended with status {server.returncode}")
            for thread in threads:
                thread.join(PATIENCE + LONGEST_STAY)
                if thread.is_alive():
                    raise RuntimeError("a client does not come back")
            time.sleep(SAMPLE_SECONDS)  # so that what clients left open is closed
            quiet = self._metrics()
            for number in range(HOSTILE, CLIENTS):  # whoever had no visit at its time
                if not self._client(number).counted():
                    self._visit(number, None)
            self._take_part(CLIENTS)
            status = server.wait(60)
        finally:
            if server.poll() is None:
                server.send_signal(signal.SIGKILL)
                server.wait()
        return self._results(quiet, status)

    def _server(self) -> "subprocess.Popen[bytes]":
        words = "--epsilon 1 --classes 3 --student none --collect-only --json".split()
        options = {
            "public": self.folder / "public.npz",
            "clients": CLIENTS - HOSTILE + 1,
            "deadline": DEADLINE,
            "out": self.folder / "out",
            "port": self.port,
            "metrics-port": self.metrics_port,
            "certificates": self.folder / "tls",
            "keys": self.folder / "tls" / "clients.pem",
        }
        for name, value in options.items():
            words += [f"--{name}", str(value)]
        with open(self.folder / "server.log", "ab") as log:
            command = [sys.executable, "-m", "rknn_jax", "serve", *words]
            return subprocess.Popen(command, stdout=log, stderr=log)

    def _wait_for_server(self, server: "subprocess.Popen[bytes]") -> None:
        ends = time.monotonic() + 120
        while time.monotonic() < ends and server.poll() is None:
            with contextlib.suppress(OSError):
                self.metrics_at_start = self._metrics()
                return
            time.sleep(0.5)
        raise RuntimeError(f"the server did not come up; see {self.folder / 'server.log'}")

    def _metrics(self) -> dict[str, float]:
        """Return the server's metrics, those of several labels added up."""
        connection = http.client.HTTPConnection(HERE, self.metrics_port, timeout=30)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        found = Counter[str]()
        for line in text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                found[name.partition("{")[0]] += float(value)  # type: ignore[assignment]
        return dict(found)

    def _sample(self) -> None:
        found = self._metrics()
        names = ("process_resident_memory_bytes", "process_open_fds", "rknn_connections")
        sample = {name: found[name] for name in names}
        log = (self.folder / "server.log").stat().st_size
        kept = sample | {"at": self.elapsed, "session": self.sessions, "log_bytes": log}
        with self.lock:
            self.samples.append(kept)
            state = {
                "seconds": self.elapsed,
                "samples": self.samples,
                "counts": dict(self.counts),
                "sessions": self.sessions,
            }
        part = self.state_path.with_suffix(".new")
        part.write_text(json.dumps(state))
        os.replace(part, self.state_path)

    # Clients

    def _visit_on(self, thread: int) -> None:
        """Visit the server again and again, as clients that are this thread's alone."""
        random = Random(os.urandom(16))
        mine = range(thread, CLIENTS, THREADS)
        while self.elapsed < self.seconds:
            number = random.choice(mine)
            try:
                if random.random() < HOSTILE_SHARE:
                    kind = self._attack(random)
                elif number < HOSTILE:
                    continue  # hostile clients answer nothing
                else:
                    kind = self._visit(number, random)
            except Exception as error:
                kind = f"failed: {type(error).__name__}"
            with self.lock:
                self.counts[kind] += 1
            time.sleep(random.random() * 2)

    def _context(self, number: int) -> ssl.SSLContext:
        folder = self.folder / "tls"
        name = f"party{number}"
        return tls.client_context(folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key")

    def _client(self, number: int) -> Client:
        rng = np.random.default_rng(number)
        features = rng.normal(size=(1 + number % 3, 4)).astype(np.float32)
        labels = rng.integers(0, 3, len(features)).astype(np.int32)
        folder = self.folder / "clients" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "ledger.jsonl"
        dataset = fingerprint(features, np.array([number]))
        if path.exists():
            ledger = Ledger.open(path, dataset)
        else:
            ledger = Ledger.create(path, dataset, 2)
        return Client(features, labels, ledger, folder / "rounds")

    def _visit(self, number: int, random: Random | None) -> str:
        """Come, take part once it is this client's time, and leave, at once without `random`."""
        server = f"https://{HERE}:{self.port}"
        with contextlib.closing(
            Connection(server, self._context(number), self._leave, patience=PATIENCE)
        ) as connection:
            told = "looked"
            if self.elapsed < self.seconds * 0.95 * number / CLIENTS:
                connection.get("/v1/round")
            else:
                told = "answered"
                with contextlib.suppress(LeftError):
                    take_part(self._client(number), connection, self._leave)
            if random and random.random() < STAYS:
                time.sleep(random.random() * LONGEST_STAY)
                connection.get(f"/v1/rounds/{self.round.id}/statement")
            return told

    def _leave(self, name: str, text: str) -> None:
        """Leave as soon as the fate of the answer is known; other words mean nothing."""
        if name in FATES:
            with self.lock:
                self.counts[f"told {name}"] += 1
            raise LeftError(text)

    def _take_part(self, number: int) -> None:
        server = f"https://{HERE}:{self.port}"
        with contextlib.closing(
            Connection(server, self._context(number), lambda *_: None, patience=PATIENCE)
        ) as connection:
            self.outcome = take_part(self._client(number), connection, lambda *_: None)

    def _attack(self, random: Random) -> str:
        """Send what no client sends, before TLS or after it."""
        plain = random.random() < 0.3
        with socket.create_connection((HERE, self.port), timeout=30) as raw:
            if plain:
                raw.sendall(random.randbytes(random.choice((1, 300, 70_000))))
                time.sleep(random.random() * 15)
                return "hostile before TLS"
            context = self._context(random.randrange(HOSTILE))
            with context.wrap_socket(raw, server_hostname=HERE) as secured:
                for _ in range(random.randrange(1, 5)):
                    secured.sendall(mutated(random, self.round.id))
                    time.sleep(random.random())
                with contextlib.suppress(OSError):
                    secured.settimeout(random.random() * 5)
                    secured.recv(2**16)
        return "hostile with a key"

    # Results

    def _results(self, quiet: dict[str, float], status: int) -> dict[str, Any]:
        honest = {tls_number(self.folder, number) for number in range(HOSTILE, CLIENTS + 1)}
        on_disk = [
            client
            for clients, _ in answer_frames.read(self.folder / "out" / ANSWERS)
            for client in clients.tolist()
        ]
        last = [one for one in self.samples if one["session"] == self.sessions]
        began = self.before + (self.seconds - self.before) * WARM_SHARE
        warm = [one["process_resident_memory_bytes"] for one in last if one["at"] >= began]
        return {
            "minutes": self.elapsed / 60,
            "sessions": self.sessions,
            "visits": dict(sorted(self.counts.items())),
            "answers_counted": len(on_disk),
            "honest_clients": len(honest),
            "counted_once": len(set(on_disk)) == len(on_disk) and set(on_disk) == honest,
            "server_status": status,
            "statement": self.outcome.statement[:200],
            "memory_bytes": {"warm": warm[0], "most": max(warm), "last": warm[-1]},
            "memory_grows_by": max(warm) / warm[0] - 1,
            "files_at_start": self.metrics_at_start["process_open_fds"],
            "most_files": max(one["process_open_fds"] for one in self.samples),
            "files_when_quiet": quiet["process_open_fds"],
            "connections_when_quiet": quiet["rknn_connections"],
            "log_bytes": (self.folder / "server.log").stat().st_size,
        }


def tls_number(folder: Path, number: int) -> int:
    """Return the number by which the server counts a client."""
    [found] = tls.read_clients(folder / "tls" / f"party{number}.pem").values()
    return found


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind((HERE, 0))
        port: int = listening.getsockname()[1]
        return port


def main() -> None:
    """Run the soak, or continue it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=180.0)
    parser.add_argument("--folder", type=Path, default=Path("runs/soak"))
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    soak = Soak(options.folder, options.minutes * 60)
    results = soak.run()
    print(json.dumps(results, indent=2))
    if options.save:
        # The folder is this machine's own.
        sys.argv[1:] = ["--minutes", f"{options.minutes:g}", "--save"]
        save("soak", results)
    leaks = results["files_when_quiet"] > results["files_at_start"] + 2
    sound = results["counted_once"] and results["server_status"] == 0 and not leaks
    sys.exit(not (sound and results["memory_grows_by"] <= 0.2))


if __name__ == "__main__":
    main()
