"""A comparison runs every cell once, whatever happens to others, and says the same numbers on
the page, in Markdown and in JSON.
"""

import html.parser
import json
import re
import statistics
from dataclasses import replace
from pathlib import Path

import jax
import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from rknn_jax import data, labelers, trust
from rknn_jax.federation import wire
from rknn_jax.labelers import _vote_mechanism, rknn
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.privacy.events import SampledGaussian
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.report.text import epsilon_text
from rknn_jax.representations import pca
from tests import tiny
from tests.test_distill import load_all, small_runs  # noqa: F401 (a fixture)
from train import distill, report, run_folder, stages, sweep
from train.compare import by_hand, curves, measure, sections
from train.compare import plan as planning
from train.compare.methods import digits, mnist, others
from train.compare.plan import Config
from train.compare.run import main
from train.environment import environment
from train.experiment import Experiment, plain_settings
from train.json_files import append_jsonl, write_json
from train.papers import Claim
from train.papers.claims import claims
from train.papers.published import PUBLISHED
from train.truth import by_hand as by_hand_labels

BASE = Config(
    methods=("rknn-central", "rknn-local", "noisy-sgd"), seeds=(0, 1, 3), student="linear"
)
CLASSES = 10


def accuracy(experiment):
    """An accuracy that tells the cell."""
    labeler = 0.1 * (experiment.labeler.name == "rknn") + 0.05 * (
        experiment.labeler.trust == "local"
    )
    return 0.6 + labeler + 0.01 * min(experiment.epsilon, 8.0) + 0.002 * experiment.seed**2


def fabricated(experiment, prepared=None):
    """Write what a run of `train.distill` leaves behind, with accuracies of `accuracy`."""
    folder = run_folder.make_folder(experiment)
    told = {
        "resolved_queries": 40,
        "classes": [str(number) for number in range(CLASSES)],
    }
    write_json(folder / "config.json", plain_settings(experiment) | told | environment())
    sampled = SampledGaussian(3.0, 10, sampling_prob=0.1, replaced=True, opposite=True)
    events = (sampled,) if experiment.labeler.name == "noisy_sgd" else ()
    guarantee = Guarantee(
        experiment.epsilon * 0.999,
        1e-5,
        "replace-one",
        experiment.labeler.trust,
        events,
        accountant="PLD",
    )
    right = accuracy(experiment)
    student = experiment.student is not None
    write_json(
        folder / "result.json",
        {
            "label_accuracy": right,
            "model_test_accuracy": right - 0.01 if experiment.labeler.trains else None,
        }
        | {
            "test_accuracy": right - 0.02 if student else None,
            "measured": {"right": right + 0.01} if experiment.check_share else None,
            "seconds": 5.0 + experiment.seed,
            "seed": experiment.seed,
        }
        | {
            "epsilon": guarantee.epsilon,
            "delta": 1e-5,
            "relation": "replace-one",
            "trust": experiment.labeler.trust,
        }
        | {"interrupted": False, "num_private": 1000, "num_units": 1000},
    )
    write_json(
        folder / "privacy.json",
        {
            "whole": guarantee.asdict(),
            "rounds": [],
            "accountants": {},
            "covers": [],
            "does_not_cover": [],
        },
    )
    if student:
        append_jsonl(folder / "metrics.jsonl", {"seconds": 2.0, "epoch": 1})
    zeros = np.zeros(40, np.int64)
    counts = np.ones((40, CLASSES), np.float32)
    asked = {"public_index": zeros, "round": zeros, "label": zeros, "size": zeros}
    np.savez(
        folder / "queries.npz",
        image=np.zeros((40, 8, 8, 1), np.uint8),
        noisy_counts=counts,
        stddev=counts,
        **asked,
    )
    np.savez(folder / "labels.npz", label=zeros, query=zeros)
    return folder


class Ran(list):
    """`distill.main` of fabricated runs, which remembers what it ran and stops or fails where it
    is told.
    """

    def __init__(self, stop_after=None, fail=None):
        self.stop_after = stop_after
        self.fail = fail

    def __call__(self, experiment, prepared=None, again=False):
        if len(self) == self.stop_after:
            raise KeyboardInterrupt
        self.append(str(experiment.out))
        if self.fail and self.fail in str(experiment.out):
            told = plain_settings(experiment)
            write_json(run_folder.make_folder(experiment) / "config.json", told)
            raise RuntimeError("no such luck")
        return fabricated(experiment, prepared)


def run(monkeypatch, config, **how):
    ran = Ran(**how)
    named = {"10": 0.5, "100": 0.6}
    monkeypatch.setattr(by_hand, "_measured", lambda experiment, prepared: named)
    monkeypatch.setattr(distill, "main", ran)
    return main(config), ran


class Tables(html.parser.HTMLParser):
    """The cells of a page's tables, and whatever its tags refer to."""

    def __init__(self, text):
        super().__init__()
        self.rows = []
        self.refers = []
        self.tags = set()
        self._cell = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.refers += [
            value
            for name, value in attributes
            if name.split(":")[-1] in ("src", "href", "srcset", "data", "action", "poster")
        ]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._cell = ""

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.rows[-1].append(self._cell)
            self._cell = None


def told(folder, name):
    return (folder / f"compare.{name}").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished comparison."""
    out = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        found, _ = run(patch, replace(BASE, out=out, epsilons=(0.1, 1.0, float("inf"))))
    return out, found


@pytest.mark.long
def test_a_comparison_has_a_column_of_what_was_measured_if_records_check(whole, tmp_path):
    _, plain = whole
    with pytest.MonkeyPatch.context() as patch:
        config = replace(BASE, out=tmp_path, epsilons=(1.0,), check_share=0.05)
        found, _ = run(patch, config)
    assert "--check-share 0.05" in found["command"]
    assert "check-share" not in plain["command"]
    for row in found["rows"]:
        right = row["label_accuracy"]["mean"] + 0.01
        assert row["measured"]["mean"] == pytest.approx(right)
        assert f"| {sections.share(row['measured'])} |" in told(tmp_path, "md")
    assert "| measured |" in told(tmp_path, "md")
    assert all(row["measured"] is None for row in plain["rows"])
    for text in (told(whole[0], "md"), told(whole[0], "html")):
        assert "Measured:" not in text
    assert all(told["check_share"] == 0.05 for told in found["settings"].values())
    assert all("check_share" not in told for told in plain["settings"].values())


@pytest.mark.parametrize("plan", [mnist, digits])
def test_no_labeler_trust_or_seller_of_labels_is_forgotten(plan):
    methods = plan().methods
    assert {method.labeler.name for method in methods.values()} == set(labelers.names())
    assert {method.trust for method in methods.values()} == set(
        trust.names(lambda model: model.labels)
    )
    assert {
        method.changes["buy"].select for method in methods.values() if method.kind == "buy"
    } == {"diverse_public", "near_private"}
    assert list(methods) == list(mnist().methods)
    assert {method.kind for method in methods.values()} == set(curves.COLOURS)
    alone = {name.replace("_", "-") for name in labelers.names()}
    trusting = {f"rknn-{name.replace('_', '-')}" for name in trust.names(lambda one: one.labels)}
    assert others({}, (1.0,)).keys() == alone | trusting
    assert all(set(method.students) <= set(method.epsilons) for method in methods.values())


@pytest.mark.parametrize("dataset", ["mnist", "digits"])
def test_all_cells_have_one_delta_relation_and_splits_and_cheap_ones_come_first(dataset):
    chosen, cells = planning.plan(Config(dataset=dataset))
    experiments = [cell.experiment for cell in cells]
    assert {(one.delta, one.relation, one.dataset) for one in experiments} == {
        (1e-5, "replace-one", dataset)
    }
    assert {one.seed for one in experiments} == set(chosen.seeds)
    assert len({one.out for one in experiments}) == len(experiments)
    groups = [planning.group(chosen, cell)[:2] for cell in cells]
    assert groups == sorted(groups)
    assert any(
        cell.epsilon == float("inf") and cell.experiment.student is not None for cell in cells
    ), "a ceiling"
    if dataset == "mnist":
        students = {
            cell.epsilon
            for cell in cells
            if cell.method == "rknn-central" and cell.experiment.student is not None
        }
        assert {row.epsilon for row in PUBLISHED["mnist"]} <= students, "every point of Table 1"


def test_persons_are_the_unit_of_every_cell():
    chosen, cells = planning.plan(Config(dataset="mnist", unit="person"))
    assert {cell.experiment.unit for cell in cells} == {"person"}
    assert {cell.experiment.labeler_of_round().unit for cell in cells} == {"person"}
    assert set(planning.plan(Config(dataset="mnist"))[0].methods) - set(chosen.methods) == {
        "near-private"
    }
    assert Config(unit="person").folder.name == "compare-digits-person"
    for name in chosen.methods:
        assert (
            planning.settings_of(Config("mnist", unit="person"), chosen, name)["unit"] == "person"
        )
    with pytest.raises(ValueError, match="unit=person, got dataset=digits"):
        planning.plan(Config(unit="person"))


@pytest.mark.parametrize("share", [0.05, "auto"])
def test_as_many_records_check_in_every_cell_as_were_asked_for(share):
    chosen, cells = planning.plan(Config(check_share=share))
    assert {cell.experiment.check_share for cell in cells} == {share}
    for name in chosen.methods:
        told = planning.settings_of(Config(check_share=share), chosen, name)
        assert told["check_share"] == share


@pytest.mark.long
def test_stopped_it_goes_on_and_runs_nothing_twice(tmp_path, monkeypatch):
    config = replace(BASE, out=tmp_path, epsilons=(0.1, 1.0))
    with pytest.raises(KeyboardInterrupt) as stopped:
        run(monkeypatch, config, stop_after=4)
    assert stopped.value.__notes__ == ["4 of 18 runs are done"]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/*")}
    first = json.loads(told(tmp_path, "json"))
    assert (first["measured"], first["runs"]) == (4, 18)
    assert "4 of 18 runs" in told(tmp_path, "html")
    assert "- noisy SGD, linear head, ε = 1: 3 of 3 runs" in told(tmp_path, "md")
    killed = tmp_path / "rknn-local" / "epsilon=0.1-seed=0"  # in the middle of a run
    fabricated(
        next(cell.experiment for cell in planning.plan(config)[1] if cell.experiment.out == killed)
    )
    (killed / "result.json").unlink()
    found, ran = run(monkeypatch, config)
    assert len(ran) == len(set(ran)) == 14
    assert str(killed) in ran
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (found["measured"], found["failed"]) == (18, {})
    assert "Not yet measured" not in told(tmp_path, "md")
    again, ran = run(monkeypatch, config)
    assert not ran
    assert again["rows"] == found["rows"]


def test_a_cell_of_other_settings_is_refused_before_anything_is_run(tmp_path, monkeypatch):
    config = replace(BASE, out=tmp_path, epsilons=(1.0,))
    run(monkeypatch, replace(config, methods=("noisy-sgd",)))
    before = {path: path.read_bytes() for path in tmp_path.glob("**/*") if path.is_file()}
    ran = Ran()
    monkeypatch.setattr(distill, "main", ran)
    with pytest.raises(
        ValueError,
        match=r"noisy-sgd/epsilon=1-seed=0 holds a run of other settings: noise_seed=None for 7",
    ):
        main(replace(config, noise_seed=7))
    assert not ran
    assert {path: path.read_bytes() for path in tmp_path.glob("**/*") if path.is_file()} == before


@pytest.mark.long
def test_a_cell_that_fails_loses_no_other_and_is_tried_again(tmp_path, monkeypatch):
    config = replace(BASE, out=tmp_path, epsilons=(1.0,))
    found, ran = run(monkeypatch, config, fail="rknn-local/epsilon=1-seed=1")
    assert len(ran) == 9
    assert found["measured"] == 8
    assert found["failed"] == {"rknn-local, epsilon 1, seed 1": "RuntimeError: no such luck"}
    for name in ("html", "md", "json"):
        assert "RuntimeError: no such luck" in told(tmp_path, name)
    [row] = [row for row in found["rows"] if row["method"] == "rknn-local"]
    assert (row["seeds"], row["runs"]) == ([0, 3], 3)
    assert "2 of 3" in told(tmp_path, "md")
    found, ran = run(monkeypatch, config)
    assert len(ran) == 1
    assert (found["measured"], found["failed"]) == (9, {})


@pytest.mark.long
def test_a_comparison_begins_with_labels_by_hand(whole):
    out, found = whole
    assert [one["labels"] for one in found["by_hand"]] == [10, 100]
    assert [one["label_accuracy"]["mean"] for one in found["by_hand"]] == [0.5, 0.6]
    assert len(list(out.glob("by-hand-seed=*.json"))) == 3
    for text in (told(out, "html"), told(out, "md")):
        by_hand_first = text.index("10 labels by hand, with no private record, get 50.00%")
        assert by_hand_first < text.index("Table 1, rebuilt")
    best = max(
        (row for row in found["rows"] if row["epsilon"] == 1.0),
        key=lambda row: row["label_accuracy"]["mean"],
    )
    assert f"At ε = 1 the best method is {best['title']}" in told(out, "md")


def test_labels_by_hand_of_another_data_set_are_not_taken_for_those_of_this_one(
    tmp_path, monkeypatch
):
    """A page of MNIST had those of digits, which a comparison in the same folder had left."""
    measured = []

    def measure(experiment, prepared):
        measured.append(experiment.dataset)
        return {"10": len(measured) / 10}

    monkeypatch.setattr(by_hand, "_measured", measure)
    for dataset in ("digits", "mnist", "mnist"):
        config = Config(dataset=dataset, out=tmp_path)
        [row] = by_hand.rows(config, (0,), None)
    assert (measured, row["label_accuracy"]["mean"]) == (["digits", "mnist"], 0.2)


@pytest.mark.long
def test_labels_by_hand_are_those_of_true_classes_of_few_records():
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=300)
    features = (10 * np.eye(3)[truth] + rng.normal(size=(300, 3))).astype(np.float32)
    labels = by_hand_labels(jax.random.key(0), features, truth, 3, 3)
    np.testing.assert_array_equal(labels, truth)
    wrong = by_hand_labels(jax.random.key(0), features, (truth + 1) % 3, 3, 3)
    np.testing.assert_array_equal(wrong, (truth + 1) % 3)


@pytest.mark.long
def test_means_and_deviations_are_those_of_the_runs(whole):
    out, found = whole
    assert len(found["rows"]) == 9
    for row in found["rows"]:
        folders = [
            out / row["method"] / f"epsilon={float(row['epsilon']):g}-seed={seed}"
            for seed in (0, 1, 3)
        ]
        results = [json.loads((folder / "result.json").read_text()) for folder in folders]
        for name in measure.ACCURACIES:
            values = [result[name] for result in results]
            if None in values:
                assert row[name] is None
            else:
                assert row[name] == {
                    "mean": statistics.mean(values),
                    "stddev": statistics.stdev(values),
                    "values": values,
                }
        assert (row["seeds"], row["guarantee"]["delta"]) == ([0, 1, 3], 1e-5)
    for told_of in found["costs"]:
        seconds = [
            told_of[name] for name in ("labels_seconds", "longest_seconds", "student_seconds")
        ]
        assert seconds == [4.0, 6.0, 2.0], "5 + seed seconds, 2 of them the student's"
        assert told_of["runs"] == 9
    assert (found["rows"][0]["model_test_accuracy"] is None) == (
        found["rows"][0]["method"] != "noisy-sgd"
    )


def test_bands_are_one_standard_deviation(whole):
    _, found = whole
    points = curves.curves(found["rows"], "told")
    assert set(points) == {"reverse k-NN, central", "reverse k-NN, local", "noisy SGD, linear head"}
    [row] = [row for row in found["rows"] if (row["method"], row["epsilon"]) == ("noisy-sgd", 1.0)]
    assert row["told"] == "model_test_accuracy", (
        "the network, which its paper tells, and not its student"
    )
    mean, spread = (row["model_test_accuracy"][name] for name in ("mean", "stddev"))
    assert points["noisy SGD, linear head"][1] == (1.0, mean, spread)
    with matplotlib.rc_context():
        axes = Figure().subplots()
        curves.draw([row], "told", "accuracy", axes)
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((mean - spread, mean + spread))


def test_the_page_markdown_and_json_say_the_same(whole):
    out, found = whole
    assert json.loads(told(out, "json"))["rows"] == found["rows"]
    assert "Infinity" not in told(out, "json"), "no number of JSON"
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in told(out, "md").splitlines()
        if line.startswith("|")
    ]
    lines = [line for line in lines if set(line) != {"---"}]
    assert Tables(told(out, "html")).rows == lines
    for row in found["rows"]:
        [line] = [
            line
            for line in lines
            if len(line) == 8
            and line[0] == row["title"]
            and line[2] == epsilon_text(row["epsilon"])
        ]
        shown = [row["label_accuracy"], row["model_test_accuracy"], row["test_accuracy"]]
        for cell, value in zip(line[5:], shown, strict=True):
            assert cell == (
                "–"
                if value is None
                else f"{100 * value['mean']:.2f}% ± {100 * value['stddev']:.2f}"
            )


def test_the_page_loads_nothing_and_has_what_it_needs(whole):
    out, found = whole
    page = told(out, "html")
    tables = Tables(page)
    assert all(value.startswith("#") for value in tables.refers), "of a chart's own parts"
    assert not tables.tags & {"script", "link", "iframe", "img", "object", "embed"}
    assert not re.search(r"url\((?!#)|@import", page)
    assert page.count("<svg") == 2
    [machine] = found["machines"]
    for words in (
        machine["device"],
        machine["versions"]["jax"],
        found["command"],
        "seeds 0, 1, 3",
        *sections.NOT_COVERED,
    ):
        assert words in page.replace("&#39;", "'")
    for row in found["rows"]:
        assert row["statement"].replace("'", "&#39;") in page


@pytest.mark.long
def test_what_choosing_labels_costs_is_in_the_epsilon_of_the_row(tmp_path, monkeypatch):
    found, _ = run(
        monkeypatch,
        replace(
            BASE,
            out=tmp_path,
            epsilons=(1.0,),
            seeds=(0,),
            methods=("near-private", "diverse-public"),
        ),
    )
    path = tmp_path / "near-private" / "epsilon=1-seed=0" / "privacy.json"
    privacy = json.loads(path.read_text())
    privacy["whole"]["epsilon"] = 1.5
    path.write_text(json.dumps(privacy))
    again, _ = run(
        monkeypatch,
        replace(
            BASE,
            out=tmp_path,
            epsilons=(1.0,),
            seeds=(0,),
            methods=("near-private", "diverse-public"),
        ),
    )
    assert [row["epsilon"] for row in found["rows"]] == [1.0, 1.0]
    assert [row["epsilon"] for row in again["rows"]] == [1.0, 1.5]
    assert "| NearPrivate, 200 labels bought | central | 1.5 |" in told(tmp_path, "md")


def test_a_row_costs_what_its_dearest_run_does_and_no_less_than_was_asked():
    def measured(epsilon):
        whole = Guarantee(epsilon, 1e-5, "replace-one", "central", ()).asdict()
        result = dict.fromkeys(measure.ACCURACIES, 0.5) | {"seed": 0, "trust": "central"}
        result |= {name: whole[name] for name in ("epsilon", "delta", "relation")}
        return measure.Measured(result, whole, 1, student_seconds=0.0, where={}, date="")

    for costs, epsilon in (((0.9, 1.5, 1.2), 1.5), ((0.9, 0.8), 1.0), ((), 1.0)):
        told = measure.joined(1.0, [measured(cost) for cost in costs])
        assert told["epsilon"] == epsilon
        assert costs == () or told["guarantee"]["epsilon"] == max(costs)


@pytest.mark.long
def test_one_seed_has_no_deviation(tmp_path, monkeypatch):
    found, _ = run(
        monkeypatch,
        replace(BASE, out=tmp_path, epsilons=(1.0,), seeds=(3,), methods=("rknn-central",)),
    )
    assert found["rows"][0]["label_accuracy"]["stddev"] is None
    assert sections.share(found["rows"][0]["label_accuracy"]) == "72.80%"
    assert curves.curves(found["rows"], None) == {
        "reverse k-NN, central": [(1.0, pytest.approx(0.728), 0.0)]
    }


@pytest.mark.long
def test_claims_cost_what_the_accountants_say():
    accountants = json.loads(
        (Path(__file__).parents[1] / "benchmarks/results/accountants.json").read_text()
    )["results"]["stated"]
    printed = {row["name"]: row for row in accountants}
    expected = {
        "Private-kNN (Zhu et al. 2020)": printed["Private-kNN, MNIST"]["PLD, replace-one"],
        "PATE, Confident-GNMax (Papernot et al. 2018)": printed["Confident-GNMax, MNIST"]["PLD"],
        "PATE, LNMax (Papernot et al. 2017)": printed["LNMax, MNIST"]["PLD"],
    }
    made = claims("mnist")
    found = {claim.system: claim.recomputed() for claim in made if claim.system in expected}
    assert found == pytest.approx(expected, rel=1e-4)
    assert all(claim.epsilon < found[claim.system] for claim in made if claim.system in found), (
        "all three claim too little"
    )
    for claim in made:
        if claim.method == "rknn-central":
            assert claim.recomputed() == pytest.approx(claim.epsilon), (
                "Laplace noise of 2k/epsilon holds what it says"
            )
        if claim.method == "dpdfd":
            assert claim.recomputed() > 1e4 * claim.epsilon
        assert claim.differs
        assert claim.method in mnist().methods


def row(epsilon, accuracy):
    values = {"mean": accuracy, "stddev": None, "values": [accuracy]}
    about = {"method": "private-knn", "told": "test_accuracy", "epsilon": epsilon}
    return about | {"test_accuracy": accuracy and values, "label_accuracy": values}


@pytest.mark.parametrize(
    ("claimed", "costs", "expected"),
    [
        (0.5, 0.9, 0.4),
        (0.5, 2.0, 0.4),
        (1.5, 2.0, 1.0),
        (0.5, 0.3, 0.2),
        (0.1, 0.1, None),
        (float("inf"), None, "infinity"),
    ],
)
def test_beside_a_claim_stands_what_costs_no_more(claimed, costs, expected):
    rows = [
        row(0.2, 0.5),
        row(0.4, 0.6),
        row(0.85, None),
        row(1.0, 0.7),
        row(3.0, 0.8),
        row("infinity", 0.9),
    ]
    claim = Claim(
        "private-knn",
        "theirs",
        claimed,
        1e-5,
        None,
        0.9,
        None if costs is None else lambda: costs,
        "all",
    )
    ours = measure.beside(claim, rows)["ours"]
    assert (ours and ours["epsilon"]) == expected


def test_bytes_are_those_of_votes_messages_or_the_whole_record(tmp_path):
    for changes, expected in (
        ({}, 2),  # 400 cells, 9 bits
        ({"num_neighbors": 3}, 4),
        ({"labeler": NoisySGD()}, 65),
        ({"trust": "local", "mechanism": "subset_selection"}, 51),
        ({"trust": "shuffle"}, 9),
    ):
        experiment = tiny.changed(
            Experiment(),
            epsilon=1.0,
            delta=1e-5,
            student=None,
            out=tmp_path / str(len(list(tmp_path.iterdir()))),
            **changes,
        )
        run = report.read(fabricated(experiment))
        assert measure.bytes_sent(run, experiment) == expected
        if experiment.labeler.trust != "central":
            assert expected == wire.message_bytes(
                _vote_mechanism.calibrated(40, CLASSES, 1000, experiment.labeler_of_round())
            )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"methods": ("rknn",)}, "methods among rknn-central, .*got rknn"),
        ({"methods": ("rknn-central",) * 2}, "each of methods once, got rknn-central rknn-central"),
        ({"seeds": (0, 1, 0)}, "each of seeds once, got 0 1 0"),
        ({"epsilons": (-1.0,)}, "epsilon > 0"),
        ({"student": "x"}, "model to"),
    ],
)
def test_bad_input_is_named_before_anything_is_made(tmp_path, config, message):
    with pytest.raises(ValueError, match=message):
        main(replace(BASE, out=tmp_path / "new", **{"epsilons": (1.0,)} | config))
    assert not (tmp_path / "new").exists()


def test_as_many_representations_are_kept_as_there_are_splits(monkeypatch):
    fits = []
    monkeypatch.setattr(
        stages,
        "prepare",
        lambda experiment: fits.append(experiment.seed) or stages.Prepared(None, len, None),
    )
    prepared = sweep.sharing(2)
    for seed in (0, 1, 0, 1, 2, 1, 0):
        prepared(Experiment(seed=seed))
    assert fits == [0, 1, 2, 0], "the oldest one makes room"


def rows_of_runs(out, found):
    """The rows of cells that were run, each seen to say what its run folder says."""
    assert found["failed"] == {}
    for one in found["rows"]:
        folder = out / one["method"] / "epsilon=4-seed=1"
        result = json.loads((folder / "result.json").read_text())
        whole = json.loads((folder / "privacy.json").read_text())["whole"]
        assert one["label_accuracy"]["values"] == [result["label_accuracy"]]
        assert one["epsilon"] == 4.0
        assert 3.9 < one["guarantee"]["epsilon"] <= 4.0
        assert one["guarantee"] == {name: whole[name] for name in one["guarantee"]}
    return found["rows"]


REAL = Config(epsilons=(4.0,), seeds=(1,), student="none", noise_seed=0)


@pytest.mark.long
def test_a_real_cell_says_what_its_run_does(tmp_path, monkeypatch):
    """A run of few records: labels are better than chance, and nothing is made up."""
    plan = digits()
    labeler = rknn.ReverseKNN(num_neighbors=2)
    own = {"queries": 20, "labeler": labeler, "representation": pca.Config()}
    smaller = {name: one._replace(changes=own) for name, one in plan.methods.items()}
    monkeypatch.setattr(planning, "digits", lambda: plan._replace(methods=smaller))
    found = main(replace(REAL, methods=("rknn-central",), out=tmp_path))
    [row] = rows_of_runs(tmp_path, found)
    assert row["label_accuracy"]["mean"] > 0.6
    assert [one["bytes"] for one in found["costs"]] == [2], "2 cells of 200, 8 bits each"


@pytest.mark.slow
def test_real_cells_of_all_digits_label_well(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "load", load_all)
    found = main(replace(REAL, methods=("rknn-central", "noisy-sgd"), out=tmp_path))
    rows = rows_of_runs(tmp_path, found)
    assert all(row["label_accuracy"]["mean"] > 0.85 for row in rows)
    assert [one["bytes"] for one in found["costs"]] == [2, 65]
    assert rows[1]["model_test_accuracy"]["mean"] > 0.85


def test_a_method_takes_any_mechanism_of_its_trust_model():
    names = ("rknn-local", "rknn-local:subset_selection")
    chosen, cells = planning.plan(Config(methods=names, epsilons=(4.0,), seeds=(0,)))
    assert set(chosen.methods) == set(names)
    usual, other = (chosen.methods[name] for name in names)
    assert other.labeler == replace(usual.labeler, mechanism="subset_selection")
    assert other.title == f"{usual.title}, subset selection"
    assert len({cell.experiment.out for cell in cells}) == 2
    assert ":" not in "".join(str(cell.experiment.out) for cell in cells)
    with pytest.raises(ValueError, match="mechanism"):
        planning.plan(Config(methods=("rknn-local:discrete_laplace",)))
    with pytest.raises(ValueError, match="Expected methods among"):
        planning.plan(Config(methods=("pate:collision",)))
