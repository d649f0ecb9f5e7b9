"""Every audit of `rknn audit`: each mechanism and labeler, and the audits of docs/audit.md.

Where an audit knows a form with half the noise, its power is the rate at which it finds that.
"""

import datetime
import functools
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from benchmarks import _kept
from benchmarks._measure import save
from rknn_jax import labelers, mechanisms
from rknn_jax.cli.audit import run
from rknn_jax.cli.audit_settings import SIZES, Audit

SYSTEMS = {
    "ledger": Audit(1.0, ledger=True, delta=1e-5),
    "selection": Audit(1.0, selection=True, delta=1e-5),
    "selection, persons": Audit(1.0, selection=True, unit="person", delta=1e-5),
    "messages": Audit(1.0, federation="messages"),
    "messages, persons": Audit(1.0, federation="messages", unit="person", runs=200),
    "sum": Audit(1.0, federation="sum", delta=1e-5),
    "sum, persons": Audit(1.0, federation="sum", unit="person", delta=1e-5),
    "canaries": Audit(2.0, labeler="noisy_sgd", one_run=True),
    "release": Audit(1.0, release=True),
    "release, persons": Audit(1.0, release=True, unit="person"),
    "release, checked": Audit(1.0, release=True, check_share=0.5),
    "labeler rknn, persons": Audit(2.0, labeler="rknn", unit="person"),
}
SLOW = ("release", "labeler")


def audits() -> Iterator[tuple[str, Audit]]:
    """Yield the name and the settings of each audit, those of ten minutes last."""
    quick = [name for name in SYSTEMS if not name.startswith(SLOW)]
    yield from ((name, SYSTEMS[name]) for name in quick)
    for name in mechanisms.names():
        kind = mechanisms.named(name)
        if kind.trusts:
            square = getattr(kind, "query_for_each_class", False)  # of central ones
            queries = SIZES["classes" if square else "queries"]
            yield f"mechanism {name}", Audit(1.0, mechanism=name, queries=queries)
    released = Audit(1.0, mechanism="discrete_laplace", sampler="release")
    yield "mechanism discrete_laplace, exact noise", released
    for name in labelers.names():
        if not labelers.named(name).slow:
            yield f"labeler {name}", Audit(2.0, labeler=name)
    yield from ((name, one) for name, one in SYSTEMS.items() if name not in quick)


def measure(name: str, settings: Audit) -> dict[str, Any]:
    """Return the findings of an audit, its settings and its time."""
    start = time.perf_counter()
    told = run(settings)
    return {
        "name": name,
        "settings": asdict(settings),
        "claimed_epsilon": told["claimed_epsilon"],
        "lower_bound": told["lower_bound"],
        "broken": told["broken"],
        "power": told.get("power"),
        "runs": told.get("runs"),
        "games": told.get("games"),
        "seconds": time.perf_counter() - start,
        "date": datetime.date.today().isoformat(),
    }


def main() -> None:
    """Audit all, and write the results."""
    with _kept.parts("audit") as folder:
        rows = [
            _kept.part(folder, name, functools.partial(measure, name, settings))
            for name, settings in audits()
        ]
        save("audit", rows)


if __name__ == "__main__":
    main()
