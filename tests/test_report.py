"""The report says what the run folder says, marks wrong queries and only these, and loads
nothing.
"""

import base64
import io
import json
import math
import re
import shlex
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from rknn_jax import bsvs
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.privacy import accounting
from rknn_jax.privacy.events import DiscreteLaplace, Gaussian
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.report.text import epsilon_text, percent
from rknn_jax.representations import spectral
from rknn_jax.representations.dti import Config as DTI
from rknn_jax.representations.scan import Config as SCAN
from rknn_jax.representations.self_trained import Config as SelfTrained
from rknn_jax.representations.simclr import Config as SimCLR
from rknn_jax.students import fit as students
from rknn_jax.students import supervised, uda
from tests.html_page import Page
from train import commandline, report
from train.experiment import Experiment, plain_settings
from train.report import figures
from train.report.__main__ import cli
from train.report.cards import bars
from train.report.folder import REQUIRED
from train.report.page import odds

HOSTILE = '<script>alert("1")</script>\'&$\\frac{'
CLASSES = 10


def fake_run(
    folder,
    *,
    epsilon=1.0,
    rounds=1,
    num_queries=40,
    dataset="digits",
    mechanism="discrete_laplace",
    colour=False,
    seed=0,
):
    """Write a run folder as train.distill does: digits clustered by their pixels, real votes,
    NumPy's noise.
    """
    key = np.random.default_rng(seed)
    pixels, truth = load_digits(return_X_y=True)
    public = pixels[:899]
    private = pixels[899:1348]
    experiment = Experiment(
        dataset=dataset,
        epsilon=epsilon,
        queries=num_queries,
        rounds=rounds,
        labeler=ReverseKNN(mechanism=mechanism),
        noise_seed=3,
    )
    scale = 2 * rounds / epsilon
    rows = [
        answer(key, public, private, truth[899:1348], num_queries, scale, mechanism, step)
        for step in range(rounds)
    ]
    queries = {
        name: np.concatenate([row[name] for row in rows]) for name in rows[0] if name != "cluster"
    }
    query = rows[-1]["cluster"] + (rounds - 1) * num_queries
    counts = np.stack(
        [
            np.bincount(truth[:899][query == row], minlength=CLASSES)
            for row in range(rounds * num_queries)
        ]
    )
    images = np.repeat(
        (public.reshape(-1, 8, 8, 1) * 15.9).astype(np.uint8), 3 if colour else 1, axis=3
    )
    queries |= {
        "image": images[queries["public_index"]],
        "true_label": np.where(
            counts.sum(axis=1) > 0, counts.argmax(axis=1), truth[queries["public_index"]]
        ),
        "size": counts.sum(axis=1),
        "probability": np.eye(CLASSES, dtype=np.float32)[queries["label"]],
    }
    label = queries["label"][query].astype(np.int32)
    probability = np.eye(CLASSES, dtype=np.float32)[label]
    np.savez(folder / "queries.npz", **queries)
    np.savez(
        folder / "labels.npz",
        label=label,
        query=query.astype(np.int32),
        probability=probability,
        true_label=truth[:899],
    )
    guarantees = [
        Guarantee(epsilon / rounds, 0.0, "replace-one", "central", (DiscreteLaplace(scale, 2),))
        for _ in range(rounds)
    ]
    whole = accounting.compose(guarantees, experiment.delta)
    accountants = accounting.epsilons(
        [event for one in guarantees for event in one.events], experiment.delta
    )
    write(
        folder / "privacy.json",
        {
            "whole": whole.asdict(),
            "rounds": [one.asdict() for one in guarantees],
            "accountants": accountants,
            "covers": ["the noisy counts", "the labels of the public records", "the student"],
            "does_not_cover": [
                "the number of private records, which replace-one takes as public",
                "settings chosen by looking at private data or at accuracies, such as this page's",
                "everything under not_covered_by_epsilon in result.json",
            ],
        },
    )
    sweep = [
        {"epsilon": e, "mean": 0.93 / (1 + 0.02 / e), "stddev": 0.02 / (1 + 20 * e), "draws": 10}
        for e in np.geomspace(0.001, 2, 11)
    ]
    accuracy = 0.96 - 0.6 * np.exp(-np.arange(20 * rounds) / 4)
    result = {
        "label_accuracy": float(np.mean(label == truth[:899])),
        "test_accuracy": float(accuracy[-1]),
        "epsilon": whole.epsilon,
        "delta": whole.delta,
        "relation": whole.relation,
        "trust": whole.trust,
        "seed": 42,
        "seconds": 41.7,
        "interrupted": False,
        "num_public": 899,
        "num_private": 449,
        "num_test": 449,
        "not_covered_by_epsilon": {
            "note": "Computed from the private votes without privacy.",
            "nonprivate_label_accuracy": 0.937,
            "label_accuracy_by_epsilon": sweep,
        },
    }
    write(folder / "result.json", result)
    settings = plain_settings(experiment)
    environment = {
        "python": "3.11.7",
        "versions": {"jax": "0.10.2", "numpy": "2.3.4"},
        "device": "cpu",
        "cores": 2,
        "date": "2026-11-21T00:00:00Z",
    }
    write(folder / "config.json", settings | {"resolved_queries": num_queries} | environment)
    lines = [
        {
            "round": i // 20,
            "epoch": i % 20 + 1,
            "epochs": 20,
            "loss": 1.0,
            "seconds": 1.5,
            "test_accuracy": float(value),
        }
        for i, value in enumerate(accuracy)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def answer(key, public, private, private_labels, num_queries, scale, mechanism, step):
    """Return one round's queries and what came back for them."""
    clusters = KMeans(num_queries, n_init=1, max_iter=20, random_state=step).fit(public)
    counts = np.zeros((num_queries, CLASSES))
    np.add.at(counts, (clusters.predict(private), private_labels), 1)
    noisy = counts + np.round(key.laplace(0, scale, counts.shape))
    stddev = np.full(counts.shape, math.sqrt(2) * scale)
    if mechanism == "permute_and_flip":
        noisy = np.eye(CLASSES)[noisy.argmax(axis=1)]
        stddev = np.zeros(counts.shape)
    return {
        "public_index": clusters.transform(public).argmin(axis=0),
        "round": np.full(num_queries, step),
        "label": noisy.argmax(axis=1).astype(np.int32),
        "noisy_counts": noisy.astype(np.float32),
        "stddev": stddev.astype(np.float32),
        "cluster": clusters.labels_,
    }


def write(path, value):
    path.write_text(json.dumps(value))


def page_of(folder):
    return Page(report.write(folder).read_text(encoding="utf-8"))


def change(path, **values):
    """Replace values of a JSON file or arrays of an npz file; None takes one away."""
    arrays = path.suffix == ".npz"
    content = dict(np.load(path)) if arrays else json.loads(path.read_text())
    content = {
        name: value
        for name, value in (content | values).items()
        if values.get(name, value) is not None
    }
    if arrays:
        np.savez(path, **content)
    else:
        write(path, content)


def truth_of(folder):
    queries = dict(np.load(folder / "queries.npz"))
    return queries, np.flatnonzero(queries["label"] != queries["true_label"])


def drawn(monkeypatch, name, run):
    """Return the axes that a chart draws, as data rather than as a picture."""
    axes = Figure().subplots()
    monkeypatch.setattr(figures, "chart", lambda _, draw: draw(axes) or "")
    getattr(figures, name)(run)
    return axes


def lines_of(axes):
    return {
        line.get_label(): (np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))
        for line in axes.lines
    }


@pytest.fixture
def with_pictures():
    """Ask for charts as pictures, which take most of the time that a page takes."""


@pytest.fixture(autouse=True)
def charts(request, monkeypatch):
    """Draw charts into axes, as ever, but make no pictures of these, unless a test asks for
    `with_pictures`.
    """

    def undrawn(name, draw):
        draw(Figure().subplots())
        return f"the chart {name}"

    if "with_pictures" not in request.fixturenames:
        monkeypatch.setattr(figures, "chart", undrawn)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return fake_run(tmp_path_factory.mktemp("run"))


@pytest.fixture
def folder(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "run"))


def test_top_shows_the_three_numbers_of_result_json(folder):
    page = page_of(folder)
    result = json.loads((folder / "result.json").read_text())
    labels, student, privacy = (e[2] for e in page.find("div", class_="tile"))
    assert f"{100 * result['label_accuracy']:.1f}%" in labels
    assert f"{round(result['label_accuracy'] * 899)} of 899" in labels
    assert f"{100 * result['test_accuracy']:.1f}%" in student
    assert "ε = 1" in privacy
    assert "pure, replace-one, central" in privacy
    title = page.find("title")[0][2]
    assert f"{100 * result['label_accuracy']:.1f}%" in title
    assert "ε = 1 (replace-one)" in title


def test_privacy_is_said_in_the_guarantees_words_with_what_it_covers_and_every_accountant(tmp_path):
    page = page_of(fake_run(tmp_path, rounds=2))
    privacy = json.loads((tmp_path / "privacy.json").read_text())
    change(
        tmp_path / "privacy.json", accountants={"pure": 1.0, "RDP": 0.87654321, "PLD": "infinity"}
    )
    again = page_of(tmp_path).text
    assert privacy["whole"]["statement"] in page.text
    assert "simulation, not a private release" in page.text
    assert all(entry in page.text for entry in privacy["covers"] + privacy["does_not_cover"])
    assert "Round by round: ε = 0.5; ε = 0.5." in page.text
    assert "0.8766" in again  # rounded up
    assert "∞" in again


@pytest.mark.parametrize(
    ("epsilon", "shown"),
    [(0.1, "0.1"), (0.77230001, "0.7724"), (1.0, "1"), ("infinity", "∞"), (math.inf, "∞")],
)
def test_epsilon_is_never_shown_smaller_than_it_is(epsilon, shown):
    assert epsilon_text(epsilon) == shown


@pytest.mark.parametrize(
    ("accuracy", "shown"),
    [(0.97, "97.0%"), (0.99996, "99.9%"), (1.0, "100.0%"), (0.0, "0.0%"), (None, "not known")],
)
def test_only_a_perfect_accuracy_is_shown_as_100_percent(accuracy, shown):
    assert percent(accuracy) == shown


@pytest.mark.parametrize(
    ("guarantee", "words"),
    [
        (
            {"epsilon": 0.1, "delta": 0.0, "relation": "replace-one"},
            "two contents of that one by a factor of at most 1.106 (e to the ε).",
        ),
        (
            {"epsilon": 1, "delta": 1e-5, "relation": "add-remove"},
            "whether that one took part by a factor of at most 2.719 (e to the ε), but",
        ),
    ],
)
def test_odds_put_epsilon_in_words_rounded_up(guarantee, words):
    assert words in odds(guarantee)


def test_no_odds_are_claimed_without_a_guarantee():
    assert odds({"epsilon": "infinity", "delta": 0.0}) is None


def test_wrong_queries_are_marked_and_only_these(folder):
    queries, wrong = truth_of(folder)
    page = page_of(folder)
    assert 0 < len(wrong) < 40
    assert sorted(page.shown_queries()) == list(range(40))
    assert sorted(page.wrong_queries()) == wrong.tolist()
    for _, attributes, text in page.find("li", class_="query"):
        row = int(attributes["id"][1:])
        assert ("✗ is" in text) == (row in wrong)
        if row in wrong:
            assert f"✗ is {queries['true_label'][row]}" in text
        assert f"{round(float(queries['noisy_counts'][row, queries['label'][row]]))} vote" in text
        assert f"{queries['size'][row]} record" in text


def test_many_queries_show_wrong_ones_and_then_those_of_smallest_gap(tmp_path):
    page = page_of(fake_run(tmp_path, num_queries=100, epsilon=8))
    queries, wrong = truth_of(tmp_path)
    top = np.sort(queries["noisy_counts"], axis=1)
    gap = top[:, -1] - top[:, -2]
    shown = page.shown_queries()
    right = np.setdiff1d(shown, wrong)
    assert len(shown) == 60
    assert 0 < len(wrong) < 60
    assert sorted(shown[: len(wrong)]) == wrong.tolist() == sorted(page.wrong_queries())
    assert gap[right].max() <= np.delete(gap, shown).min()
    assert "Shown: 60 of 100" in page.text


@pytest.mark.long
def test_pictures_are_the_queries_own(tmp_path):
    for colour in (False, True):
        page = page_of(fake_run(tmp_path, colour=colour))
        queries, _ = truth_of(tmp_path)
        pictures = [e[1]["src"].removeprefix("data:image/png;base64,") for e in page.find("img")]
        for row, encoded in zip(page.shown_queries(), pictures, strict=True):
            shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))
            np.testing.assert_array_equal(shown.reshape(8, 8, -1), queries["image"][row])


def test_bars_are_as_high_as_the_noisy_counts_and_error_bars_as_the_noise():
    drawn = bars(np.array([30.0, -10.0, 5.0]), np.array([5.0, 5.0, 5.0]), label=0, truth=2)
    unit = 40 / (35 + 15)  # from the top of the first error bar to the bottom of the second
    assert float(drawn["zero"]) == pytest.approx(35 * unit)
    assert heights(drawn["label"]) == pytest.approx([-30 * unit])
    assert heights(drawn["others"]) == pytest.approx([10 * unit])
    assert heights(drawn["truth"]) == pytest.approx([-5 * unit])
    assert heights(drawn["noise"]) == pytest.approx([-10 * unit] * 3)
    starts = [float(y) for y in re.findall(r"M\S+ (-?[\d.]+)", drawn["noise"])]
    assert starts == pytest.approx([(35 - count + 5) * unit for count in (30, -10, 5)])


def heights(path):
    return [float(height) for height in re.findall(r"v(-?[\d.e-]+)", path)]


def test_lead_is_the_labels_own_and_negative_where_smoothing_overruled_the_counts(folder):
    counts = np.zeros((40, 10), np.float32)
    counts[:, 3] = 9
    counts[:, 5] = 4
    label = np.where(np.arange(40) == 7, 5, 3).astype(np.int32)
    change(
        folder / "queries.npz",
        noisy_counts=counts,
        label=label,
        stddev=np.full((40, 10), 2.0, np.float32),
    )
    run = report.read(folder)
    np.testing.assert_allclose(run.lead, np.where(np.arange(40) == 7, -5, 5))
    np.testing.assert_allclose(run.lead_stddev, math.sqrt(8))
    assert "1 with a negative lead took their label from similar queries" in page_of(folder).text


def test_needed_lead_is_where_the_noise_flips_a_label_that_often():
    for scale, prob in ((2.0, 0.1), (20.0, 0.01)):
        stddev = math.sqrt(0.5) / math.sinh(0.5 / scale)
        assert figures.needed_lead("discrete_laplace", stddev, 10, prob) * math.sqrt(
            2
        ) * stddev == bsvs.required_gap(scale, 10, prob)
    # a million votes of noise flip as often as a thousand do
    assert figures.needed_lead("laplace", 1e6, 10, 0.1) == pytest.approx(
        figures.needed_lead("laplace", 1e3, 10, 0.1), rel=0.01
    )


def test_needed_lead_bounds_gaussian_flips():
    """100,000 draws each; the false-alarm rate is that of a 5 sigma deviation."""
    noise = np.random.default_rng(0).normal(size=(100_000, 10))
    for prob in (0.1, 0.01):
        lead = figures.needed_lead("gaussian", 1.0, 10, prob) * math.sqrt(2)
        flipped = np.mean(noise[:, 0] + lead < noise[:, 1:].max(axis=1))
        assert 0.6 * prob < flipped < prob + 5 * math.sqrt(prob / 100_000)


def test_gap_chart_puts_each_query_at_its_lead_and_wrong_ones_apart(folder, monkeypatch):
    queries, wrong = truth_of(folder)
    run = report.read(folder)
    right_marks, wrong_marks = (
        c.get_offsets() for c in drawn(monkeypatch, "leads", run).collections[-2:]
    )
    np.testing.assert_allclose(
        wrong_marks, np.stack([run.lead[wrong], queries["size"][wrong]], axis=1)
    )
    assert len(right_marks) == 40 - len(wrong)


def test_gap_chart_counts_in_noise_where_every_query_has_its_own(folder, monkeypatch):
    stddev = np.repeat(np.linspace(1, 4, 40, dtype=np.float32)[:, None], 10, axis=1)
    change(folder / "queries.npz", stddev=stddev)
    run = report.read(folder)
    axes = drawn(monkeypatch, "leads", run)
    found = np.concatenate([c.get_offsets()[:, 0] for c in axes.collections[-2:]])
    np.testing.assert_allclose(
        np.sort(found), np.sort(run.lead / (math.sqrt(2) * stddev[:, 0])), rtol=1e-5
    )
    assert "standard deviations" in axes.get_xlabel()


def test_epochs_of_all_rounds_are_joined(tmp_path, monkeypatch):
    run = report.read(fake_run(tmp_path, rounds=3))
    axes = drawn(monkeypatch, "epochs", run)
    students = [line.get_xydata() for line in axes.lines if line.get_marker() == "o"]
    assert len(students) == 3  # a new one every round
    np.testing.assert_array_equal(np.concatenate(students)[:, 0], np.arange(1, 61))
    np.testing.assert_allclose(
        np.concatenate(students)[:, 1], [entry["test_accuracy"] for entry in run.metrics]
    )
    assert {text.get_text() for text in axes.texts} == {"round 2", "round 3"}


def test_epsilon_chart_shows_this_run_the_sweep_and_the_papers_table(tmp_path, monkeypatch):
    run = report.read(fake_run(tmp_path, dataset="mnist", epsilon=0.5))
    lines = lines_of(drawn(monkeypatch, "accuracy_by_epsilon", run))
    benchmark = run.result["not_covered_by_epsilon"]
    np.testing.assert_allclose(lines["this run: labels"], [[0.5], [run.result["label_accuracy"]]])
    np.testing.assert_allclose(lines["this run: student"], [[0.5], [run.result["test_accuracy"]]])
    np.testing.assert_allclose(
        lines["paper, general, 40 queries: labels"], [[0.1, 0.04], [0.985, 0.977]]
    )
    np.testing.assert_allclose(lines["paper, end to end, 10 queries: labels"], [[0.01], [0.975]])
    sweep = lines["labels at other ε, not covered by any"]
    np.testing.assert_allclose(
        sweep[0], [point["epsilon"] for point in benchmark["label_accuracy_by_epsilon"]]
    )
    assert lines["labels without noise, not covered"][1] == benchmark["nonprivate_label_accuracy"]
    students = lines["paper, general, 40 queries: student"]
    np.testing.assert_allclose(students[1], [0.991, 0.986, 0.992])
    assert students[0][2] > 2.5 * max(students[0][:2])  # without noise, right of every epsilon
    assert students[0][2] == lines["labels without noise, not covered"][0]


def test_papers_numbers_come_with_their_caveat_and_only_for_its_data_sets(folder):
    assert "2,517 of its 5,000" not in page_of(folder).text
    change(folder / "config.json", dataset="tfds:mnist")
    text = page_of(folder).text
    assert "2,517 of its 5,000 images" in text
    assert "reports the best epoch" in text
    assert all(
        number in text for number in ("99.1%", "98.5%", "98.6%", "97.7%", "99.2%", "97.5%", "98.7%")
    )
    assert "so their ε is not this run's" not in text
    change(folder / "result.json", relation="add-remove")
    assert "so their ε is not this run's" in page_of(folder).text


def test_what_epsilon_does_not_cover_is_said_to_be(folder):
    text = page_of(folder).text
    assert "No ε covers it:" in text
    assert "Computed from the private votes without privacy." in text


def test_confusion_counts_every_labelled_record_once(folder):
    labels = dict(np.load(folder / "labels.npz"))
    labels["label"][:7] = -1
    np.savez(folder / "labels.npz", **labels)
    page = page_of(folder)
    shown = np.array(
        [
            int(e[2].replace("·", "0"))
            for e in page.find("td")
            if "--share" in (e[1].get("style") or "")
        ]
    )
    expected = np.zeros((10, 10), int)
    np.add.at(expected, (labels["true_label"][7:], labels["label"][7:]), 1)
    np.testing.assert_array_equal(shown.reshape(10, 10), expected)
    assert "7 took no label" in page.text


def test_many_classes_list_the_largest_confusions(folder):
    wide = np.zeros((40, 30), np.float32)
    queries, _ = truth_of(folder)
    wide[:, :10] = queries["noisy_counts"]
    change(folder / "queries.npz", noisy_counts=wide, stddev=np.full_like(wide, 2))
    labels = dict(np.load(folder / "labels.npz"))
    off = [
        (t, g, np.sum((labels["true_label"] == t) & (labels["label"] == g)))
        for t in range(10)
        for g in range(10)
        if t != g
    ]
    truth, given, count = max(off, key=lambda entry: entry[2])
    page = page_of(folder)
    assert not page.find("table", class_="confusion")
    assert f"truth label records {truth} {given} {count}" in page.text


def test_time_is_split_into_the_students_epochs_and_the_rest(folder):
    assert (
        "41.7 s in all: 30.0 s in 20 epochs of the student (1.50 s each), 11.7 s for everything "
        "else" in page_of(folder).text
    )


@pytest.mark.parametrize(
    "learned",
    [
        {},
        {"representation": DTI(curriculum=(0.1, 0.2, 1.0))},
        {
            "representation": SCAN(SimCLR(temperature=0.5)),
            "student": supervised.Config(fine_tune=True),
        },
        {
            "representation": SelfTrained(3, graph=spectral.Config(deskew=False)),
        },
    ],
    ids=["spectral", "dti", "scan", "self_trained"],
)
def test_command_repeats_the_experiment(folder, learned):
    data_dir = Path("a folder") / "it's"
    changed = {
        "dataset": "mnist",
        "data_dir": data_dir,
        "epsilon": math.inf,
        "delta": 1e-5,
        "rounds": 2,
        "noise_seed": 7,
        "student": uda.Config(students.Config(model="m5"), members=2, unlabelled=0.2),
    }
    experiment = Experiment(**changed | learned)
    change(folder / "config.json", **plain_settings(experiment), resolved_queries=25)
    shown = page_of(folder).find("pre")[0][2]
    words = shlex.split(shown)
    assert words[:3] == ["python", "-m", "train.distill"]
    spelled_out = replace(experiment.labeler, mechanism="discrete_laplace")
    assert "it's" not in shown, "a report is for others, and tells no folder"
    assert commandline.parsed(words[3:]) == replace(
        experiment, queries=25, labeler=spelled_out, data_dir=Path("DIR")
    )


def test_every_setting_is_shown(folder):
    config = json.loads((folder / "config.json").read_text())
    shown = {e[2] for e in page_of(folder).find("dt")}
    assert shown == config.keys() - {"versions", "classes"}


@pytest.mark.long
@pytest.mark.usefixtures("with_pictures")
@pytest.mark.parametrize(
    "dataset",
    [
        "mnist",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("digits", "tfds:svhn_cropped", "tfds:cifar10")
        ),
    ],
)
def test_nothing_is_loaded_from_outside_and_the_page_is_well_formed(folder, dataset):
    change(folder / "config.json", dataset=dataset)
    text = report.write(folder).read_text(encoding="utf-8")
    page = Page(text)
    assert page.balanced
    links = [
        value
        for _, attributes, _ in page.elements
        for name, value in attributes.items()
        if name.split(":")[-1] in LINKS
    ]
    assert links
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in links)
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    assert "@import" not in text
    assert not page.find("script")
    identifiers = [e[1]["id"] for e in page.elements if "id" in e[1]]
    assert len(set(identifiers)) == len(identifiers)


LINKS = {"src", "href", "srcset", "data", "poster", "action", "background"}


@pytest.mark.long
@pytest.mark.usefixtures("with_pictures")
def test_charts_take_every_colour_from_the_page_so_that_a_dark_screen_changes_them(folder):
    text = report.write(folder).read_text(encoding="utf-8")
    charts = re.findall(r'<div class="chart">(.*?)</div>', text, re.DOTALL)
    colours = re.findall(r"(?:fill|stroke|color): ?([^;\"]+)", " ".join(charts))
    assert len(charts) == 3
    assert {colour for colour in colours if not colour.startswith("var(--")} <= {
        "none",
        "context-fill",
        "context-stroke",
    }


@pytest.mark.long
@pytest.mark.usefixtures("with_pictures")
def test_page_is_the_same_each_time_and_small(folder):
    first = report.write(folder).read_bytes()
    assert report.write(folder).read_bytes() == first
    assert len(first) < 200_000
    noise = np.random.default_rng(0).integers(0, 256, (40, 224, 224, 3), dtype=np.uint8)
    change(folder / "queries.npz", image=noise)
    assert report.write(folder).stat().st_size < 1_500_000  # the worst pictures to compress


def without_truth(folder):
    change(folder / "queries.npz", true_label=None)
    change(folder / "labels.npz", true_label=None)
    change(
        folder / "result.json",
        label_accuracy=None,
        test_accuracy=None,
        not_covered_by_epsilon=None,
        num_test=None,
    )


def without_epochs(folder):
    (folder / "metrics.jsonl").unlink()
    result = json.loads((folder / "result.json").read_text())
    write(folder / "result.json", result | {"test_accuracy": None, "interrupted": True})


def without_extras(folder):
    write(folder / "config.json", {"dataset": "own"})
    write(folder / "result.json", {"epsilon": 1.0, "delta": 0.0, "relation": "replace-one"})


def without_noise(folder):
    change(folder / "queries.npz", stddev=np.zeros((40, 10), np.float32))
    change(folder / "result.json", epsilon=math.inf)
    whole = Guarantee(math.inf, 0.0, "replace-one", "central", ())
    change(
        folder / "privacy.json",
        whole=whole.asdict(),
        rounds=[whole.asdict()],
        accountants={"pure": "infinity"},
    )


def with_empty_metrics(folder):
    (folder / "metrics.jsonl").write_text("")


def with_one_query(folder):
    queries = dict(np.load(folder / "queries.npz"))
    np.savez(folder / "queries.npz", **{name: array[:1] for name, array in queries.items()})


def with_gaussian_noise(folder):
    change(folder / "config.json", mechanism="gaussian", delta=1e-5)
    change(folder / "result.json", delta=1e-5)
    whole = Guarantee(1.0, 1e-5, "add-remove", "central", (Gaussian(4.0, 1),), accountant="PLD")
    change(
        folder / "privacy.json",
        whole=whole.asdict(),
        rounds=[whole.asdict()],
        accountants={"RDP": 1.1, "PLD": 1.0},
    )


def with_perfect_labels(folder):
    queries = dict(np.load(folder / "queries.npz"))
    labels = dict(np.load(folder / "labels.npz"))
    change(folder / "queries.npz", true_label=queries["label"])
    change(folder / "labels.npz", true_label=labels["label"])
    change(folder / "result.json", label_accuracy=1.0, test_accuracy=1.0)


def assert_sensible(folder, change_it, words, not_words):
    change_it(folder)
    page = page_of(folder)
    assert page.balanced
    assert all(word in page.text for word in words)
    assert not [word for word in not_words if word in page.text]


@pytest.mark.usefixtures("with_pictures")
@pytest.mark.parametrize(
    ("without", "words", "not_words"),
    [
        (
            without_truth,
            ["not known", "The true labels of the public records are not known."],
            ["✗", "wrong", "2,517", "None"],
        ),
        (
            without_extras,
            ["own", "Not recorded.", "an earlier version wrote this run"],
            ["None"],
        ),
        (
            without_noise,
            ["No privacy is guaranteed", "ε = ∞", "No noise was added."],
            ["changes the odds", "flips"],
        ),
    ],
)
def test_page_and_charts_are_sensible_where_a_piece_is_missing(folder, without, words, not_words):
    assert_sensible(folder, without, words, not_words)


@pytest.mark.parametrize(
    ("unusual", "words", "not_words"),
    [
        (
            without_epochs,
            ["no epoch was finished", "This run was stopped before its end."],
            ["None", "nan"],
        ),
        (with_empty_metrics, ["The student finished no epoch."], ["None"]),
        (with_one_query, ["1 query"], ["1 queries"]),
        (with_gaussian_noise, ["δ = 1e-05", "PLD (reported)", "whether that one took part"], []),
        (with_perfect_labels, ["40 queries, none wrong", "100.0%"], ["✗"]),
    ],
)
def test_page_is_sensible_where_a_run_is_unusual(folder, unusual, words, not_words):
    assert_sensible(folder, unusual, words, not_words)


def test_released_labels_alone_show_no_counts(tmp_path):
    page = page_of(fake_run(tmp_path, mechanism="permute_and_flip"))
    _, wrong = truth_of(tmp_path)
    assert page.balanced
    assert "Only the labels were released, no counts." in page.text
    assert "there is no gap to show" in page.text
    assert not page.find("path", class_="noise")
    assert "label only" in page.text
    assert sorted(page.wrong_queries()) == wrong.tolist()


def test_rounds_are_told_apart(tmp_path):
    page = page_of(fake_run(tmp_path, rounds=2, num_queries=20, colour=True))
    rounds = [int(re.search(r"· r(\d) ·", e[2]).group(1)) for e in page.find("li", class_="query")]
    assert rounds == [1] * 20 + [2] * 20
    assert "for the first round alone" in page.text


def test_hostile_strings_are_text_and_nothing_else(folder):
    names = {name: HOSTILE for name in ("dataset", "device", "date", "representation", HOSTILE)}
    change(folder / "config.json", **names, classes=[HOSTILE] * 10, versions={HOSTILE: HOSTILE})
    change(
        folder / "result.json",
        relation=HOSTILE,
        trust=HOSTILE,
        not_covered_by_epsilon={"note": HOSTILE, "label_accuracy_by_epsilon": []},
    )
    privacy = json.loads((folder / "privacy.json").read_text())
    privacy["whole"] |= {"statement": HOSTILE, "accountant": HOSTILE, "unit": HOSTILE}
    write(
        folder / "privacy.json",
        privacy | {"accountants": {HOSTILE: 1.0}, "covers": [HOSTILE], "does_not_cover": [HOSTILE]},
    )
    page = page_of(folder)
    assert page.balanced
    assert not page.find("script")
    assert page.text.count(HOSTILE) > 50
    assert shlex.quote(HOSTILE) in page.find("pre")[0][2]


def test_a_line_that_was_cut_off_while_it_was_written_does_not_count(folder):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 0, "ep')
    assert len(report.read(folder).metrics) == 20


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def pickled(path):
    np.savez(path, label=np.array([{"a": 1}], dtype=object))


def not_json(path):
    path.write_text("{]\n")


def not_text(path):
    path.write_bytes(b"\xff\xfe\x00\n")


def a_list(path):
    path.write_text("[]\n")


def nested(path):
    path.write_text("[" * 100_000 + "\n")


def endless_header(path):
    """NumPy raises TokenError for it."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("label.npy", b"\x93NUMPY\x01\x00\x40\x00" + b"{" * 64)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [(name, Path.unlink) for name in REQUIRED]
    + [(name, truncate) for name in REQUIRED]
    + [("queries.npz", pickled), ("labels.npz", pickled), ("labels.npz", not_json)]
    + [
        (name, spoil)
        for name in ("config.json", "result.json", "metrics.jsonl")
        for spoil in (not_json, not_text, a_list)
    ]
    + [("queries.npz", lambda path: change(path, label=np.full(40, 10)))]
    + [("queries.npz", lambda path: change(path, size=np.ones(39)))]
    + [("queries.npz", lambda path: change(path, size=np.array(40)))]
    + [
        (name, lambda path: change(path, label=np.zeros((40, 2), np.int32)))
        for name in ("queries.npz", "labels.npz")
    ]
    + [("queries.npz", lambda path: change(path, image=np.zeros((40, 8, 8, 1))))]
    + [("queries.npz", lambda path: change(path, stddev=None))]
    + [("labels.npz", lambda path: change(path, true_label=np.zeros(899)))]
    + [
        ("config.json", lambda path: change(path, classes=["a", "b"])),
        ("config.json", lambda path: change(path, classes=True)),
    ]
    + [(name, nested) for name in ("config.json", "metrics.jsonl")]
    + [("queries.npz", endless_header)],
)
def test_a_file_that_cannot_be_read_is_named_and_the_earlier_page_stays(folder, name, spoil):
    earlier = b"an earlier page"
    (folder / "report.html").write_bytes(earlier)
    spoil(folder / name)
    with pytest.raises(ValueError, match=re.escape(str(folder / name))):
        report.write(folder)
    assert (folder / "report.html").read_bytes() == earlier
    assert not list(folder.glob("*.partial"))


@pytest.mark.usefixtures("with_pictures")
def test_command_line_makes_the_page_and_exits_2_where_it_cannot(
    folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["report", str(folder)])
    assert cli() == 0
    assert "".join(str(folder / "report.html").split()) in "".join(capsys.readouterr().err.split())
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path / "[nowhere]")])
    assert cli() == 2
    message = capsys.readouterr().err
    assert "config.json" in "".join(message.split())
    assert "[nowhere]" in "".join(message.split())
    assert "Traceback" not in message
