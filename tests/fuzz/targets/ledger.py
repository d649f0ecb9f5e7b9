"""`Ledger.open` and `remaining`: a changed file is refused, or leaves no more than the truth."""

import functools
from pathlib import Path

from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Ledger
from tests.fuzz import workplace

DATA = "sha256:of-some-records"


def released(epsilon, delta=0.0):
    return Guarantee(epsilon, delta, "replace-one", "central", (Pure(epsilon),), sampler="release")


def _written(path, torn):
    """Write a ledger with a line of every kind.

    Return what remains after each line, by its hash.
    """
    remains = {}
    ledger = Ledger.create(path, DATA, 2, "0.01")

    def cut():
        if torn:
            with path.open("ab") as file:
                file.write(b'{"delta":"1/500","epsi')
            ledger.repair("a copy was cut")

    steps = (
        lambda: None,
        lambda: ledger.charge(released(0.1, 0.001), "release 0"),
        lambda: ledger.charge(released(0.225, 0.001), "release 1"),
        lambda: ledger.mark_drawn("release 1", "ab" * 32),
        cut,
        lambda: ledger.raise_budget(3, "0.02", "decided"),
        lambda: ledger.charge(released(0.25, 0.002), "last"),
    )
    for step in steps:
        step()
        remains[ledger.head] = ledger.remaining
    return remains


@functools.cache
def _known():
    """Return the files of the seeds, and what remains after each of their lines, by its hash."""
    paths = [workplace() / "ledger0", workplace() / "ledger1"]
    remains = _written(paths[0], torn=False) | _written(paths[1], torn=True)
    return [path.read_bytes() for path in paths], remains


def seeds():
    return [{"ledger": data} for data in _known()[0]]


def _opened(path: Path):
    ledger = Ledger.open(path, DATA)
    left = ledger.remaining
    known = _known()[1]
    assert ledger.head in known, "a line was accepted that nobody wrote"
    truth = known[ledger.head]
    assert left.epsilon <= truth.epsilon, "epsilon came back"
    assert left.delta <= truth.delta, "delta came back"
    data = path.read_bytes()
    whole = next((seed for seed in _known()[0] if seed.startswith(data) and len(data)), None)
    if whole and not data.endswith(b"\n"):
        path.write_bytes(whole[: whole.find(b"\n", len(data)) + 1])
        truth = Ledger.open(path, DATA).remaining
        assert left.epsilon <= truth.epsilon, "the cut line's epsilon came back"
        assert left.delta <= truth.delta, "the cut line's delta came back"
    return ledger.entries()


def readers(folder: Path):
    path = folder / "ledger"

    def charged():
        ledger = Ledger.open(path, DATA)
        before = ledger.remaining
        ledger.charge(released(0.01), "one more")
        assert ledger.remaining.epsilon < before.epsilon, "a charge that nobody can read"

    return [lambda: _opened(path), charged]
