"""Labels of a finished folder as a table, and the table as Parquet or CSV.

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
come last, if they hold numbers or text. Numbers stay as they are: whole ones of which some are
missing are floats, or text if floats would change one, and so are decimal ones. Missing text is
empty text.

`datasets` and pandas read the Parquet file as it is.

A release of sets of classes has further columns: `labels`, a list of the classes of each record, in
CSV with `;` between them, and `stability_<class>`. `label` is the most probable class of the set.

A record without a label has no value in `label` and `score`. A label from neighbors alone has none
in `query`, and an unknown confidence is missing too. A missing value is null in Parquet and an
empty field in CSV. CSV files follow RFC 4180: UTF-8, a header, CRLF, and quotes around text with a
comma, a quote or a line break. Text is written as is: a spreadsheet may take a label such as `=1+1`
for a formula.
Parquet carries the guarantee as JSON under `guarantee` in the metadata of its schema.
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rknn_jax._internal.extras import install
from rknn_jax._internal.option_names import option
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.records.labels import SEPARATOR

SETS = "labels"
"""Column of sets of classes."""

FINISHED = "a finished folder of rknn label, rknn serve or train.distill"


@dataclass(frozen=True)
class Labels:
    """Labels of a folder.

    Attributes:
      columns: Masked arrays `[m]` by name, as in the module's table.
      guarantee: Guarantee of the release, JSON-ready.
      classes: Names of the classes, or their numbers.
      numbers: Class number of each record, int32 `[m]`; -1 without a label.
      probabilities: float32 `[m, num_classes]`.
      carried: Names of the columns that the public file had.
      sets: Classes of each record. Defaults to None, if each has one label.
    """

    columns: dict[str, np.ma.MaskedArray]
    guarantee: dict[str, Any]
    classes: Sequence[Any]
    numbers: np.ndarray
    probabilities: np.ndarray
    carried: tuple[str, ...] = ()
    sets: list[list[Any]] | None = None

    def abstaining(self, threshold: float) -> "Labels":
        """Return the labels without those whose probability is below a threshold.

        Raises:
          ValueError: If records have sets of classes, whose threshold is that of their stability.
        """
        if self.sets is not None:
            raise ValueError(
                f"Expected one label for each record with {option('threshold')} {threshold:g}, got "
                "sets of classes; compare their stability instead."
            )
        sure = np.ma.filled(self.columns["score"], 0) >= threshold
        masked = {
            name: np.ma.masked_array(self.columns[name], ~sure) for name in ("label", "score")
        }
        return replace(self, columns=self.columns | masked)


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
    own = {*named, *([] if sets is None else [SETS])}
    kept = {}
    for name, values in carried.items():
        plain = name.removeprefix("public_")
        taken = plain in own or (plain != name and plain in carried)
        missing = np.isnan(values) if values.dtype.kind == "f" else False
        kept[name if taken else plain] = np.ma.masked_array(values, missing)
    every = named | kept
    return Labels(every, guarantee, list(classes), label, probability, tuple(kept), sets)


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
            f"{option('format')} parquet needs pyarrow: {install('parquet')}; or take "
            f"{option('format')} csv."
        ) from error
    whole = {
        name: column.astype(np.int64) if column.dtype.kind == "i" else column
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
