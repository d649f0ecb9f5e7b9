"""Results in other programs' forms: what is read back is what was released, also by programs
that know nothing of this package.
"""

import csv
import dataclasses
import functools
import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import jax
import numpy as np
import onnx
import onnxruntime
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open
from safetensors.numpy import load

from rknn_jax._internal import onnx_file
from rknn_jax._internal.disk import write_arrays
from rknn_jax.federation import publish, round_folder, wire
from rknn_jax.federation.collector import Collector, Reply
from rknn_jax.federation.request import Asked, Public
from rknn_jax.labelers import _linear_head
from rknn_jax.labelers import rknn as labeler
from rknn_jax.labelers._cosines import PublicCosines
from rknn_jax.labelers._public_ball import Ball
from rknn_jax.labelers.noisy_sgd import Head
from rknn_jax.labelers.public_prototypes import Nearest
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.release import export, networks
from rknn_jax.representations import pca
from rknn_jax.students import ensemble
from rknn_jax.students import fit as students
from rknn_jax.students.ensemble import Ensemble
from rknn_jax.students.fit import Student
from rknn_jax.students.inputs import Scale
from rknn_jax.students.models import linear, mlp
from tests.test_cli import ALMOST_NO_NOISE, arguments, arrays, blobs, make_files
from train import distill
from train.experiment import Experiment

GUARANTEE = Guarantee(math.inf, 0.0, "replace-one", "central", ()).asdict()
AWKWARD = ['a,b "c"', "two\r\nlines\n", "=1+1"]
TINY = Experiment(
    dataset="digits",
    epsilon=4.0,
    queries=20,
    noise_seed=0,
    representation=pca.Config(),
    student=None,
)


def csv_rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


def folder_of(path: Path, **changes) -> Path:
    """A folder with three labels by hand, of which the second is missing; None leaves a file or
    an array out.
    """
    path.mkdir(exist_ok=True)
    rows = {
        "label": np.int32([2, -1, 0]),
        "query": np.int32([5, -1, -1]),
        "confidence": np.float32([0.1, np.nan, 1.0]),
        "probability": np.float32([[0.1, 0.2, 0.7], [0, 0, 0], [1 / 3, 1 / 3, 1 / 3]]),
    }
    held = {name: array for name, array in (rows | changes).items() if array is not None}
    np.savez(path / "labels.npz", **held)
    (path / "privacy.json").write_text(json.dumps({"guarantee": GUARANTEE}))
    return path


def weighted(model: str, shape: tuple[int, int, int], seed: int) -> Student:
    """A network of random weights, and of batch statistics that matter."""
    config = students.Config(model=model)
    drawn = students.drawn(
        students.network_of(config, 4), jax.random.key(seed), np.zeros((1, *shape), np.uint8)
    )
    rng = np.random.default_rng(seed)
    stats = jax.tree.map(
        lambda leaf: np.asarray(0.2 * leaf + rng.uniform(0, 0.1, leaf.shape), np.float32),
        drawn["batch_stats"],
    )
    return Student(jax.tree.map(np.asarray, drawn["params"]), stats, config, 4, shape)


def head(network, seed: int) -> Head:
    params = jax.tree.map(
        np.asarray,
        network.init(jax.random.key(seed), np.zeros((1, 6), np.float32), train=False)["params"],
    )
    params = jax.tree.map(
        lambda leaf: np.asarray(np.random.default_rng(seed).normal(size=leaf.shape), np.float32),
        params,
    )
    return Head(
        params, np.arange(6, dtype=np.float32), np.float32(2.5), network, lambda features: features
    )


# Labels


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_awkward_names_survive_from_the_private_file_to_the_export(rknn, tmp_path, form):
    make_files(tmp_path)
    embeddings, labels = blobs(90, 1)
    np.savez(tmp_path / "R.npz", embeddings=embeddings, labels=labels, classes=np.array(AWKWARD))
    assert (
        rknn(*arguments(epsilon=ALMOST_NO_NOISE, budget=ALMOST_NO_NOISE, classes=None)).status == 0
    )
    done = rknn("export", "new", "--format", form, "--json")
    assert done.status == 0, done.err
    path = tmp_path / "new" / f"labels.{form}"
    assert done.json["files"] == {"labels": f"new/labels.{form}"}
    rows = csv_rows(path) if form == "csv" else pq.read_table(path).to_pylist()
    assert [row["label"] for row in rows] == [AWKWARD[i % 3] for i in range(60)]
    assert list(rows[0]) == [
        "row",
        "label",
        "query",
        "confidence",
        "score",
        *(f"probability_{name}" for name in AWKWARD),
    ]
    saved = arrays(tmp_path / "new/labels.npz")
    columns = {"query": saved["query"], "confidence": saved["confidence"], "row": np.arange(60)}
    columns["score"] = saved["probability"].max(axis=1)
    columns |= {f"probability_{name}": saved["probability"][:, i] for i, name in enumerate(AWKWARD)}
    for name, array in columns.items():
        read = np.array([row[name] for row in rows]).astype(array.dtype)
        np.testing.assert_array_equal(read, array, err_msg=name)  # to the bit, from text too


def test_csv_follows_rfc_4180_and_other_readers_agree(tmp_path):
    names = np.array([*AWKWARD[:2], "=1+1"])
    export.write(folder_of(tmp_path / "run", class_names=names, label=np.int32([0, 1, 2])), "csv")
    data = (tmp_path / "run/labels.csv").read_bytes()
    assert data.startswith(
        b'row,label,query,confidence,score,"probability_a,b '
        b'""c""","probability_two\r\nlines\n",probability_=1+1\r\n'
    )
    assert data.endswith(b"\r\n")
    assert b'\r\n0,"a,b ""c""",5,0.1,0.1,0.1,0.2,0.7\r\n' in data
    read = pyarrow.csv.read_csv(
        tmp_path / "run/labels.csv", parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True)
    )
    assert read["label"].to_pylist() == names.tolist()


def test_what_is_not_known_is_null_and_an_empty_field(tmp_path):
    folder = folder_of(tmp_path / "run")
    for form in ("csv", "parquet"):
        export.write(folder, form)
    table = pq.read_table(folder / "labels.parquet")
    assert table.select(["row", "label", "query"]).to_pydict() == {
        "row": [0, 1, 2],
        "label": [2, None, 0],
        "query": [5, None, None],
    }
    assert table["confidence"].null_count == table["score"].null_count == 1
    assert table["score"].to_numpy()[[0, 2]].tolist() == np.float32([0.7, 1 / 3]).tolist()
    assert {str(table.schema.field(name).type) for name in ("row", "label", "query")} == {"int64"}
    assert str(table.schema.field("probability_2").type) == "float"
    assert json.loads(table.schema.metadata[b"guarantee"]) == GUARANTEE
    assert [
        (row["label"], row["query"], row["confidence"]) for row in csv_rows(folder / "labels.csv")
    ] == [
        ("2", "5", "0.1"),
        ("", "", ""),
        ("0", "", "1.0"),
    ]


@pytest.mark.slow
def test_folders_of_all_three_kinds_are_taken_alike(rknn, tmp_path):
    make_files(tmp_path)
    assert rknn(*arguments(classes="ant,bee,cow", out="label")).status == 0
    distill.main(Experiment(**{**vars(TINY), "out": tmp_path / "distill"}))
    mine = Public(blobs(60, 0)[0])
    asked = Asked(
        labeler.ReverseKNN(epsilon=2.0, mechanism="randomized_response", trust="local"),
        ("x", "y", "z"),
        4,
        student="none",
    )
    round, queries = round_folder.prepare(tmp_path / "serve", mine, asked, lambda *_: None)
    collector = Collector(tmp_path / "serve", round)
    collector.receive([Reply(0, round.id, bytes(wire.message_bytes(round.mechanism)))])
    publish.publish(tmp_path / "serve", mine, asked, queries, collector, lambda *_: None)

    names = {
        "label": ("ant", "bee", "cow"),
        "distill": tuple("0123456789"),
        "serve": ("x", "y", "z"),
    }
    for kind in names:
        told = rknn("inspect", kind, "--json").json
        assert [one["name"] for one in told["classes"]] == list(names[kind])
        assert sum(one["labels"] for one in told["classes"]) == told["num_rows"]
        assert all(one["noise"] > 0 for one in told["classes"])
    for kind, form in itertools.product(names, ("csv", "parquet")):
        assert rknn("export", kind, "--format", form).status == 0, (kind, form)
        saved = arrays(tmp_path / kind / "labels.npz")
        path = tmp_path / kind / f"labels.{form}"
        classes = names[kind]
        rows = csv_rows(path) if form == "csv" else pq.read_table(path).to_pylist()
        assert [row["label"] for row in rows] == [classes[i] for i in saved["label"]], (kind, form)
        assert list(rows[0])[5:] == [f"probability_{name}" for name in classes], (kind, form)
        if form == "parquet":
            card = json.loads((tmp_path / kind / "privacy.json").read_text())
            told = json.loads(pq.read_schema(path).metadata[b"guarantee"])
            assert told == (card["whole"] if kind == "distill" else card["guarantee"]), kind


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "privacy.json").unlink(),
        lambda folder: (folder / "labels.npz").unlink(),
        lambda folder: (folder / "labels.npz").write_bytes(
            (folder / "labels.npz").read_bytes()[:-50]
        ),
        lambda folder: (folder / "privacy.json").write_text("{}"),
        lambda folder: folder_of(folder, query=None),
        lambda folder: folder_of(folder, class_names=np.array(["a", "b"])),
        lambda folder: folder_of(folder, label=np.array([{}] * 3, object)),
    ],
    ids=[
        "unfinished",
        "no labels",
        "damaged",
        "no guarantee",
        "no query",
        "fewer names",
        "pickled",
    ],
)
def test_a_folder_that_is_no_finished_one_is_named_and_left_alone(rknn, tmp_path, spoil):
    spoil(folder_of(tmp_path / "run"))
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    done = rknn("export", "run", "--format", "csv")
    assert done.status == 2
    assert "finished folder of rknn label, rknn serve or train.distill, got run" in done.err
    assert "Traceback" not in done.err
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_an_export_that_fails_leaves_the_earlier_one(rknn, tmp_path, monkeypatch, form):
    folder = folder_of(tmp_path / "run")
    (folder / f"labels.{form}").write_bytes(b"earlier")
    monkeypatch.setattr(
        os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    done = rknn("export", "run", "--format", form)
    assert done.status == 2
    assert "No space left" in done.err
    assert (folder / f"labels.{form}").read_bytes() == b"earlier"
    monkeypatch.undo()
    export.write(folder, form)
    assert {path.name for path in folder.iterdir()} == {
        "labels.npz",
        "privacy.json",
        f"labels.{form}",
    }


def test_a_missing_package_is_named_with_its_extra(rknn, tmp_path, monkeypatch):
    folder = folder_of(tmp_path / "run")
    head(linear.Model(4), 0).save(folder / "model")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "jax._src.export.serialization", None)
    assert "pip install 'rknn-jax[parquet]'" in rknn("export", "run", "--format", "parquet").err
    assert "pip install 'rknn-jax[stablehlo]'" in rknn("export", "run", "--format", "stablehlo").err


# Programs for annotation


def annotated(folder: Path, form: str, threshold: float = 0.0) -> tuple[Path, ...]:
    """Three records with pictures and texts, of which the second has no label."""
    carried = {
        "class_names": np.array(AWKWARD),
        "row": np.int64([4, 5, 6]),
        "public_comment": np.array(["<1>", "2", "3"]),
        "file": np.array(["a.png", "b.png", "c.png"]),
        "public_age": np.float64([30, 40, 50]),
    }
    folder_of(folder)
    write_arrays(folder / "labels.npz", arrays(folder / "labels.npz") | carried)
    return export.write(folder, form, threshold)


def test_label_studio_shows_pictures_and_has_no_prediction_without_a_label(tmp_path):
    tasks_path, interface = annotated(tmp_path, "label-studio")
    tasks = json.loads(tasks_path.read_text())
    assert [task["data"]["row"] for task in tasks] == [4, 5, 6]
    assert tasks[0]["data"] == {"row": 4, "file": "a.png", "comment": "<1>", "age": 30.0}
    assert [len(task["predictions"]) for task in tasks] == [1, 0, 1]
    [prediction] = tasks[0]["predictions"]
    assert prediction["score"] == pytest.approx(0.7)
    view = ElementTree.fromstring(interface.read_text())
    shown, choices = view
    assert (shown.tag, shown.get("name"), shown.get("value")) == ("Image", "record", "$file")
    assert (choices.get("name"), choices.get("toName")) == ("label", "record")
    # A line break in an attribute is a blank to an XML parser, and so would be one in Label Studio.
    names = [choice.get("value") for choice in choices]
    assert names == AWKWARD
    [result] = prediction["result"]
    assert (result["from_name"], result["to_name"], result["type"]) == (
        "label",
        "record",
        "choices",
    )
    assert result["value"] == {"choices": [AWKWARD[2]]}


@pytest.mark.parametrize("several", [False, True])
def test_label_studio_lets_its_user_choose_several_classes_of_sets_alone(tmp_path, several):
    sets = {"present": np.ones((3, 3), bool), "stability": np.ones((3, 3), np.float32)}
    folder = folder_of(tmp_path, **(sets if several else {}))
    tasks, interface = export.write(folder, "label-studio")
    [prediction] = json.loads(tasks.read_text())[0]["predictions"]
    assert prediction["result"][0]["value"]["choices"] == (["0", "1", "2"] if several else ["2"])
    [_, choices] = ElementTree.fromstring(interface.read_text())
    assert (choices.get("choice") == "multiple") == several


def test_every_public_column_is_exported_whatever_its_name(tmp_path):
    given = ["label", "public_label", "row", "file", "public_file", 'no"te&<', "public_public_x"]
    names = {f"public_{name}": np.array([f"{name} {row}" for row in range(3)]) for name in given}
    folder = folder_of(tmp_path, **names)
    with_files = arrays(folder / "labels.npz") | {"file": np.array(list("abc"))}
    write_arrays(folder / "labels.npz", with_files)
    [path] = export.write(folder, "csv")
    first = next(csv.DictReader(path.open(newline="")))
    told = [column for column, value in first.items() if value.endswith(" 0")]
    assert sorted(first[column] for column in told) == sorted(f"{name} 0" for name in given)
    tasks, interface = export.write(folder, "label-studio")
    assert set(told) < json.loads(tasks.read_text())[0]["data"].keys()
    ElementTree.fromstring(interface.read_text())
    folder = folder_of(tmp_path, **{'public_no"te&<': np.array(list("abc"))})
    [shown, _] = ElementTree.fromstring(export.write(folder, "label-studio")[1].read_text())
    assert shown.get("value") == '$no"te&<'


def test_class_names_that_xml_cannot_hold_are_shown_alike_in_tasks_and_interface(tmp_path):
    folder = folder_of(tmp_path / "run", class_names=np.array(["a", "b", "c\x01"]))
    export.write(folder, "label-studio")
    tasks = json.loads((folder / "label_studio.json").read_text())
    assert tasks[0]["predictions"][0]["result"][0]["value"] == {"choices": ["c\ufffd"]}
    shown = ElementTree.parse(folder / "label_studio.xml").iter("Choice")
    assert [choice.get("value") for choice in shown] == ["a", "b", "c\ufffd"]
    folder_of(folder, class_names=np.array(["a", "c\x02", "c\x01"]))
    with pytest.raises(ValueError, match="that differ in what XML can hold"):
        export.write(folder, "label-studio")


def test_argilla_gets_a_suggestion_for_each_label_above_the_threshold(tmp_path):
    [path] = annotated(tmp_path, "argilla", 0.5)
    records = json.loads(path.read_text())
    assert [record["id"] for record in records] == ["4", "5", "6"]
    assert records[0]["fields"] == {"file": "a.png", "comment": "<1>"}
    assert records[0]["metadata"] == {"row": 4, "age": 30.0}
    suggested = records[0]["suggestions"]["label"]
    assert suggested == {"value": AWKWARD[2], "score": pytest.approx(0.7), "agent": "rknn_jax"}
    assert [record["suggestions"] for record in records[1:]] == [{}, {}], "1/3 is below 0.5"


@pytest.mark.parametrize(("threshold", "rows"), [(0.0, [4, 6]), (0.5, [4]), (0.8, [])])
def test_cleanlab_gets_records_with_a_label_alone(tmp_path, threshold, rows):
    [path] = annotated(tmp_path, "cleanlab", threshold)
    found = arrays(path)
    assert found["row"].tolist() == rows
    assert found["labels"].tolist() == [2, 0][: len(rows)]
    np.testing.assert_allclose(found["pred_probs"].sum(axis=1), 1, atol=1e-6)
    assert found["class_names"].tolist() == AWKWARD


def test_a_threshold_leaves_labels_out_of_tables_and_is_refused_elsewhere(tmp_path):
    folder = folder_of(tmp_path / "run")
    export.write(folder, "csv", 0.5)
    rows = csv_rows(folder / "labels.csv")
    assert [row["label"] for row in rows] == ["2", "", ""]
    assert [bool(row["score"]) for row in rows] == [True, False, False]
    head(linear.Model(4), 0).save(folder / "model")
    for form in ("onnx", "registry"):
        with pytest.raises(ValueError, match=f"threshold, got format {form}"):
            export.write(folder, form, 0.5)
    sets = {"present": np.ones((3, 3), bool), "stability": np.ones((3, 3), np.float32)}
    folder_of(folder, **sets)
    with pytest.raises(ValueError, match="got sets of classes"):
        export.write(folder, "csv", 0.5)
    with pytest.raises(ValueError, match="got sets of classes"):
        export.write(folder, "cleanlab")
    export.write(folder, "argilla")
    records = json.loads((folder / "argilla.json").read_text())
    suggested = records[0]["suggestions"]["label"]
    assert suggested["value"] == ["0", "1", "2"]
    assert suggested["score"] == pytest.approx([0.1, 0.2, 0.7])
    export.write(folder, "label-studio")
    tasks = json.loads((folder / "label_studio.json").read_text())
    assert tasks[0]["predictions"][0]["score"] == pytest.approx(0.1)


# Networks

MODELS = {
    "ensemble of cnn": lambda: Ensemble(
        (weighted("cnn", (9, 8, 3), 0), weighted("cnn", (9, 8, 3), 1))
    ),
    "m5": lambda: weighted("m5", (21, 22, 1), 2),
    "linear head": lambda: head(linear.Model(4), 3),
    "mlp head": lambda: head(mlp.Model(4, 5), 4),
}
PROGRAM = """
import sys
for name in ("flax", "orbax", "orbax.checkpoint", "rknn_jax"):
    sys.modules[name] = None  # an import of it fails
import numpy as np
from jax import export
for number, folder in enumerate(sys.argv[1:]):
    [path] = __import__("pathlib").Path(folder).glob("*.stablehlo")
    network = export.deserialize(path.read_bytes())
    assert network.platforms == ("cpu", "cuda", "tpu"), network.platforms
    given = np.load(folder + "/given.npy")
    np.savez(folder + "/found.npz", **{str(n): network.call(given[:n]) for n in (1, 7)})
"""


@functools.cache
def made(name: str) -> Ensemble | Student | Head:
    return MODELS[name]()


def given_to(model, count: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    if isinstance(model, Head):
        return rng.normal(size=(count, 6)).astype(np.float32) * 5
    shape = model.members[0].image_shape if isinstance(model, Ensemble) else model.image_shape
    return (rng.integers(0, 256, (count, *shape)) * rng.random((count, 1, 1, 1))).astype(np.uint8)


def saved(model, folder: Path) -> str:
    """Save it as runs do, and return the name of what is exported."""
    if isinstance(model, Ensemble):
        ensemble.save(model, folder / "student")
    elif isinstance(model, Student):
        students.save(model, folder / "model")
    else:
        model.save(folder / "model")
    return "student" if isinstance(model, Ensemble) else "model"


QUICK = ("mlp head",)
"""Features instead of images; folders of all three kinds are exported in a test of their own."""


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
)
def test_a_network_is_one_function_of_any_batch(name, tmp_path):
    model = made(name)
    given = given_to(made(name), 7)
    kind = saved(model, tmp_path)
    function = networks.exported(networks.networks(tmp_path)[kind])
    expected = model.predict_proba(given)
    assert np.ptp(expected, axis=0).max() > 0.01, "inputs matter"
    assert np.abs(expected - 0.25).max() > 0.05
    for count in (1, 7):
        found = function.call(given[:count])
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected[:count], atol=1e-5)
    assert ".py" not in function.mlir_module(), "no path of this machine"


def in_onnxruntime(path: Path, given: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path.read_bytes())
    [end] = session.get_outputs()
    [start] = session.get_inputs()
    assert (start.name, start.shape) == ("records", ["n", *given.shape[1:]])
    assert (end.name, end.shape) == ("probability", ["n", 4])
    [found] = session.run(None, {"records": given})
    return found


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in MODELS],
)
def test_onnxruntime_answers_as_the_checkpoint_does(name, tmp_path):
    folder = folder_of(tmp_path)
    kind = saved(made(name), folder)
    [path] = export.write(folder, "onnx")
    assert path == folder / f"{kind}.onnx"
    given = given_to(made(name), 7)
    expected = networks.networks(folder)[kind].predict_proba(given)
    for count in (1, 7):
        found = in_onnxruntime(path, given[:count])
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected[:count], atol=1e-5)
    held = onnx.load(path).metadata_props
    assert {one.key: json.loads(one.value) for one in held} == {"guarantee": GUARANTEE}


@pytest.mark.slow
@pytest.mark.parametrize("model", students.MODELS)
def test_every_network_of_students_is_one_of_onnx(model, tmp_path):
    """Logits are divided by their size: random networks are sure of one class otherwise."""
    student = weighted(model, (33, 32, 3), 0)
    students.save(student, folder_of(tmp_path) / "model")
    given = given_to(student, 7)
    logits = np.log(np.maximum(student.predict_proba(given), 1e-30))
    [path] = export.write(tmp_path, "onnx")
    found = np.log(np.maximum(in_onnxruntime(path, given), 1e-30))
    np.testing.assert_allclose(found, logits, rtol=1e-3, atol=1e-3)


def test_an_operation_that_onnx_is_not_told_of_is_named():
    with pytest.raises(ValueError, match="got cumsum; export it with format stablehlo"):
        onnx_file.onnx_bytes(lambda x: jax.numpy.cumsum(x), (3,), np.float32, {})


@pytest.mark.long
@pytest.mark.parametrize("name", ["mlp head", "ensemble of cnn"])
def test_safetensors_hold_every_weight_by_name(name, tmp_path):
    folder = folder_of(tmp_path)
    model = made(name)
    kind = saved(model, folder)
    [path] = export.write(folder, "safetensors")
    assert path == folder / f"{kind}.safetensors"
    with safe_open(path, "numpy") as file:
        found = {key: file.get_tensor(key) for key in file.keys()}
        told = file.metadata()
    assert json.loads(told["guarantee"]) == GUARANTEE
    if name == "mlp head":
        x = (given_to(model, 7) - found["centre"]) / found["scale"]
        hidden = np.maximum(x @ found["params.Dense_0.kernel"] + found["params.Dense_0.bias"], 0)
        logits = hidden @ found["params.Dense_1.kernel"] + found["params.Dense_1.bias"]
        raised = np.exp(logits - logits.max(axis=1, keepdims=True))
        likely = raised / raised.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(likely, model.predict_proba(given_to(model, 7)), atol=1e-5)
        return
    assert (told["network"], told["members"], json.loads(told["input_shape"])) == (
        "cnn",
        "2",
        [9, 8, 3],
    )
    for number, member in enumerate(model.members):
        kept = {"params": member.params, "batch_stats": member.batch_stats}
        for path_of, leaf in jax.tree.leaves_with_path(kept):
            key = ".".join([str(number), *(part.key for part in path_of)])
            np.testing.assert_array_equal(found.pop(key), leaf)
    assert not found


def test_a_file_of_weights_has_the_scale_of_its_features():
    rng = np.random.default_rng(6)
    images = weighted("linear", (6, 1, 1), 6)
    student = dataclasses.replace(
        images, image_shape=(6,), scale=Scale(rng.normal(size=6), rng.uniform(1, 9, 6))
    )
    found = load(networks.safetensors(student, {}))
    given = rng.normal(size=(7, 6)).astype(np.float32)
    scaled = (given - found["0.scale.mean"]) / found["0.scale.stddev"]
    logits = scaled @ found["0.params.Dense_0.kernel"] + found["0.params.Dense_0.bias"]
    likely = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(likely, student.predict_proba(given), atol=1e-5)


def test_a_weight_that_is_no_number_is_damage():
    head = dataclasses.replace(made("mlp head"), centre=np.array([b"x"] * 6))
    with pytest.raises(ValueError, match=r"got \|S1 in centre; the model is damaged"):
        networks.safetensors(head, {})


@pytest.mark.slow  # in one process tests/test_interchange.py: a network is one function
@pytest.mark.parametrize(
    "names",
    [("mlp head",), pytest.param(tuple(MODELS), marks=pytest.mark.slow)],
    ids=["one", "all"],
)
def test_networks_answer_without_this_package_as_their_checkpoints_do(tmp_path, names):
    pytest.importorskip("flatbuffers", reason="jax.export needs it to read and write")
    folders = {name: tmp_path / name.replace(" ", "-") for name in names}
    for name, folder in folders.items():
        folder_of(folder)
        kind = saved(made(name), folder)
        [path] = export.write(folder, "stablehlo")
        assert path == folder / f"{kind}.stablehlo"
        assert b".py" not in path.read_bytes()
        np.save(folder / "given.npy", given_to(made(name), 7))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSTARTUP"}
    subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, folders.values())],
        check=True,
        cwd=tmp_path,
        env=environment,
    )
    for name, folder in folders.items():
        [checkpoint] = networks.networks(folder).values()
        given = np.load(folder / "given.npy")
        for count, found in arrays(folder / "found.npz").items():
            np.testing.assert_allclose(
                found, checkpoint.predict_proba(given[: int(count)]), atol=1e-5, err_msg=name
            )


def test_a_run_with_both_networks_exports_both_and_one_with_none_says_so(rknn, tmp_path):
    folder = folder_of(tmp_path / "run")
    assert "has none; train a student" in rknn("export", "run", "--format", "stablehlo").err
    saved(made("mlp head"), folder)
    saved(Ensemble((weighted("linear", (2, 2, 1), 0),)), folder)
    done = rknn("export", "run", "--format", "stablehlo", "--json")
    assert done.json["files"] == {
        "student": "run/student.stablehlo",
        "model": "run/model.stablehlo",
    }
    assert all(Path(path).stat().st_size for path in done.json["files"].values())


@pytest.mark.parametrize(
    "model",
    [
        _linear_head.Head(
            np.ones((2, 3)), np.ones(3), Ball(np.zeros(2), 1.0, 2), np.asarray, "linear"
        ),
        Nearest(np.ones((3, 2)), PublicCosines(np.zeros(2), -1.0, 1.0, np.zeros(1)), np.asarray),
    ],
    ids=["linear head", "prototypes"],
)
def test_arrays_of_a_labeler_are_no_network_and_the_student_is_exported(rknn, tmp_path, model):
    folder = folder_of(tmp_path / "run")
    model.save(folder / "model")
    assert "has none; train a student" in rknn("export", "run", "--format", "safetensors").err
    saved(Ensemble((weighted("linear", (2, 2, 1), 0),)), folder)
    done = rknn("export", "run", "--format", "safetensors", "--json")
    assert done.json["files"] == {"student": "run/student.safetensors"}
