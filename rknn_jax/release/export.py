"""Results in other forms: labels as Parquet or CSV, networks as StableHLO, a registry's record.

This is `rknn export` without its command line. `rknn label`, `rknn serve` and `train.distill` leave
folders of the same layout: `labels.npz` and `privacy.json`, and some of them networks in `student/`
and `model/`. An export is post-processing of what was released, and costs nothing.

| column                | Parquet            | content for each public record                   |
|-----------------------|--------------------|--------------------------------------------------|
| `row`                 | int64              | number of the row in its source, from 0 on       |
| `label`               | string, else int64 | class, by name if the classes have names         |
| `query`               | int64              | query that gave the label                        |
| `confidence`          | float              | probability that noise did not change that label |
| `score`               | float              | probability of the label                         |
| `probability_<class>` | float              | probability of the class, by name or number      |

If `rknn embed` made the public rows, `row` is the row of the table or text that it embedded, and
`file` the image. Other columns of the public file that have no role, such as those of `--keep`,
come last, if they hold numbers or text.

Argilla takes `label` as a suggestion, and `score` by the mapping `{"score":
"label.suggestion.score"}`. Cleanlab takes `label` of `labels.npz` as `labels` and `probability` as
`pred_probs`. `datasets` and pandas read the Parquet file as it is.

A release of sets of classes has further columns: `labels`, a list of the classes of each record, in
CSV with `;` between them, and `stability_<class>`. `label` is the most probable class of the set.

A record without a label has no value in `label` and `score`. A label from neighbors alone has none
in `query`, and an unknown confidence is missing too. A missing value is null in Parquet and an
empty field in CSV. CSV files follow RFC 4180: UTF-8, a header, CRLF, and quotes around text with a
comma, a quote or a line break. Text is written as is: a spreadsheet may take a label such as `=1+1`
for a formula.
Parquet carries the guarantee as JSON under `guarantee` in the metadata of its schema.

A network becomes one function of a batch of any size, including its weights, for CPU, CUDA and TPU
alike. Anyone with JAX can call it without this package:

    from jax import export
    student = export.deserialize(open("student.stablehlo", "rb").read())
    # uint8 [n, height, width, channels] to float32 probabilities [n, num_classes]
    student.call(images)

`registry.yaml` is the statement as a record of the OpenDP Deployments Registry
(`rknn_jax.release.registry`).
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict
from jax import export

from rknn_jax._internal.disk import read_arrays, write_whole
from rknn_jax.labelers.noisy_sgd import Head
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.records.labels import SEPARATOR
from rknn_jax.release import registry
from rknn_jax.students import ensemble
from rknn_jax.students import fit as students
from rknn_jax.students.ensemble import Ensemble
from rknn_jax.students.fit import Student
from rknn_jax.students.inputs import prepared
from rknn_jax.students.models import linear, mlp

Format = Literal["parquet", "csv", "stablehlo", "registry"]

PLATFORMS = ("cpu", "cuda", "tpu")

SETS = "labels"
"""Column of sets of classes."""

FINISHED = "a finished folder of rknn label, rknn serve or train.distill"


@dataclass(frozen=True)
class Labels:
    """Labels of a folder.

    Attributes:
      columns: Masked arrays `[m]` by name, as in the module's table.
      guarantee: Guarantee of the release, JSON-ready.
      sets: Classes of each record. Defaults to None, if each has one label.
    """

    columns: dict[str, np.ma.MaskedArray]
    guarantee: dict[str, Any]
    sets: list[list[Any]] | None = None


def write(folder: Path, form: Format) -> tuple[Path, ...]:
    """Write the folder's results in another form, beside them.

    The files are `labels`, or `student` and `model`, or `registry.yaml`. Each file is whole or
    absent.

    Raises:
      ValueError: If the folder is not finished or lacks these results, or if the form needs a
        package that is missing.
      OSError: If a file cannot be written.
    """
    if not (folder / "privacy.json").exists():
        raise ValueError(
            f"Expected {FINISHED}, got {folder}, which has no privacy.json; let the run come to "
            "its end."
        )
    if form == "parquet":
        made = {"labels.parquet": parquet(read(folder))}
    elif form == "csv":
        made = {"labels.csv": as_csv(read(folder))}
    elif form == "registry":
        made = {"registry.yaml": registry.read(folder).as_yaml()}
    else:
        found = networks(folder)
        made = {f"{name}.{form}": serialized(exported(model)) for name, model in found.items()}
    paths = tuple(folder / name for name in made)
    for path, content in zip(paths, made.values(), strict=True):
        write_whole(path, content)
    return paths


def read(folder: Path) -> Labels:
    """Read the labels of a finished folder.

    Raises:
      ValueError: If the folder is not finished, is damaged or is something else.
    """
    try:
        with np.load(folder / "labels.npz", allow_pickle=False) as file:
            arrays = dict(file)
        card = json.loads((folder / "privacy.json").read_text(encoding="utf-8"))
        config = folder / "config.json"  # train.distill names its classes there
        settings = json.loads(config.read_text(encoding="utf-8")) if config.exists() else {}
        names = arrays.get("class_names", settings.get("classes"))
        # These raise if a name could not be written, if the guarantee is none, or if other programs
        # could not read its numbers.
        "".join(map(str, () if names is None else names)).encode()
        guarantee = card["whole"] if "whole" in card else card["guarantee"]
        Guarantee.of(guarantee)
        json.dumps(guarantee, allow_nan=False)
        label, query, sure, probability = (
            arrays[name] for name in ("label", "query", "confidence", "probability")
        )
        _check_rows(label, query, sure, probability)
        known = label >= 0
        # Missing labels are masked below.
        said = label if names is None else np.asarray(names, str)[label]
        columns = {
            "row": np.ma.masked_array(arrays.get("row", np.arange(len(label)))),
            "label": np.ma.masked_array(said, ~known),
            "query": np.ma.masked_array(query, query < 0),
            "confidence": np.ma.masked_array(sure, np.isnan(sure)),
            "score": np.ma.masked_array(probability[np.arange(len(label)), label], ~known),
        }
        classes = range(probability.shape[1]) if names is None else names
        each = {
            f"probability_{name}": np.ma.masked_array(column)
            for name, column in zip(classes, probability.T, strict=True)
        }
        carried = {
            name: values
            for name, values in arrays.items()
            if name == "file" or name.startswith("public_")
        }
        lengths = {len(values) for values in (*carried.values(), columns["row"])}
        if lengths != {len(label)}:
            raise ValueError(f"label has {len(label)} rows, and other columns have {lengths}")
        sets = None
        if "present" in arrays:
            sets = _sets(arrays["present"], classes, len(label))
            sure_of = zip(classes, arrays["stability"].T, strict=True)
            each |= {f"stability_{name}": np.ma.masked_array(column) for name, column in sure_of}
    except Exception as error:  # a damaged file fails in many ways
        reason = " ".join(str(error).split())
        raise ValueError(
            f"Expected {FINISHED}, got {folder}, which is damaged or something else ({reason}); "
            "name another."
        ) from error
    named = columns | each
    for name, values in carried.items():
        plain = name.removeprefix("public_")
        named[name if plain in named else plain] = np.ma.masked_array(values)
    return Labels(named, guarantee, sets)


def _sets(present: np.ndarray, classes: Sequence[Any], num_rows: int) -> list[list[Any]]:
    """Return the classes of each record, by name or number."""
    if present.dtype != bool or present.shape != (num_rows, len(classes)):
        raise ValueError(f"present is {present.dtype} {present.shape}")
    names = np.asarray(classes)
    return [names[there].tolist() for there in present]


def _check_rows(
    label: np.ndarray, query: np.ndarray, sure: np.ndarray, probability: np.ndarray
) -> None:
    kinds = (label.dtype.kind, query.dtype.kind, sure.dtype.kind, probability.dtype.kind)
    if kinds != ("i", "i", "f", "f") or probability.ndim != 2:
        raise ValueError(
            f"label, query, confidence and probability are of the kinds {', '.join(kinds)}"
        )
    shapes = [array.shape for array in (label, query, sure, probability[:, 0])]
    if any(shape != (len(probability),) for shape in shapes):
        raise ValueError(f"label, query, confidence and probability have the shapes {shapes}")


def parquet(labels: Labels) -> bytes:
    """Return the labels as a Parquet file.

    Raises:
      ValueError: If pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(
            "--format parquet needs pyarrow: pip install 'rknn-jax[parquet]', or take --format csv."
        ) from error
    whole = {
        name: column.astype(np.int64) if column.dtype.kind in "iu" else column
        for name, column in labels.columns.items()
    }
    arrays = {name: pyarrow.array(column) for name, column in whole.items()}
    if labels.sets is not None:
        kind = pyarrow.list_(arrays["label"].type)
        arrays[SETS] = pyarrow.array(labels.sets, kind)
    table = pyarrow.table(arrays)
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(
        table.replace_schema_metadata({"guarantee": json.dumps(labels.guarantee, allow_nan=False)}),
        buffer,
    )
    return buffer.getvalue()


def as_csv(labels: Labels) -> bytes:
    """Return the labels as a CSV file. Numbers have the shortest text that reads back unchanged."""
    buffer = io.StringIO(newline="")
    lines = csv.writer(buffer, lineterminator="\r\n")
    columns = {
        name: np.ma.filled(column.astype(str), "").tolist()
        for name, column in labels.columns.items()
    }
    if labels.sets is not None:
        columns[SETS] = [SEPARATOR.join(map(str, names)) for names in labels.sets]
    lines.writerow(columns)
    lines.writerows(zip(*columns.values(), strict=True))
    return buffer.getvalue().encode()


def networks(folder: Path) -> dict[str, Ensemble | Student | Head]:
    """Return the networks of a folder by subfolder: `student`, and the labeler's own `model`.

    Raises:
      ValueError: If the folder has no network.
    """
    found: dict[str, Ensemble | Student | Head] = {}
    if (folder / "student").is_dir():
        found["student"] = ensemble.load(folder / "student")
    if (folder / "model" / "head.npz").exists():
        found["model"] = _head(folder / "model" / "head.npz")
    elif (folder / "model").is_dir():
        found["model"] = students.load(folder / "model")
    if not found:
        raise ValueError(
            f"Expected a folder with a network in student/ or model/, got {folder}, which has "
            "none; train a student first."
        )
    return found


def exported(model: Ensemble | Student | Head) -> export.Exported:
    """Return a network's class probabilities as a function of a batch of any size n.

    The function runs on all `PLATFORMS`.

    Args:
      model: Students that take uint8 images `[n, height, width, channels]` or float32 features
        `[n, f]`, or a head, which takes features of the encoder that it was trained behind.

    Returns:
      A function to float32 `[n, num_classes]`, which agrees with `predict_proba` up to rounding.
    """
    if isinstance(model, Head):
        variables = {"params": model.params}

        def one(given: jax.Array) -> jax.Array:
            return jax.nn.softmax(
                model.network.apply(
                    variables, ((given - model.centre) / model.scale)[None], train=False
                )
            )[0]

        shape = model.centre.shape
        dtype = jnp.float32
    else:
        members = model.members if isinstance(model, Ensemble) else (model,)

        def one(given: jax.Array) -> jax.Array:
            return jnp.mean(
                jnp.stack([_probabilities(member, given[None])[0] for member in members]), axis=0
            )

        shape = members[0].image_shape
        dtype = jnp.uint8 if members[0].scale is None else jnp.float32
    (n,) = export.symbolic_shape("n")
    frames = jax.config.values["jax_traceback_in_locations_limit"]
    jax.config.update("jax_traceback_in_locations_limit", 0)  # keeps local paths out of the file
    try:
        # Networks read the number of their images, which the symbolic n does not give. So export
        # the function of one record, which vmap makes a batch.
        return export.export(jax.jit(jax.vmap(one)), platforms=PLATFORMS)(
            jax.ShapeDtypeStruct((n, *shape), dtype)
        )
    finally:
        jax.config.update("jax_traceback_in_locations_limit", frames)


def serialized(function: export.Exported) -> bytes:
    """Return the bytes that `jax.export.deserialize` reads.

    Raises:
      ValueError: If flatbuffers is not installed.
    """
    try:
        return bytes(function.serialize())
    except ImportError as error:
        raise ValueError(
            "--format stablehlo needs flatbuffers: pip install 'rknn-jax[stablehlo]'."
        ) from error


def _probabilities(student: Student, given: jax.Array) -> jax.Array:
    scale = student.scale
    if scale is not None:  # float32 rounds a mean that is large beside its deviation
        mean = scale.mean[None].astype(np.float32)
        rest = (scale.mean - mean).astype(np.float32)
        given = ((given - mean) - rest) / scale.stddev[None].astype(np.float32)
    rows = prepared(given)
    variables = {"params": student.params, "batch_stats": student.batch_stats}
    return jax.nn.softmax(
        students.network_of(student.config, student.num_classes).apply(variables, rows, train=False)
    )


def _head(path: Path) -> Head:
    """Read a file of `Head.save` as a head that takes features as they are.

    The file does not hold the head's encoder.

    Raises:
      ValueError: If the file is damaged or holds something else.
    """
    arrays = read_arrays(path, "centre", "scale")
    centre = arrays.pop("centre")
    scale = arrays.pop("scale")
    try:
        params = unflatten_dict(arrays, sep=".")
        last = params[f"Dense_{len(params) - 1}"]["kernel"]
        network = (
            linear.Model(last.shape[1]) if len(params) == 1 else mlp.Model(last.shape[1], len(last))
        )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"Expected the weights of a head in {path}, got {', '.join(arrays) or 'none'}; "
            "restore the file from a copy."
        ) from error
    return Head(params, centre, scale, network=network, encode=lambda features: features)
