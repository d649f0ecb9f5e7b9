"""`rknn simulate`: the error of a local mechanism over simulated one-record clients."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from rknn_jax._internal import compilation, progress
from rknn_jax._internal.ranges import Count, CountOrNone, Many, ReleaseEpsilon, Seed
from rknn_jax._internal.terminal import err, tell, whole
from rknn_jax.privacy.guarantee import LARGE_EPSILON


@dataclass(frozen=True)
class Simulate:
    """Simulate one-record clients under a local mechanism, and compare the error with what the exact variances say.

    Attributes:
      clients: number of clients, such as 1e6.
      mechanism: a local mechanism, or best, which chooses one.
      queries: number of queries s.
      classes: number of classes.
      neighbors: number of queries k that each client votes for.
      epsilon: epsilon of each client's message.
      level: message draws every message; count draws the totals from their exact joint
        distribution.
      seed: seed of votes and messages.
      processes: number of processes, on as many hosts, that simulate together; start each
        with the same arguments except --process.
      process: number of this process, from 0.
      coordinator: host:port of process 0.
      engine: local uses the devices of this machine and of the other processes. ray uses the Ray
        cluster at --address, or one that it starts here, for --level message.
      address: address of the Ray cluster.
      json: end with one line of JSON on stdout.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    clients: Many
    mechanism: str = "collision"
    queries: Count = 100
    classes: Count = 10
    neighbors: Count = 1
    epsilon: ReleaseEpsilon = 1.0
    level: Literal["message", "count"] = "message"
    seed: Seed = 0
    processes: Count = 1
    process: CountOrNone = 0
    coordinator: str = "localhost:12300"
    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    json: bool = False


def run(settings: Simulate) -> dict[str, Any]:
    """Simulate, print the error, and return what `--json` prints."""
    with progress.phase("loading"):
        import jax

        from rknn_jax import mechanisms
        from rknn_jax import simulate as job
    compilation.keep()
    if not 0 <= settings.process < settings.processes:
        raise ValueError(
            f"Expected 0 <= --process < {settings.processes} processes, got --process "
            f"{settings.process}."
        )
    _check_engine(settings)
    if settings.epsilon > LARGE_EPSILON:
        raise ValueError(
            f"Expected --epsilon of at most {LARGE_EPSILON:g}, got --epsilon {settings.epsilon:g}; "
            "more leaves no noise to compare."
        )
    if settings.processes > 1:
        jax.distributed.initialize(settings.coordinator, settings.processes, settings.process)
    sizes = {
        "num_queries": settings.queries,
        "num_classes": settings.classes,
        "num_neighbors": settings.neighbors,
    }
    if settings.mechanism == "best":
        mechanism, reason = mechanisms.best(settings.epsilon, **sizes)
        tell(err, "best", reason)
    else:
        mechanism = job.make(settings.mechanism, epsilon=settings.epsilon, **sizes)
    tell(err, "mechanism", str(mechanism))
    clients = whole("clients", settings.clients)
    if settings.engine == "ray":
        found = job.simulate_on_ray(mechanism, clients, settings.seed, settings.address)
    else:
        found = job.simulate(mechanism, clients, settings.level, settings.seed)
    tell(
        err,
        "speed",
        f"{found.clients:,} clients in {found.seconds:.3g} s, {found.clients_per_second:,.0f} a "
        "second",
    )
    tell(
        err,
        "error",
        f"mean square {found.mse:.6g}, predicted {found.predicted_mse:.6g}; bias "
        f"{found.bias_z:+.2f} standard errors",
    )
    return asdict(found)


def _check_engine(settings: Simulate) -> None:
    """Refuse settings that belong to another engine."""
    if settings.engine == "ray" and (settings.level != "message" or settings.processes > 1):
        raise ValueError(
            "Expected --level message and one process with --engine ray, got --level "
            f"{settings.level} and --processes {settings.processes}; leave --engine out."
        )
    if settings.engine == "local" and settings.address is not None:
        raise ValueError(
            f"Expected no --address with --engine local, got --address {settings.address}; pass "
            "--engine ray to simulate on a cluster."
        )
