"""One round of virtual clients in Flower's simulation engine: its seconds, and its memory."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rknn_jax.federation.collector import ANSWERS

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def virtual(folder: Path, nodes: int) -> dict[str, Any]:
    """Run Flower's simulation engine and return seconds, memory, and counts."""
    out = folder / f"out{nodes}"
    environment, port = flower_home(folder / f"home{nodes}")
    commands = Path(sys.executable).parent
    listen = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    with open(folder / f"log{nodes}", "w") as log:
        superlink = subprocess.Popen(
            [commands / "flower-superlink", *listen],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        samples: list[tuple[int, int]] = []
        over = threading.Event()
        watcher = threading.Thread(target=watch, args=(superlink.pid, out, samples, over))
        watcher.start()
        try:
            time.sleep(10)
            started = time.perf_counter()
            subprocess.run(
                run_command(folder, out, nodes),
                env=environment,
                check=True,
                stdout=log,
                stderr=log,
                timeout=3600,
            )
            seconds = time.perf_counter() - started
        finally:
            over.set()
            watcher.join()
            os.killpg(superlink.pid, signal.SIGKILL)
    card = json.loads((out / "privacy.json").read_text())
    answers = (out / ANSWERS).stat().st_size
    return {"seconds": seconds, "counted": card["clients"]} | memory(samples, answers)


def flower_home(home: Path) -> tuple[dict[str, str], int]:
    """Return the environment of Flower's commands, and the port of a SuperLink that it names."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "here"\n[superlink.here]\naddress = '
        f'"127.0.0.1:{port}"\ninsecure = true\n'
    )
    environment = os.environ | ENVIRONMENT | {"FLWR_HOME": str(home)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    return environment, port


def run_command(folder: Path, out: Path, nodes: int) -> list[Any]:
    """Return the command that runs one round of so many virtual clients."""
    settings = {
        "public": folder / "public.npz",
        "private": folder / "private.npz",
        "out": out,
        "classes": 10,
    }
    words = [f'{name}="{value}"' for name, value in settings.items()]
    config = " ".join([*words, "epsilon=1.0", "seed=7"])
    engine = (
        f"num-supernodes={nodes} client-resources-num-cpus=1 init-args-num-cpus={os.cpu_count()}"
    )
    app = Path(__file__).parent.parent / "rknn_jax" / "federation" / "app"
    command = [Path(sys.executable).parent / "flwr", "run", app, "here", "--stream"]
    return [*command, "--federation-config", engine, "--run-config", config]


def memory(samples: list[tuple[int, int]], answers: int) -> dict[str, Any]:
    """Return the peak, and the memory when each tenth of the answers was there, in bytes."""
    tenths = []
    for tenth in range(1, 11):
        there = [used for written, used in samples if written >= answers * tenth / 10]
        tenths.append(there[0] if there else None)
    return {"peak_bytes": max(used for _, used in samples), "bytes_at_tenths": tenths}


def watch(root: int, out: Path, samples: list[tuple[int, int]], over: threading.Event) -> None:
    """Note the bytes of the answers, and the memory of a process and all below it.

    Shared pages are counted once (PSS).
    """
    while not over.wait(2):
        written = (out / ANSWERS).stat().st_size if (out / ANSWERS).exists() else 0
        samples.append((written, sum(map(resident, below(root)))))


def below(root: int) -> set[int]:
    """Return the numbers of a process and of all below it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found = {root}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def resident(process: int) -> int:
    """Return the bytes of a process, with its part of shared pages."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
