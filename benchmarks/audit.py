"""Audits of every mechanism and labeler by `rknn audit`, and their power against half the noise."""

import time
from typing import Any

from benchmarks._measure import save
from rknn_jax import labelers, mechanisms
from rknn_jax.cli.audit import run
from rknn_jax.cli.audit_settings import Audit

AUDITS = (
    Audit(1.0, mechanism="discrete_laplace", sampler="release", runs=20_000),
    Audit(1.0, mechanism="discrete_laplace", sampler="release"),
    *(Audit(1.0, mechanism=name) for name in mechanisms.names() if mechanisms.named(name).trusts),
    *(Audit(2.0, labeler=name) for name in labelers.names() if not labelers.named(name).slow),
)


def measure(settings: Audit) -> dict[str, Any]:
    """Return the findings of an audit, and its time."""
    start = time.perf_counter()
    told = run(settings)
    names = (
        "claimed_epsilon",
        "delta",
        "lower_bound",
        "broken",
        "power",
        "runs",
        "games",
        "confidence",
    )
    kind = {
        "mechanism": settings.mechanism,
        "labeler": settings.labeler,
        "sampler": settings.sampler,
    }
    return kind | {name: told[name] for name in names} | {"seconds": time.perf_counter() - start}


if __name__ == "__main__":
    rows: list[dict[str, Any]] = []
    for settings in AUDITS:
        rows.append(measure(settings))
        save("audit", rows)
