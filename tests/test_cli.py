import io
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_digits

from rknn_jax import bsvs, mechanisms, simulate
from rknn_jax._internal import progress, terminal
from rknn_jax.cli.main import main
from rknn_jax.privacy import exact_noise
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.release import label, questions

ALMOST_NO_NOISE = (
    "1e6"  # a draw other than 0 has probability below exp(-1e5): counts come out exact
)


def blobs(num_rows, seed):
    generator = np.random.default_rng(seed)
    labels = np.arange(num_rows) % 3
    centers = 8 * np.eye(3, 4)
    return (centers[labels] + generator.normal(size=(num_rows, 4))).astype(np.float32), labels


def make_files(folder: Path):
    public, _ = blobs(60, 0)
    private, labels = blobs(90, 1)
    np.savez(folder / "P.npz", embeddings=public)
    np.savez(folder / "R.npz", embeddings=private, labels=labels)


def arguments(**changes):
    """Return a good command line, but for `changes`; None leaves an argument out."""
    given = {
        "public": "P.npz",
        "private": "R.npz",
        "epsilon": 1,
        "queries": 4,
        "classes": 3,
        "out": "new",
    } | changes
    if given["epsilon"] in (ALMOST_NO_NOISE, 1000):
        given["allow_large_epsilon"] = True
    named = [
        (f"--{name.replace('_', '-')}", value) for name, value in given.items() if value is not None
    ]
    return [
        "label",
        *(word for name, value in named for word in ((name,) if value is True else (name, value))),
    ]


@pytest.fixture
def files(tmp_path):
    make_files(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """A folder with both files, an earlier release in `earlier`, and its ledger, which has 9 of
    10 left.
    """
    folder = tmp_path_factory.mktemp("used")
    make_files(folder)
    words = {
        "public": folder / "P.npz",
        "private": folder / "R.npz",
        "out": folder / "earlier",
        "budget": 10,
    }
    assert main([str(word) for word in arguments(**words)]) == 0
    return folder


@pytest.fixture
def copy(used, tmp_path):
    shutil.copytree(used, tmp_path, dirs_exist_ok=True)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def arrays(path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    public = order[:500]
    private = order[500:]
    np.savez(folder / "P.npz", embeddings=images[public])
    np.savez(folder / "R.npz", embeddings=images[private], labels=labels[private])
    np.save(folder / "truth.npy", labels[public])
    return folder


def test_defaults_label_the_digits(digits, rknn, tmp_path):
    files = ("--public", digits / "P.npz", "--private", digits / "R.npz", "--classes", 10)
    done = rknn("label", *files, "--epsilon", 1, "--budget", 2, "--json")
    assert done.status == 0, done.err
    folder = Path(done.json["files"]["labels"]).parent
    rows = arrays(folder / "labels.npz")
    asked = arrays(folder / "queries.npz")
    assert {name: (a.dtype.name, a.shape) for name, a in rows.items()} == {
        "label": ("int32", (500,)),
        "query": ("int32", (500,)),
        "confidence": ("float32", (500,)),
        "probability": ("float32", (500, 10)),
    }
    truth = np.load(digits / "truth.npy")
    assert np.mean(rows["label"] == truth) > 0.7  # chance is 0.1
    assert np.any(rows["label"] != asked["label"][rows["query"]]), "similar rows share their labels"
    np.testing.assert_array_equal(rows["label"], rows["probability"].argmax(axis=1))
    np.testing.assert_allclose(rows["probability"].sum(axis=1), 1, rtol=1e-5)
    assert asked["noisy_counts"].dtype == np.int64
    card = json.loads((folder / "privacy.json").read_text())
    assert card["guarantee"]["sampler"] == "release"
    assert card["statement"] in done.err
    assert "epsilon = 1 (pure)" in card["statement"]
    assert card["ledger"]["spent"]["epsilon"] == card["ledger"]["remaining"]["epsilon"] == 1
    assert all(line in done.err for line in [card["ledger"]["head"], *card["not_covered"]])


@pytest.mark.long
def test_without_smoothing_a_row_has_the_label_of_its_query(digits, rknn):
    files = ("--public", digits / "P.npz", "--private", digits / "R.npz", "--classes", 10)
    done = rknn("label", *files, "--epsilon", 1, "--smoothing", "none", "--json")
    rows = arrays(done.json["files"]["labels"])
    asked = arrays(done.json["files"]["queries"])
    np.testing.assert_array_equal(rows["label"], asked["label"][rows["query"]])
    np.testing.assert_array_equal(asked["label"], asked["noisy_counts"].argmax(axis=1))


@pytest.mark.long
def test_two_releases_share_the_clustering_and_not_the_noise(files, rknn):
    for name in ("a", "b"):
        assert rknn(*arguments(out=name, budget=2, epsilon=0.5)).status == 0
    first, second = (arrays(files / name / "queries.npz") for name in ("a", "b"))
    np.testing.assert_array_equal(first["index"], second["index"])
    np.testing.assert_array_equal(
        arrays(files / "a/labels.npz")["query"], arrays(files / "b/labels.npz")["query"]
    )
    assert (
        first["noisy_counts"] != second["noisy_counts"]
    ).any()  # 12 cells at scale 4 agree with probability 1e-12


@pytest.mark.long
def test_the_first_budget_is_one_release_and_a_second_needs_the_owner(files, rknn):
    assert rknn(*arguments(out="a", epsilon=0.3)).status == 0
    ledger = files / "R.npz.ledger.jsonl"
    before = contents(files)
    refused = rknn(*arguments(out="b", epsilon=0.3))
    assert refused.status == 3
    assert f"rknn budget raise {ledger} --epsilon 0.6" in refused.err
    assert contents(files) == before
    assert (
        rknn("budget", "raise", ledger, "--epsilon", 0.6, "--reason", "the board said so").status
        == 0
    )
    assert rknn(*arguments(out="b", epsilon=0.3)).status == 0
    shown = rknn("budget", "show", ledger, "--json").json
    assert (
        shown["budget"]["epsilon"],
        shown["spent"]["epsilon"],
        shown["remaining"]["epsilon"],
    ) == (0.6, 0.6, 0)
    assert [entry["kind"] for entry in shown["entries"]] == [
        "create",
        "spend",
        "drawn",
        "budget",
        "spend",
        "drawn",
    ]
    assert "the board said so" in rknn("budget", "show", ledger).out


@pytest.mark.parametrize("neighbors", [1, 2])
def test_every_labelled_record_votes_for_its_nearest_queries_and_no_other_does(
    files, rknn, neighbors
):
    embeddings, labels = blobs(90, 1)
    labels = np.where(np.arange(90) % 4 == 0, np.nan, labels)
    np.savez(files / "R.npz", embeddings=embeddings, labels=labels)
    assert rknn(*arguments(epsilon=ALMOST_NO_NOISE, neighbors=neighbors, classes=3)).status == 0
    asked = arrays(files / "new/queries.npz")
    known = labels[~np.isnan(labels)].astype(int)
    np.testing.assert_array_equal(
        asked["noisy_counts"].sum(axis=0), neighbors * np.bincount(known, minlength=3)
    )
    assert asked["noisy_counts"].sum(axis=1).min() > 0


def write_as(form: str, folder: Path, embeddings: np.ndarray, labels: np.ndarray) -> dict:
    if form == "npy":
        np.save(folder / "e.npy", embeddings)
        np.save(folder / "l.npy", labels)
        return {"private": "e.npy", "private_labels": "l.npy"}
    columns = (
        {"embeddings": embeddings.tolist()}
        if form == "list"
        else {f"e{i}": embeddings[:, i] for i in range(embeddings.shape[1])}
    )
    pq.write_table(pa.table(columns | {"labels": labels}), folder / "r.parquet")
    return {"private": "r.parquet"}


@pytest.mark.parametrize("form", ["npy", "list", "columns"])
def test_the_file_format_changes_nothing(files, rknn, form):
    embeddings, labels = blobs(90, 1)
    assert rknn(*arguments(epsilon=ALMOST_NO_NOISE, out="a")).status == 0
    assert (
        rknn(
            *arguments(
                epsilon=ALMOST_NO_NOISE, out="b", **write_as(form, files, embeddings, labels)
            )
        ).status
        == 0
    )
    for name in ("labels.npz", "queries.npz"):
        for one, other in zip(
            arrays(files / "a" / name).values(), arrays(files / "b" / name).values(), strict=True
        ):
            np.testing.assert_array_equal(one, other)


def test_text_labels_come_back_by_name(files, rknn):
    embeddings, labels = blobs(90, 1)
    names = np.array(["wolf", "ant", "bee"])
    np.savez(files / "R.npz", embeddings=embeddings, labels=names[labels])
    done = rknn(*arguments(epsilon=ALMOST_NO_NOISE, classes=None, infer_classes=True))
    rows = arrays(files / "new/labels.npz")
    assert rows["class_names"].tolist() == ["ant", "bee", "wolf"]
    np.testing.assert_array_equal(rows["class_names"][rows["label"]], names[np.arange(60) % 3])
    assert "wolf 20" in done.err


@pytest.mark.long
def test_cosine_takes_no_notice_of_length(files, rknn):
    lengths = np.random.default_rng(2).uniform(0.01, 100, (90, 1))
    np.savez(files / "Q.npz", embeddings=blobs(60, 0)[0] * lengths[:60])
    np.savez(files / "S.npz", embeddings=blobs(90, 1)[0] * lengths, labels=blobs(90, 1)[1])
    for out, public, private in (("a", "P.npz", "R.npz"), ("b", "Q.npz", "S.npz")):
        done = rknn(
            *arguments(
                epsilon=ALMOST_NO_NOISE, out=out, public=public, private=private, metric="cosine"
            )
        )
        assert done.status == 0, done.err
    np.testing.assert_array_equal(
        arrays(files / "a/labels.npz")["query"], arrays(files / "b/labels.npz")["query"]
    )
    np.testing.assert_array_equal(
        arrays(files / "a/queries.npz")["noisy_counts"],
        arrays(files / "b/queries.npz")["noisy_counts"],
    )


@pytest.mark.parametrize(
    ("mechanism", "delta", "words"),
    [
        ("permute_and_flip", 0, "epsilon = 1 (pure)"),
        ("gaussian", 1e-5, "epsilon = 1, delta = 1e-05"),
        ("binomial", 1e-5, "epsilon = 1, delta = 1e-05"),
    ],
)
def test_other_mechanisms_release_and_say_what_they_cost(files, rknn, mechanism, delta, words):
    done = rknn(*arguments(mechanism=mechanism, delta=delta), "--json")
    assert done.status == 0, done.err
    assert words in done.json["statement"]
    assert ("noisy_counts" in arrays(files / "new/queries.npz")) == (
        mechanism != "permute_and_flip"
    )
    assert (done.json["unsure"] is None) == (mechanism == "permute_and_flip")
    confidence = arrays(done.json["files"]["labels"])["confidence"]
    assert (
        np.isnan(confidence).all()
        if mechanism == "permute_and_flip"
        else ((confidence > 0.1) & (confidence <= 1)).all()
    )
    spent = Ledger.open(files / "R.npz.ledger.jsonl").spent
    assert (float(spent.epsilon), float(spent.delta)) == (1, delta)


def test_rows_are_unsure_whose_label_noise_turns_in_more_than_5_percent_of_runs():
    done = SimpleNamespace(confidence=np.array([0.99, 0.951, 0.949, 0.5]))
    assert label.unsure_share(done) == 0.5


def test_under_add_remove_n_is_not_told(files, rknn):
    embeddings, labels = blobs(977, 1)
    np.savez(files / "R.npz", embeddings=embeddings, labels=labels)
    events = []
    for more in ([], ["--dry-run"]):
        with progress.listening(events.append):
            done = rknn(
                *arguments(relation="add-remove", out="dry" if more else "new"), *more, "--json"
            )
        assert done.status == 0, done.err
        assert not re.search(
            r"(?<![\w.])977(?!\w)", done.out + done.err
        )  # as a number of its own: hashes and noise have any digits
        assert done.json["num_records"] is None
    counting = [event for event in events if event.phase == "counting"]
    assert {event.state for event in counting} == {"begun", "done"}
    assert {(event.step, event.steps) for event in counting} == {(0, None)}
    assert not any("977" in str(event.asdict() | {"memory": 0, "seconds": 0}) for event in events)
    card = json.loads((files / "new/privacy.json").read_text())
    assert card["guarantee"]["relation"] == "add-remove"
    assert not any("number of private records" in line for line in card["not_covered"])


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (None, "read from the private labels"),
        ("3", "taken as public"),
        ("a,b,c", "taken as public"),
    ],
)
def test_the_statement_says_where_the_classes_come_from(files, rknn, classes, words):
    done = rknn(
        *arguments(classes=classes, infer_classes=True if classes is None else None), "--json"
    )
    assert words in done.err
    assert (". Epsilon does not cover the set of classes" in done.json["statement"]) == (
        classes is None
    )


def test_the_fingerprint_of_the_private_data_stays_in_the_ledger(files, rknn):
    done = rknn(*arguments(), "--json")
    header = json.loads((files / "R.npz.ledger.jsonl").read_text().splitlines()[0])
    fingerprint = header["dataset"].removeprefix("sha256:")
    assert len(fingerprint) == 64
    assert fingerprint not in done.out + done.err + (files / "new/privacy.json").read_text()


@pytest.mark.long
def test_no_compiled_program_stays_on_the_disk(files, rknn):
    """It may hold a private record as a constant."""
    jax.config.update("jax_enable_compilation_cache", True)
    try:
        assert rknn(*arguments(), "--dry-run").status == 0
        assert not jax.config.jax_enable_compilation_cache
    finally:
        jax.config.update("jax_enable_compilation_cache", False)


def test_a_corrected_label_and_a_link_share_the_budget(copy, rknn):
    embeddings, labels = blobs(90, 1)
    np.savez(copy / "R.npz", embeddings=embeddings.astype(np.float64), labels=labels[::-1])
    (copy / "link.npz").symlink_to("R.npz")
    assert rknn(*arguments(private="link.npz")).status == 0
    assert Ledger.open(copy / "R.npz.ledger.jsonl").spent.epsilon == 2


def save_without_labels(path, embeddings):
    """Write private records whose labels have a head and no content, so that to read them fails."""
    np.savez(path, embeddings=embeddings)
    head = io.BytesIO()
    labels = np.zeros(len(embeddings), np.int64)
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(labels))
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("labels.npy", head.getvalue())


@pytest.mark.long
def test_a_dry_run_reads_no_private_label_and_changes_nothing(files, rknn):
    embeddings, labels = blobs(90, 1)
    save_without_labels(files / "R.npz", embeddings)
    before = contents(files)
    done = rknn(*arguments(), "--dry-run", "--classes", 3, "--json")
    assert done.status == 0, done.err
    assert contents(files) == before
    told = done.json
    assert told["required_gaps"] == {
        str(p): bsvs.required_gap(2.0, 3, p) for p in (0.05, 0.01, 0.001)
    }
    assert told["affordable"]
    assert str(told["required_gaps"]["0.05"]) in done.err
    assert told["advice"] in done.err


@pytest.mark.long
def test_a_dry_run_without_classes_says_what_it_assumes(files, rknn):
    assert "10 classes assumed" in rknn(*arguments(classes=None), "--dry-run").err


@pytest.mark.long
def test_a_dry_run_tells_that_a_release_would_be_refused(copy, rknn):
    done = rknn(*arguments(epsilon=9.5), "--dry-run", "--json")
    assert done.status == 0
    assert not done.json["affordable"]
    assert "would be refused" in done.err


@pytest.mark.long
def test_more_queries_than_public_rows_are_not_chosen(files, rknn):
    public, _ = blobs(5, 0)
    np.savez(files / "P.npz", embeddings=public)
    done = rknn(*arguments(epsilon=1000, queries=None), "--dry-run", "--json")
    assert done.json["num_queries"] == 5
    assert "no more public rows" in done.err


@pytest.mark.parametrize(
    ("error", "status"), [(OSError(28, "No space left on device"), 2), (KeyboardInterrupt(), 130)]
)
def test_a_spend_stands_where_the_labels_could_not_be_written(
    copy, rknn, monkeypatch, error, status
):
    def fail(*_):
        raise error

    monkeypatch.setattr(label, "write", fail)
    done = rknn(*arguments(), "--json")
    assert done.status == status
    assert "the same command with --out new finishes the release and pays nothing" in done.err
    assert "The release is paid for" in done.json["error"]
    monkeypatch.undo()
    monkeypatch.chdir(copy)
    assert rknn(*arguments()).status == 0
    assert Ledger.open(copy / "R.npz.ledger.jsonl").spent.epsilon == 2


def test_what_fails_before_the_charge_says_nothing_of_a_spend(copy, rknn, monkeypatch):
    before = contents(copy)
    monkeypatch.setattr(
        Ledger, "charge", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error"))
    )
    done = rknn(*arguments())
    assert done.status == 2
    assert "spend" not in done.err
    assert contents(copy) == before


def test_the_ledger_is_charged_before_the_noise_is_drawn(files, rknn, monkeypatch):

    def spent(counts, scale):
        assert Ledger.open(files / "R.npz.ledger.jsonl").spent.epsilon == 1
        raise ValueError("drawn")

    monkeypatch.setattr(exact_noise, "discrete_laplace", spent)
    assert "drawn The release is paid for" in rknn(*arguments()).err


def changed(**fields):
    """Return arguments for a private file with these arrays in place of the good ones; None
    leaves one out.
    """

    def make(folder):
        embeddings, labels = blobs(90, 1)
        kept = {
            name: a
            for name, a in ({"embeddings": embeddings, "labels": labels} | fields).items()
            if a is not None
        }
        np.savez(folder / "bad.npz", **kept)
        return {"private": "bad.npz", "ledger": "R.npz.ledger.jsonl"}

    return make


def public(embeddings):
    def make(folder):
        np.savez(folder / "bad.npz", embeddings=embeddings)
        return {"public": "bad.npz"}

    return make


def damaged(name, content):
    def make(folder):
        (folder / name).write_bytes(content((folder / "R.npz").read_bytes()))
        return {"private": name, "ledger": "R.npz.ledger.jsonl"}

    return make


def with_ledger(text_change):
    def make(folder):
        (folder / "other.jsonl").write_bytes(
            text_change((folder / "R.npz.ledger.jsonl").read_bytes())
        )
        return {"ledger": "other.jsonl"}

    return make


def truncated_parquet(folder):
    pq.write_table(
        pa.table({"embeddings": blobs(90, 1)[0].tolist(), "labels": blobs(90, 1)[1]}),
        folder / "bad.parquet",
    )
    (folder / "bad.parquet").write_bytes((folder / "bad.parquet").read_bytes()[:-20])
    return {"private": "bad.parquet", "ledger": "R.npz.ledger.jsonl"}


def file_in_the_way(folder):
    (folder / "plain").write_text("a file")
    return {"out": "plain/new"}


def lonely_npy(folder):
    np.save(folder / "e.npy", blobs(90, 1)[0])
    return {"private": "e.npy", "ledger": "R.npz.ledger.jsonl"}


EMBEDDINGS, LABELS = blobs(90, 1)
NAN = np.where(np.arange(4) == 2, np.nan, EMBEDDINGS)
INFER = {"classes": None, "infer_classes": True}
HUGE = np.where(np.arange(4) == 2, 1e30, EMBEDDINGS)
BAD = {
    "NaN": (public(NAN), ["--public bad.npz", "NaN", "row 0", "repair"]),
    "infinite": (
        public(np.where(np.isnan(NAN), -np.inf, NAN)),
        ["--public bad.npz", "infinity", "repair"],
    ),
    "huge": (public(HUGE), ["--public bad.npz", "rescale"]),
    "width": (
        changed(embeddings=EMBEDDINGS[:, :3]),
        ["3 dimensions in --private bad.npz", "4 in --public", "same model"],
    ),
    "no classes": (
        dict(classes=None),
        ["--classes, got none", "--infer-classes", "epsilon does not cover"],
    ),
    "classes from fractions": (
        lambda folder: changed(labels=LABELS + 0.5)(folder) | INFER,
        ["other numbers", "number the classes"],
    ),
    "text and a number of classes": (
        changed(labels=LABELS.astype(str)),
        ["name the text labels", "--classes a,b,c"],
    ),
    "labels missing": (
        changed(labels=None),
        ["'labels'", "bad.npz", "found embeddings", "--private-labels"],
    ),
    "labels of no record": (
        lambda folder: changed(labels=np.full(90, -1))(folder) | INFER,
        ["classes", "got 0", "--classes"],
    ),
    "embeddings missing": (
        changed(embeddings=None, X=EMBEDDINGS),
        ["'embeddings'", "found labels, X", "rename"],
    ),
    "labels too few": (changed(labels=LABELS[:-1]), ["89 labels", "90 embeddings", "same order"]),
    "k > s": (dict(neighbors=5), ["--neighbors 5", "--queries 4", "fewer neighbors"]),
    "k = 0": (dict(neighbors=0), ["--neighbors 0"]),
    "s = 0": (dict(queries=0), ["--queries 0"]),
    "s > public rows": (dict(queries=61), ["61 queries", "60 rows", "P.npz", "fewer --queries"]),
    "s > distinct public rows": (
        public(np.repeat(EMBEDDINGS[:3], 20, axis=0)),
        ["4 distinct", "got 3", "--queries 3"],
    ),
    "no record": (
        changed(embeddings=EMBEDDINGS[:0], labels=LABELS[:0]),
        ["--private bad.npz", "no row", "one row a record"],
    ),
    "no public row": (public(EMBEDDINGS[:0]), ["--public bad.npz", "no row"]),
    "no dimension": (changed(embeddings=EMBEDDINGS[:, :0]), ["--private bad.npz", "(1, 0)"]),
    "one axis": (changed(embeddings=EMBEDDINGS[:, 0]), ["--private bad.npz", "(1,)"]),
    "complex": (
        changed(embeddings=EMBEDDINGS.astype(complex)),
        ["--private bad.npz", "complex128", "float32"],
    ),
    "text embeddings": (changed(embeddings=EMBEDDINGS.astype(str)), ["--private bad.npz", "<U"]),
    "pickled embeddings": (
        changed(embeddings=EMBEDDINGS.astype(object)),
        ["--private bad.npz", "never loaded", "can run code"],
    ),
    "pickled labels": (
        changed(labels=LABELS.astype(object)),
        ["--private bad.npz", "never loaded", "astype(str)"],
    ),
    "one class": (
        lambda folder: changed(labels=LABELS * 0)(folder) | INFER,
        ["2 classes", "got 1", "--classes"],
    ),
    "public is private": (dict(public="R.npz"), ["--public", "R.npz", "is public"]),
    "epsilon 0": (dict(epsilon="0"), ["--epsilon 0.0", "such as 1"]),
    "epsilon negative": (dict(epsilon="-1"), ["--epsilon -1.0"]),
    "epsilon NaN": (dict(epsilon="nan"), ["--epsilon nan"]),
    "epsilon large": (
        dict(epsilon="50.1"),
        ["at most 50", "--epsilon 50.1", "--allow-large-epsilon"],
    ),
    "epsilon infinite": (dict(epsilon="inf"), ["--epsilon inf"]),
    "epsilon a word": (dict(epsilon="much"), ["--epsilon"]),
    "delta 1": (dict(delta="1", mechanism="gaussian"), ["--delta 1.0", "1e-5"]),
    "delta negative": (dict(delta="-0.1", mechanism="gaussian"), ["--delta -0.1"]),
    "delta NaN": (dict(delta="nan", mechanism="gaussian"), ["--delta nan"]),
    "gaussian without delta": (
        dict(mechanism="gaussian"),
        ["gaussian", "--delta 0", "--delta 1e-5"],
    ),
    "delta for nothing": (
        dict(delta="1e-5"),
        ["discrete_laplace", "--delta 1e-05", "leave it out"],
    ),
    "unknown mechanism": (
        dict(mechanism="lapalce"),
        ["'discrete_laplace'", "'gaussian'", "'permute_and_flip'", "mechanism='lapalce'"],
    ),
    "mechanism without an exact form": (
        dict(mechanism="laplace"),
        [
            "['binomial', 'discrete_laplace', 'gaussian', 'one_to_one', 'permute_and_flip']",
            "mechanism='laplace'",
        ],
    ),
    "mechanism of clients": (dict(mechanism="collision"), ["mechanism='collision'"]),
    "unknown option": (dict(noise_seed="1"), ["--noise-seed"]),
    "n private and no s": (
        dict(relation="add-remove", queries=None),
        ["--queries", "add-remove", "private"],
    ),
    "other relation": (dict(relation="add-remove"), ["relation", "replace-one"]),
    "seed": (dict(seed="-1"), ["--seed -1"]),
    "no file": (dict(private="none.npz"), ["--private none.npz", "No such file"]),
    "a folder": (
        lambda folder: (folder / "x.npz").mkdir() or {"private": "x.npz"},
        ["--private x.npz", "folder"],
    ),
    "unknown format": (
        lambda folder: (folder / "R.xls").write_text("x") and {"private": "R.xls"},
        ["--private R.xls", ".parquet"],
    ),
    "truncated npz": (
        damaged("bad.npz", lambda data: data[:-100]),
        ["--private bad.npz", "damaged"],
    ),
    "truncated npy": (damaged("bad.npy", lambda data: data[:50]), ["bad.npy"]),
    "empty file": (damaged("bad.npz", lambda data: b""), ["--private bad.npz", "damaged"]),
    "no npz at all": (
        damaged("bad.npz", lambda data: b"embeddings,labels\n"),
        ["--private bad.npz", "NumPy"],
    ),
    "truncated Parquet": (truncated_parquet, ["--private bad.parquet", "damaged"]),
    "no Parquet at all": (
        damaged("bad.parquet", lambda data: data),
        ["--private bad.parquet", "damaged"],
    ),
    "npy without labels": (lonely_npy, ["--private-labels", "e.npy"]),
    "folder not writable": (file_in_the_way, ["--out plain/new", "name another"]),
    "folder holds a release": (
        dict(out="earlier"),
        ["--out earlier", "labels.npz", "another folder"],
    ),
    "ledger of other data": (
        changed(embeddings=EMBEDDINGS + 1),
        ["R.npz.ledger.jsonl", "data set"],
    ),
    "budget differs": (dict(budget="5"), ["--budget 10.0", "--budget 5.0", "rknn budget raise"]),
    "budget delta differs": (
        dict(budget_delta="1e-6"),
        ["--budget-delta 0.0", "rknn budget raise"],
    ),
    "budget NaN": (dict(budget="nan"), ["--budget nan"]),
}
REFUSED = {
    "budget spent": (dict(epsilon="9.5"), ["epsilon=9.5", "epsilon=9.0", "rknn budget raise"]),
    "delta never allowed": (
        dict(mechanism="gaussian", delta="1e-5"),
        ["delta=1e-05", "delta=0.0", "rknn budget raise"],
    ),
    "first budget below epsilon": (
        dict(ledger="fresh.jsonl", budget="0.5"),
        ["epsilon=1.0", "epsilon=0.5", "ask for less"],
    ),
}
CORRUPT = {
    "ledger changed": (
        with_ledger(lambda text: text.replace(b'"10"', b'"99"')),
        ["other.jsonl", "good copy"],
    ),
    "ledger is another file": (dict(ledger="P.npz"), ["P.npz", "good copy"]),
    "ledger empty": (with_ledger(lambda text: b""), ["other.jsonl", "good copy"]),
}


@pytest.mark.parametrize(
    ("status", "change", "words"),
    [
        pytest.param(status, *case, id=name)
        for status, cases in ((2, BAD), (3, REFUSED), (5, CORRUPT))
        for name, case in cases.items()
    ],
)
def test_bad_input_is_named_and_changes_nothing(copy, rknn, status, change, words):
    changes = change(copy) if callable(change) else change
    before = contents(copy)
    done = rknn(*arguments(**changes))
    assert done.status == status, done.err
    missing = [word for word in words if word not in " ".join(done.err.split())]
    assert not missing, done.err
    assert "Traceback" not in done.err
    assert done.out == ""
    assert contents(copy) == before


def test_text_labels_and_a_number_of_classes_are_refused_before_clustering(copy, rknn, monkeypatch):
    monkeypatch.setattr(questions, "select_queries", None)
    done = rknn(*arguments(**changed(labels=LABELS.astype(str))(copy)))
    assert "name the text labels" in done.err


def test_json_is_the_last_line_also_of_a_refusal(copy, rknn):
    done = rknn(*arguments(epsilon="9.5"), "--json")
    assert done.json["exit_status"] == done.status == 3
    assert done.json["error"] in done.err
    assert len(done.out.splitlines()) == 1


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        (["show", "none.jsonl"], 2, "none.jsonl"),
        (["show", "P.npz"], 5, "good copy"),
        (
            ["raise", "R.npz.ledger.jsonl", "--epsilon", "0.5", "--reason", "less"],
            2,
            "at least epsilon=1.0",
        ),
        (
            ["raise", "R.npz.ledger.jsonl", "--epsilon", "nan", "--reason", "more"],
            2,
            "--epsilon nan",
        ),
        (["raise", "R.npz.ledger.jsonl", "--epsilon", "20", "--reason", " "], 2, "reason"),
        (["raise", "R.npz.ledger.jsonl", "--epsilon", "20"], 2, "--reason"),
    ],
)
def test_a_bad_budget_command_changes_nothing(copy, rknn, argv, status, words):
    before = contents(copy)
    done = rknn("budget", *argv)
    assert done.status == status
    assert words in done.err
    assert contents(copy) == before


def test_raising_keeps_delta_unless_it_is_given(copy, rknn):
    ledger = copy / "R.npz.ledger.jsonl"
    assert (
        rknn("budget", "raise", ledger, "--epsilon", 20, "--reason", "a", "--delta", 1e-4).status
        == 0
    )
    assert rknn("budget", "raise", ledger, "--epsilon", 30, "--reason", "b", "--json").json[
        "budget"
    ] == {"epsilon": 30, "delta": 1e-4}


WITHOUT_JAX = """
import os
import sys
from importlib.metadata import entry_points
os._exit = sys.exit  # so that the process goes on to the second command
[script] = entry_points(group="console_scripts", name="rknn")
command = script.load()
def run(*words):
    sys.argv = ["rknn", *words]
    try:
        command()
    except SystemExit as exit:
        return exit.code
status = run("budget", "show", "R.npz.ledger.jsonl", "--json")
run("--help")
sys.exit(status or "jax" in sys.modules)
"""


@pytest.mark.long
def test_the_console_script_answers_without_loading_jax(copy):
    assert (Path(sysconfig.get_path("scripts")) / "rknn").exists()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX], cwd=copy, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[0])["remaining"]["epsilon"] == 9
    assert "usage: rknn" in done.stdout


@pytest.mark.long
def test_simulate_ends_with_the_error_and_the_speed(rknn):
    for level, clients in (("message", 20_000), ("count", 1e9)):
        done = rknn(
            "simulate",
            "--clients",
            clients,
            "--mechanism",
            "collision",
            "--queries",
            20,
            "--level",
            level,
            "--json",
        )
        assert done.status == 0, done.err
        told = done.json
        assert (told["clients"], told["level"]) == (clients, level)
        assert told["mse"] == pytest.approx(
            told["predicted_mse"], rel=0.45
        )  # 200 cells: 4.5 standard errors
        assert abs(told["bias_z"]) < 4.5
        assert told["clients_per_second"] == pytest.approx(told["clients"] / told["seconds"])


def test_the_best_mechanism_is_named_with_its_reason(rknn, monkeypatch):
    told = simulate.Simulation(1000, "message", 1.0, 1000.0, 1.0, 1.0, 0.0)
    monkeypatch.setattr(
        simulate, "simulate", lambda *_, **__: told
    )  # it compiles for as long as all tests of this kind take
    done = rknn(
        "simulate", "--clients", 1000, "--mechanism", "best", "--queries", 4, "--classes", 5
    )
    assert re.search(
        r"best +variance .*subset_selection [\d.]+ at 21 bits, .*randomized_response", done.err
    )
    assert "SubsetSelection(epsilon=1.0" in done.err


@pytest.mark.parametrize(
    ("arguments", "epsilon", "local"),
    [
        (("--epsilon", 1), 1, 7.2511),
        (("--local-epsilon", 4), 0.155431, 4),
        (("--epsilon", 0.1, "--bound", "closed-form"), 0.1, 1.0598),
    ],
)
def test_account_shuffle_converts_both_ways(rknn, arguments, epsilon, local):
    told = rknn(
        "account", "shuffle", "--clients", 60_000, "--delta", 1e-6, *arguments, "--json"
    ).json
    assert told["epsilon"] == pytest.approx(epsilon, abs=1e-5)
    assert told["local_epsilon"] == pytest.approx(local, abs=3e-4)
    assert told["bound"] in ("general", "closed-form")


def test_account_shuffle_rounds_a_cost_up_and_what_is_allowed_down(rknn):
    many = ("account", "shuffle", "--clients", 60_000, "--delta", 1e-6)
    allowed = rknn(*many, "--epsilon", 1).out
    assert "epsilon = 7.25112 (pure)" in allowed, "7.2511242 is allowed"
    assert "epsilon = 1, delta" in allowed
    cost = rknn(*many, "--local-epsilon", 7.25112).out
    assert "epsilon = 7.25112 (pure)" in cost
    assert "epsilon = 0.999998, delta" in cost


def test_an_accountant_that_overflows_is_left_out_beside_others(rknn):
    many = ("account", "lnmax", "--answers", 1000, "--delta", 0.5, "--scale", 1)
    told = rknn(*many, "--json").json
    assert set(told["accountants"]) == {"moments, as published", "pure", "RDP"}
    assert "inf" not in rknn(*many).out


def test_account_rounds_names_the_tightest_accountant(rknn):
    told = rknn(
        "account",
        "rounds",
        "--epsilon",
        0.1,
        "--rounds",
        10,
        "--delta",
        1e-5,
        "--votes-alone",
        "--json",
    ).json
    assert told["accountants"]["pure"] == pytest.approx(1)
    assert told["epsilon"] == pytest.approx(0.7765, abs=1e-4)
    assert told["accountant"] == "PLD"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("simulate", "--clients", 0.5), "--clients 0.5"),
        (("simulate", "--clients", 10, "--mechanism", "laplace"), "mechanism='laplace'"),
        (
            ("simulate", "--clients", 10, "--mechanism", "subset_selection", "--level", "count"),
            "level=message",
        ),
        (("simulate", "--clients", 10, "--queries", 1, "--classes", 1), "ask more queries"),
        (("simulate", "--clients", 10, "--epsilon", 51), "--epsilon of at most 50"),
        (("account", "shuffle", "--clients", 100, "--delta", 1e-6), "--local-epsilon None"),
        (
            (
                "account",
                "shuffle",
                "--clients",
                10_000,
                "--delta",
                1e-6,
                "--local-epsilon",
                4,
                "--bound",
                "closed-form",
            ),
            "3.76301",
        ),
        (("account", "shuffle", "--clients", 100, "--delta", 0, "--epsilon", 1), "--delta 0.0"),
        (("account", "rounds", "--epsilon", 1, "--rounds", 0), "--rounds 0"),
        (("account", "rounds", "--epsilon", 1e300, "--rounds", 10**9), "promise nothing together"),
        (
            ("account", "rounds", "--epsilon", 1e308, "--rounds", 5, "--delta", 1e-9),
            "promise nothing together",
        ),
    ],
)
def test_what_cannot_be_calculated_is_named(rknn, arguments, words):
    done = rknn(*arguments, "--json")
    assert done.status == done.json["exit_status"] == 2
    assert words in done.json["error"]


def test_account_shuffle_is_cheaper_for_a_named_mechanism(rknn):
    given = ("account", "shuffle", "--clients", 10_000, "--delta", 1e-6)
    told = rknn(
        *given,
        "--bound",
        "variation-ratio",
        "--mechanism",
        "randomized_response",
        "--local-epsilon",
        3,
        "--json",
    ).json
    assert (told["bound"], told["mechanism"]) == ("variation-ratio", "randomized_response")
    assert told["epsilon"] == pytest.approx(0.187278, abs=5e-6)
    assert told["total_variation"] == pytest.approx(math.tanh(3 / 4))
    several = rknn(
        *given, "--mechanism", "collision", "--neighbors", 4, "--epsilon", 0.5, "--json"
    ).json
    assert several["bound"] == "variation-ratio", "the default for a named mechanism"
    assert (
        several["local_epsilon"]
        > rknn(*given, "--epsilon", 0.5, "--json").json["local_epsilon"] + 0.5
    )
    mechanism = mechanisms.make(
        "collision",
        epsilon=several["local_epsilon"],
        num_queries=100,
        num_classes=10,
        num_neighbors=4,
    )
    assert several["total_variation"] == mechanism.total_variation


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--bound", "variation-ratio"), "Expected --mechanism with --bound variation-ratio"),
        (
            ("--bound", "general", "--mechanism", "collision"),
            "got --bound general, --mechanism collision",
        ),
        (("--bound", "variation-ratio", "--mechanism", "laplace"), "mechanism='laplace'"),
    ],
)
def test_a_mechanism_goes_with_the_variation_ratio_bound_alone(rknn, arguments, words):
    done = rknn(
        "account",
        "shuffle",
        "--clients",
        100,
        "--delta",
        1e-6,
        "--epsilon",
        1,
        *arguments,
        "--json",
    )
    assert done.status == 2
    assert words in done.json["error"]


class Lost:
    """Ctrl-C in its finalizer, where Python drops the exception."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_is_lost_comes_again(monkeypatch):
    monkeypatch.setattr(terminal, "AGAIN", 0.05)
    # In the background of a shell, interrupts are ignored.
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.getsignal(signal.SIGINT)
    stopped = False
    try:
        with terminal.sure_interrupts():
            lost = Lost()
            del lost
            stopped = True  # the first one is dropped
            time.sleep(10)
            raise AssertionError("the interrupt did not come again")
    except KeyboardInterrupt:
        assert stopped
    assert signal.getsignal(signal.SIGINT) is before
    time.sleep(0.1)  # and no more of them
    signal.signal(signal.SIGINT, outside)


def test_the_program_leaves_with_the_status_of_the_command():
    code = "from rknn_jax._internal.terminal import leave; print('told'); leave({})"
    for status in (0, 2, 130):
        done = subprocess.run(
            [sys.executable, "-c", code.format(status)], capture_output=True, check=False
        )
        assert (done.returncode, done.stdout) == (status, b"told\n")


@pytest.mark.long
def test_the_budget_is_told_beside_the_cost_of_a_release(rknn, files):
    """A new user takes --epsilon for the budget, and without --budget they are equal."""
    told = " ".join(rknn(*arguments(epsilon=0.5), "--dry-run").err.split())
    assert "together is epsilon=0.5, delta=0.0, set once by --budget" in told
    assert "this release costs epsilon=0.5, delta=0.0, so that nothing is left" in told
    told = " ".join(rknn(*arguments(epsilon=0.5, budget=2)).err.split())
    assert "together is epsilon=2.0, delta=0.0" in told
    assert "nothing is left" not in told
    assert "spent in all, by this release and earlier ones, of its budget, epsilon=2.0" in told
    told = " ".join(rknn(*arguments(epsilon=0.25, out="b"), "--dry-run").err.split())
    assert "epsilon=1.5, delta=0.0 left of its budget, epsilon=2.0, delta=0.0" in told
    assert "this release would cost epsilon=0.25, delta=0.0" in told
    shown = " ".join(rknn("budget", "show", "R.npz.ledger.jsonl").out.split())
    assert "budget epsilon=2.0, delta=0.0, for all releases of these records together" in shown
    assert "remaining epsilon=1.5, delta=0.0, for further releases" in shown


@pytest.mark.parametrize("end", ["\n", "\r", "\v", "\x85", "\u2028", "\x1b[1A", "\u202e"])
def test_what_a_server_or_a_file_says_is_no_line_of_the_program(end, capsys):
    terminal.tell(terminal.err, "refused", f"trust={end}warning     raise the budget")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("refused     trust=\\x")
    assert line.endswith("warning     raise the budget")
    assert end not in line


def test_an_error_of_a_compiled_program_has_our_words_alone(rknn, tmp_path):
    np.savez(tmp_path / "public.npz", images=np.zeros((20, 8, 8), np.uint8))
    words = "serve --public public.npz --classes 2 --epsilon 1 --clients 1 --out round"
    done = rknn(*words.split(), "--representation", "hog")
    assert done.status == 2
    assert "JAX" not in done.err
    assert "got 8x8" in done.err


def test_what_is_said_of_a_charge_is_said_in_every_folder(rknn, files, monkeypatch):
    def fail(*_):
        raise OSError("the disk has gone")

    monkeypatch.setattr(exact_noise, "discrete_laplace", fail)
    done = rknn(*arguments(out="JAX/out"))
    assert done.status == 2
    assert "The release is paid for, and nothing is lost" in " ".join(done.err.split())
