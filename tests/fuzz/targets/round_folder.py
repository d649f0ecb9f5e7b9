"""`federation.round_folder` on the folder of a round that is gone on with."""

import functools
from pathlib import Path

import numpy as np

from rknn_jax.federation import round_folder
from rknn_jax.federation.request import Asked, Public
from tests.fuzz import npz
from tests.fuzz.targets.question import CLASSES, QUERIES, a_round

INDEX = np.arange(4)


@functools.cache
def _asked():
    return Asked(a_round().config, CLASSES, 4, "spectral", student="none")


def seeds():
    features = {"features": QUERIES, "index": INDEX, "cluster": INDEX, "size": INDEX}
    found = {"totals": np.arange(12), "num_clients": 5, "refused": 1}
    files = {
        "settings.json": round_folder._plain(_asked()).encode(),
        "question.bin": a_round().data,
        "public.npz": npz(compress=True, **features),
        "opened.json": b'{"opened": 1.5}',
        round_folder.SUM: npz(compress=True, **found),
    }
    return [files]


def readers(folder: Path):
    def tell(*_):
        pass

    def summed():
        found = round_folder.kept_sum(folder, a_round("binomial", "central", honest=3))
        return None if found is None else found.counts()

    def closes():
        return 0.0 + round_folder.closes_at(folder, 60.0)

    def prepared():
        round, queries = round_folder.prepare(folder, Public(QUERIES), _asked(), tell)
        assert len(round.queries) == len(queries.index)

    return [closes, summed, prepared]
