"""Private sides of no, one and two units: whether there is a release must not depend on one."""

import itertools

import numpy as np
import pytest

from rknn_jax.privacy.ledger import Ledger
from rknn_jax.release import label, planning
from rknn_jax.release.settings import Settings
from tests.options import named_settings, with_options
from tests.test_empty_private import CLASSES, WAYS

SIDES = {
    "none": 0,
    "one": 1,
    "two": 2,
    "no label": 2,
    "no embedding": 2,
    "no person": 2,
    "a foreign label": 2,
}
UNITS = {"record": {}, "person": {"person": "who"}}


CASES = [*itertools.product(WAYS, UNITS, ("replace-one", "add-remove"))]
USUAL = ("discrete_laplace", "record", "add-remove")


@pytest.mark.parametrize(
    ("labeler", "unit", "relation"),
    [one if one == USUAL else pytest.param(*one, marks=pytest.mark.long) for one in CASES],
)
def test_a_release_of_few_units_is_one_like_any_other(
    labeler, unit, relation, tmp_path, monkeypatch
):
    """With half of them to check, every role may be one that nobody has."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("public.npz", embeddings=rng.normal(size=(40, 3)))
    settings = named_settings(
        Settings,
        "public.npz",
        "private.npz",
        0.5,
        classes=CLASSES,
        relation=relation,
        check_share=0.5,
        **WAYS[labeler],
        **UNITS[unit],
    )
    for number, (side, size) in enumerate(SIDES.items()):
        if not size and relation == "replace-one":
            continue
        rows = rng.normal(size=(size, 3))
        classes = np.full(size, {"no label": "", "a foreign label": "c"}.get(side, "b"))
        if labeler == "sets":
            classes = np.stack([classes, np.full(size, "")], axis=1)
        who = np.full(size, "" if side == "no person" else "anna")
        if side == "no embedding":
            rows[:] = np.nan
        np.savez("private.npz", embeddings=rows, labels=classes, who=who)
        folder = tmp_path / f"{number}"
        plan = planning.prepare(
            with_options(settings, out=folder, ledger=folder.with_suffix(".jsonl"))
        )
        done = label.release(plan)
        assert (folder / "privacy.json").exists(), side
        assert np.isfinite(done.probabilities).all(), side
        assert float(Ledger.open(folder.with_suffix(".jsonl")).spent.epsilon) == 0.5
