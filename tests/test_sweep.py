"""A sweep runs every combination once, goes on where it was stopped, and shares what was fitted
to public images.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rknn_jax.representations import pca, scan
from tests.test_distill import small_runs  # noqa: F401 (a fixture)
from train import commandline, distill, report, stages, sweep, truth
from train.experiment import Experiment

ARGUMENTS = [
    "--queries",
    "20",
    "--neighbors",
    "2",
    "--representation",
    "pca",
    "--student",
    "none",
    "--smoothing",
    "none",
]
VARIED = {"epsilon": ["0.1", "4"], "seed": ["0", "1"]}


@pytest.fixture(scope="module")
def fits():
    return []


@pytest.fixture(scope="module")
def swept(tmp_path_factory, fits, small_runs):  # noqa: F811
    """Stopped after its first run, and called again."""
    out = tmp_path_factory.mktemp("sweep")
    runs = []
    main = distill.main
    fit = pca.fit

    def stopped(*args, **named):
        if runs:
            raise KeyboardInterrupt
        runs.append(args)
        return main(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write", lambda folder: folder / "report.html")
        patch.setattr(truth, "not_covered", lambda *_: {})
        patch.setattr(pca, "fit", lambda *args: fits.append(1) or fit(*args))
        patch.setattr(distill, "main", stopped)
        with pytest.raises(KeyboardInterrupt):
            sweep.main(ARGUMENTS, out, VARIED)
        before = {path: path.stat().st_mtime_ns for path in out.glob("*/result.json")}
        stopped_run = out / "epsilon=4-seed=1"
        main(
            commandline.parsed(
                [*ARGUMENTS, "--epsilon", "4", "--seed", "1", "--out", str(stopped_run)]
            )
        )
        (stopped_run / "result.json").unlink()
        patch.setattr(distill, "main", main)
        rows = sweep.main(ARGUMENTS, out, VARIED)
    return out, rows, before


def test_runs_have_the_guarantee_of_the_worst_of_them():
    """It was that of the first, and who votes is a choice that changes the epsilon."""
    known = {"relation": "replace-one", "trust": "central", "seed": 0}
    runs = [{"epsilon": 3.9, "delta": 1e-5} | known, {"epsilon": 4.1, "delta": 1e-6} | known]
    found = sweep.summary(runs, ())["guarantee"]
    assert (found["epsilon"], found["delta"]) == (4.1, 1e-5)
    assert sweep.summary([*runs, runs[0] | {"epsilon": "inf"}], ())["guarantee"]["epsilon"] == "inf"


@pytest.mark.long
def test_every_combination_is_run_once_and_stopped_it_goes_on(swept):
    out, rows, before = swept
    assert len(before) == 1
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert len(list(out.glob("*/result.json"))) == 4
    assert [row["epsilon"] for row in rows] == ["0.1", "4"]


@pytest.mark.long
def test_runs_of_one_seed_share_their_representation(swept, fits):
    assert len(fits) == 4  # seed 0, the stopped run's own, then seed 0 and seed 1, two runs each


@pytest.mark.parametrize(
    ("changes", "shared"),
    [
        ({"epsilon": 2.0, "queries": 20}, True),
        ({"dataset": "mnist"}, False),
        ({"data_dir": Path("elsewhere")}, False),
        ({"representation": scan.Config()}, False),
        ({"representation_dir": Path("elsewhere")}, False),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else None,
)
def test_runs_share_what_they_would_prepare_alike(changes, shared, monkeypatch):
    monkeypatch.setattr(stages, "prepare", lambda experiment: stages.Prepared(None, len, None))
    prepared = sweep.sharing(2)
    one = Experiment(queries=10)
    assert (prepared(one) is prepared(replace(one, **changes))) == shared


@pytest.mark.parametrize("representation", [scan.Config(), pca.Config()])
def test_clusters_that_are_queries_are_those_of_runs_with_as_many(representation, monkeypatch):
    monkeypatch.setattr(stages, "prepare", lambda experiment: stages.Prepared(None, len, None))
    prepared = sweep.sharing(2)
    few, many = (Experiment(representation=representation, queries=count) for count in (10, 20))
    assert (prepared(few) is prepared(many)) != representation.asks


def test_a_folder_of_other_settings_is_neither_read_nor_touched(swept):
    out, _, _ = swept
    before = {path: path.stat().st_mtime_ns for path in out.glob("**/*")}
    with pytest.raises(ValueError, match=r"other settings: labeler.num_neighbors=2 for 3"):
        sweep.main([*ARGUMENTS, "--neighbors", "3"], out, VARIED)
    (out / "epsilon=4-seed=2").mkdir()
    (out / "epsilon=4-seed=2" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="other files"):
        sweep.main(ARGUMENTS, out, {"epsilon": ["4"], "seed": ["2"]})
    assert (out / "epsilon=4-seed=2" / "thesis.txt").read_text() == "mine"
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_rows_are_the_means_of_the_runs_own_results(swept):
    out, rows, _ = swept
    for row in rows:
        folders = [out / f"epsilon={row['epsilon']}-seed={seed}" for seed in (0, 1)]
        results = [json.loads((folder / "result.json").read_text()) for folder in folders]
        assert row["label_accuracy"]["values"] == [result["label_accuracy"] for result in results]
        assert row["label_accuracy"]["mean"] == pytest.approx(
            sum(row["label_accuracy"]["values"]) / 2
        )
        assert [result["epsilon"] for result in results] == [float(row["epsilon"])] * 2
        assert row["test_accuracy"] is None
        assert row["seeds"] == [0, 1]
        assert row["guarantee"] == {
            "epsilon": float(row["epsilon"]),
            "delta": 0.0,
            "relation": "replace-one",
            "trust": "central",
        }
    assert rows[1]["label_accuracy"]["mean"] > rows[0]["label_accuracy"]["mean"] + 0.1, (
        "less noise, better labels"
    )
    assert json.loads((out / "sweep.json").read_text())["rows"] == rows
    assert (out / "sweep.png").stat().st_size > 1000


def test_what_the_data_do_not_have_is_refused_before_the_first_run(tmp_path):
    with pytest.raises(ValueError, match="num_queries=5000"):
        sweep.main(ARGUMENTS, tmp_path, {"queries": ["20", "5000"]})
    with pytest.raises(ValueError, match="dataset=digits; use mnist"):
        sweep.main(ARGUMENTS, tmp_path, {"unit": ["record", "person"]})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "vary", ["nothing=1,2", "queries", "queries=10,,20", "out=a,b", "queries=10,10"]
)
def test_what_cannot_vary_is_named(vary, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["sweep", "--out", str(tmp_path), "--vary", vary])
    assert sweep.cli() == 2
    assert vary in capsys.readouterr().err
