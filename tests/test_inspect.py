"""The page of a release and `rknn inspect`: they say what was released, load nothing, escape every
name, and need neither the private records nor the ledger.
"""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rknn_jax.answers.concern import Concern
from rknn_jax.answers.measured import Measured
from rknn_jax.cli import main as cli
from rknn_jax.report import advice, figures, pages, release, results, summary
from rknn_jax.report.advice import advise
from tests.html_page import Page

HOSTILE = '<script>alert("1")</script>\x1b[31m&'
NAMES = ["plain", HOSTILE, "ünïcode"]
NUM_ROWS = 60


def write_files(folder):
    generator = np.random.default_rng(0)
    labels = np.arange(240) % 3  # enough votes, that noise alone is never more likely
    rows = (2 * np.eye(3, 4)[labels] + generator.normal(size=(240, 4))).astype(np.float32)
    np.savez(folder / "P.npz", embeddings=rows[:NUM_ROWS])
    names = np.array(NAMES)
    np.savez(folder / "R.npz", embeddings=rows, labels=names[labels], classes=names)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A release with counts and one of labels alone. Private records and ledger are gone."""
    home = tmp_path_factory.mktemp("releases")
    write_files(home)
    for name, mechanism in (("counts", "discrete_laplace"), ("alone", "permute_and_flip")):
        words = {
            "public": home / "P.npz",
            "private": home / "R.npz",
            "epsilon": 0.5,
            "budget": 2,
            "queries": 6,
            "mechanism": mechanism,
            "out": home / name,
        }
        given = [str(word) for option, value in words.items() for word in (f"--{option}", value)]
        assert cli.main(["label", *given]) == 0
    for path in home.glob("R.npz*"):
        path.unlink()
    return home


@pytest.fixture(scope="module")
def page(folders):
    return Page((folders / "counts" / "report.html").read_text())


@pytest.fixture(scope="module")
def released(folders):
    return results.read(folders / "counts")


def test_the_page_is_well_formed_and_loads_nothing(page, folders):
    text = (folders / "counts" / "report.html").read_text()
    assert page.balanced
    assert "//" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    for _, attributes, _ in page.elements:
        assert attributes.get("href", "privacy.html") == "privacy.html"
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
    (policy,) = page.find("meta", content="data:;")
    assert "default-src 'none'" in policy[1]["content"]
    assert "prefers-color-scheme: dark" in text
    assert page.find("meta", name="viewport")


def test_names_cannot_become_markup(page):
    (script,) = page.find("script")
    assert "alert" not in script[2]
    assert HOSTILE in [cell[2] for cell in page.find("th", scope="row")]
    assert HOSTILE in [option[2] for option in page.find("option")]


def test_every_chart_has_its_marks_a_title_and_a_description(page, released):
    marks = {chart[1]["id"]: [] for chart in page.find("svg", class_="drawn")}
    inside = None
    for tag, attributes, _ in page.elements:
        inside = attributes["id"] if tag == "svg" else inside
        if tag in ("circle", "rect") and "limit" not in attributes.get("class", ""):
            marks[inside].append(attributes)
    sizes = {name: len(found) for name, found in marks.items()}
    bands = len(figures.BANDS) - 1
    assert sizes == {"stability-chart": bands, "gaps-chart": 6, "map-chart": NUM_ROWS}
    heights = [float(mark["height"]) for mark in marks["stability-chart"]]
    counts = np.histogram(released.confidence, bins=figures.BANDS)[0]
    np.testing.assert_allclose(heights, counts / counts.max() * 208, atol=0.06)
    rings = sum(mark.get("class") == "doubtful" for mark in marks["map-chart"])
    assert rings == released.doubtful.sum() > 0
    for mark in marks["map-chart"] + marks["gaps-chart"]:
        assert 0 <= float(mark["cx"]) <= 480
        assert 0 <= float(mark["cy"]) <= 480
    for chart in page.find("svg", class_="drawn"):
        title, words = chart[1]["aria-labelledby"].split()
        assert page.find("title", id=title)[0][2]
        assert page.find("desc", id=words)[0][2]


def test_tables_have_captions_and_headers_with_a_scope(page):
    assert len(page.find("caption")) == len(page.find("table")) == 5
    assert all(header[1]["scope"] in ("col", "row") for header in page.find("th"))


def test_classes_have_the_released_numbers(folders, released):
    with np.load(folders / "counts" / "queries.npz") as asked:
        counts = asked["noisy_counts"]
    scale = 2 / 0.5  # of discrete Laplace noise at epsilon 0.5 under replace-one
    stddev = 0.5**0.5 / np.sinh(0.5 / scale)
    for number, row in enumerate(results.class_rows(released)):
        mine = released.label == number
        assert row.name == NAMES[number]
        assert row.labels == mine.sum()
        assert row.votes == counts[:, number].sum()
        assert row.noise == pytest.approx(stddev * 6**0.5, rel=1e-5)
        # The noise is of a release, without a seed: it may leave a class without labels.
        expected = pytest.approx(released.confidence[mine].mean()) if mine.any() else None
        assert row.stability == expected
        assert row.doubtful == (released.confidence[mine] < 0.95).sum()


def test_gaps_are_those_of_the_counts(released):
    found = results.gaps(released)
    ordered = np.sort(released.counts, axis=1)
    assert [one.gap for one in found] == (ordered[:, -1] - ordered[:, -2]).tolist()
    assert sum(one.rows for one in found) == NUM_ROWS
    assert found[0].noise == pytest.approx(2**0.5 * released.stddev[0, 0])


def test_the_least_stable_labels_come_first(released):
    """The noise of a release may leave fewer than five in doubt."""
    stability = np.random.default_rng(0).permutation(NUM_ROWS) / NUM_ROWS
    released = replace(released, confidence=stability)
    rows = results.second_look(released, 5)
    least = np.sort(released.confidence)[:5]
    assert [row.stability for row in rows] == least.tolist()
    for row in rows:
        others = np.delete(released.probability[row.row], row.number)
        assert row.probability == released.probability[row.row].max()
        assert row.rival_probability == others.max()
    left_out = replace(
        released, source=1000 + np.arange(NUM_ROWS)
    )  # as of a source with other rows
    elsewhere = results.second_look(left_out, 5)
    assert [one.row for one in elsewhere] == [1000 + row.row for row in rows]


def test_the_page_leads_with_the_number_that_matters_and_every_warning(folders, page):
    told = json.loads((folders / "counts" / "summary.json").read_text())
    first = page.find("div", class_="tile")[0][2]
    assert f"{told['expected_accuracy']:.1%}" in first
    assert "nobody measured it" in first
    found = results.read(folders / "counts")
    assert advise(found).verdict in page.find("p", class_="headline")[0][2]
    doubt = Concern("low_stability", 0.5, "noise <decides>", "raise --epsilon")
    warned = replace(found, summary=replace(found.summary, concerns=(doubt,)))
    (listed,) = Page(release.page(warned)).find("ul", class_="concerns")
    assert "noise <decides>. Remedy: raise --epsilon." in " ".join(listed[2].split())
    assert advise(warned).verdict == "Do not use these labels as they are."
    assert advise(warned).command == "rknn label ... --dry-run"
    served = replace(warned, card=warned.card | {"round": "ab"})
    assert advise(served).command == "rknn serve ... --dry-run"
    assert [*warned.shares] == ["expected_accuracy", "stability"]
    alone = replace(doubt, kind="noise_alone")
    unheard = replace(found, summary=replace(found.summary, concerns=(alone,)))
    assert "of the labels would be the same without noise" in release.headline(unheard)


def test_a_release_of_persons_promises_epsilon_to_persons(released):
    card = released.card | {"guarantee": released.card["guarantee"] | {"unit": "person"}}
    assert "for one person" in release.headline(replace(released, card=card))


def test_rows_without_a_label_are_no_reason_to_use_the_labels(released):
    sure = np.eye(len(NAMES))[released.label]
    summed = replace(released.summary, concerns=())
    found = replace(released, probability=sure, summary=summed)
    assert advise(found).verdict == "Use the labels."
    half = np.where(np.arange(NUM_ROWS) % 2, -1, released.label)
    assert advise(replace(found, label=half)).verdict != "Use the labels."


def test_the_noise_of_a_release_is_the_root_of_its_mean_square():
    found = summary.summarize(np.eye(3, dtype=np.float32), (), None, np.array([[1.0, 7.0]]))
    assert found.noise_stddev == 5.0


def test_a_measure_takes_the_place_of_an_opinion(released):
    summary = replace(released.summary, concerns=())
    told = replace(released, summary=summary).shares
    measured = Measured(0.7, 0.6, 0.8, 100, "the labels", (), None)
    beside = replace(released, summary=replace(summary, measured=measured)).shares
    assert told.pop("expected_accuracy") == summary.expected_accuracy
    assert beside == told


def test_the_terminal_names_the_folder_in_the_command_of_the_advice(folders, rknn, monkeypatch):
    """The page has `.`, as it lies in the folder."""
    made = advice.Advice("Use them.", "All are likely.", "rknn export . --format parquet")
    monkeypatch.setattr(advice, "advise", lambda found: made)
    said = " ".join(rknn("inspect", folders / "counts").out.split())
    assert f"rknn export {folders / 'counts'} --format parquet" in said


@pytest.mark.parametrize(
    ("likely", "verdict", "words"),
    [
        (60, "Use the labels.", "--format parquet"),
        (40, "Use the likely part, and let a person see the rest.", "--threshold 0.8"),
        (10, "Make another release.", "--dry-run"),
    ],
)
def test_the_advice_follows_from_the_likely_labels_and_its_command_runs(
    folders, rknn, likely, verdict, words
):
    found = results.read(folders / "counts")
    one_hot = np.eye(len(found.classes))[found.label]
    share = np.where(np.arange(60) < likely, 0.9, 0.5)[:, None]
    rest = (1 - one_hot) / (len(found.classes) - 1)
    probability = share * one_hot + (1 - share) * rest
    undoubted = replace(found.summary, concerns=())
    given = advise(replace(found, probability=probability, summary=undoubted))
    assert given.verdict == verdict
    assert f"{likely} of 60 labels" in given.reason
    assert words in given.command
    if "..." not in given.command:
        command = [str(folders / "counts") if one == "." else one for one in given.command.split()]
        assert rknn(*command[1:]).status == 0


def test_rows_without_a_label_are_not_likely(released):
    one_hot = np.eye(len(released.classes))[np.full(NUM_ROWS, -1)]
    label = np.where(np.arange(NUM_ROWS) < 20, -1, 2)
    undoubted = replace(released.summary, concerns=())
    given = advise(replace(released, label=label, probability=one_hot, summary=undoubted))
    assert "40 of 60 labels" in given.reason


def test_labels_alone_show_no_votes_and_no_stability(folders):
    found = results.read(folders / "alone")
    assert found.counts is None
    assert np.isnan(found.confidence).all()
    assert found.shares == {}
    made = Page((folders / "alone" / "report.html").read_text())
    assert made.balanced
    tiles = [" ".join(tile[2].split()) for tile in made.find("div", class_="tile")]
    assert "unknownNo private record checked them" in tiles[0]
    assert "ε = 0.5" in tiles[1]
    assert len(tiles) == 3, "nothing is doubtful where no stability is known"
    assert [chart[1]["id"] for chart in made.find("svg", class_="drawn")] == ["map-chart"]
    assert not made.find("tr", data_sure="")
    given = advise(replace(found, summary=None))
    assert given.verdict == "Let a person look at a sample."


def test_counts_without_noise_are_labels_alone(folders, released):
    """`train.distill` saves the labels of a mechanism that releases nothing else as such counts."""
    rows, asked = (dict(np.load(folders / f"counts/{name}.npz")) for name in ("labels", "queries"))
    for stddev, known in ((released.stddev, True), (0 * released.stddev, False)):
        found = results.of(rows, asked | {"stddev": stddev}, released.card, None)
        assert (found.counts is not None) == known
        assert bool(results.gaps(found)) == known


def test_queries_that_were_not_answered_have_no_lead(released):
    stddev = released.stddev.copy()
    stddev[2] = 0  # as PATE leaves those that too few teachers agree on
    found = replace(released, stddev=stddev)
    assert [one.query for one in results.gaps(found)] == [0, 1, 3, 4, 5]
    assert Page(release.page(found)).balanced


def test_inspect_makes_the_same_page_again(folders, rknn):
    done = rknn("inspect", folders / "counts", "--out", folders / "counts" / "again.html", "--json")
    assert done.status == 0
    first, second = (folders / "counts" / name for name in ("report.html", "again.html"))
    assert second.read_text() == first.read_text()
    assert done.json["files"]["page"] == str(second)
    second.unlink()


def test_inspect_writes_over_nothing_but_a_report(folders, rknn):
    labels = folders / "counts" / "labels.npz"
    before = labels.read_bytes()
    done = rknn("inspect", folders / "counts", "--out", labels)
    assert done.status == 2
    assert "report.html" in done.err
    assert labels.read_bytes() == before


def test_a_page_elsewhere_links_to_the_statement(folders, rknn, tmp_path):
    assert rknn("inspect", folders / "counts", "--out", tmp_path / "new.html").status == 0
    done = rknn("inspect", folders / "counts", "--out", tmp_path / "none" / "new.html")
    assert "Expected --out in a folder that exists" in " ".join(done.err.split())
    (link,) = Page((tmp_path / "new.html").read_text()).find("a")
    assert (tmp_path / link[1]["href"]).resolve() == (folders / "counts/privacy.html").resolve()


def test_inspect_shows_classes_rows_and_warnings(folders, rknn, released):
    done = rknn("inspect", folders / "counts")
    assert done.status == 0
    assert "\x1b" not in done.out
    for row in results.class_rows(released):
        numbers = f" {row.labels} +{row.votes:,.0f} +± {row.noise:,.0f} "
        assert re.search(numbers, done.out)
    assert all(str(row.row) in done.out for row in results.second_look(released, 1))
    told = rknn("inspect", folders / "counts", "--json").json
    labels = np.bincount(released.label, minlength=len(NAMES)).tolist()
    assert [one["labels"] for one in told["classes"]] == labels
    assert told["num_doubtful"] == released.doubtful.sum()
    assert told["expected_accuracy"] == released.summary.expected_accuracy
    assert told["exit_status"] == 0


def test_a_folder_without_queries_has_labels_and_no_votes(folders, rknn, tmp_path):
    copy = Path(shutil.copytree(folders / "counts", tmp_path / "copy"))
    (copy / "queries.npz").unlink()
    told = rknn("inspect", copy, "--json", "--out", tmp_path / "page.html").json
    assert {one["votes"] for one in told["classes"]} == {None}
    assert Page((tmp_path / "page.html").read_text()).balanced


def damaged(folder, tmp_path, change):
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    change(copy)
    return copy


DAMAGES = {
    "no statement": lambda folder: (folder / "privacy.json").unlink(),
    "no labels": lambda folder: (folder / "labels.npz").unlink(),
    "half a summary": lambda folder: (folder / "summary.json").write_text('{"agreement": 1}'),
    "a row that is not there": lambda folder: edit(folder, rows=[60], places=[[0, 0]]),
    "a list": lambda folder: (folder / "privacy.json").write_text("[]"),
    "a delta in words": lambda folder: reword(
        folder / "privacy.json", '"delta": 0', '"delta": "x"'
    ),
}


def reword(path, before, after):
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def edit(folder, **changes):
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_is_refused_by_name(folders, rknn, tmp_path, change):
    copy = damaged(folders / "counts", tmp_path, change)
    done = rknn("inspect", copy)
    assert done.status == 2
    assert str(copy) in done.err


@pytest.mark.long
def test_the_largest_page_is_small():
    """Many rows, queries and classes of long names that grow when they are escaped."""
    rng = np.random.default_rng(0)
    num_rows, num_queries, num_classes = 20_000, 3000, 600
    features = rng.normal(size=(num_rows, 8)).astype(np.float32)
    doubts = [Concern("kind", 1.0, "&" * 300, "<" * 300)] * 8
    found = results.Results(
        label=rng.integers(num_classes, size=num_rows),
        query=rng.integers(num_queries, size=num_rows),
        confidence=rng.uniform(0.2, 1, num_rows),
        probability=np.full((num_rows, num_classes), 1 / num_classes, np.float32),
        classes=tuple(f"{number}{'<&>' * 200}" for number in range(num_classes)),
        counts=rng.integers(0, 10**6, (num_queries, num_classes)).astype(np.float64),
        stddev=np.full((num_queries, num_classes), 5.0),
        card={
            "guarantee": {
                "epsilon": 1.0,
                "delta": 0.0,
                "unit": "record",
                "relation": "replace-one",
            },
            "statement": "",
            "not_covered": [],
        },
        summary=summary.summarize(features, doubts, None, None),
    )
    made = release.page(found)
    assert 500_000 < len(made.encode()) < release.LARGEST
    assert len(json.dumps(found.summary.asdict())) < 200_000


def test_the_map_keeps_what_principal_components_keep():
    """Two clusters far apart along one of many axes are apart on the map, on its whole width."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 30)).astype(np.float32)
    features[100:, 17] += 50
    places = summary.places(features)
    assert np.abs(places).max() == 1
    sides = np.sign(places[:, 0])
    assert abs(sides[:100].sum()) == abs(sides[100:].sum()) == 100
    assert sides[0] != sides[-1]


@pytest.mark.parametrize(
    "features",
    [
        np.ones((5, 3)),
        np.ones((1, 4)),
        np.arange(4.0)[:, None],
        np.full((3, 2), 3e38) * np.array([[1], [-1], [0.5]]),
        np.array([[0, 1e-300], [1e-300, 0]]),
    ],
    ids=["equal rows", "one row", "one column", "huge", "tiny"],
)
def test_the_map_of_odd_rows_is_finite(features):
    """A release is paid for when its map is made, so no public table may stop it."""
    with np.errstate(all="raise", under="ignore"):
        places = summary.places(features.astype(np.float32))
    assert places.shape == (len(features), 2)
    assert np.isfinite(places).all()


def test_charts_use_colors_of_the_page():
    frame = (Path(pages.__file__).parent / "base.html.j2").read_text()
    used = set(re.findall(r"var\(--([\w-]+)\)", frame))
    assert used <= {*pages.COLOURS, "hue", "of", "of-class"}


def test_a_folder_that_is_not_there_is_called_so(rknn):
    done = rknn("inspect", "nowhere")
    assert done.status == 2
    assert "got nowhere, which is no folder; check its name" in " ".join(done.err.split())
