"""Labels as programs for annotation take them: Label Studio, Argilla and Cleanlab.

| form         | files                                   | in the program                          |
|--------------|-----------------------------------------|-----------------------------------------|
| label-studio | `label_studio.json`, `label_studio.xml` | tasks to import, the labeling interface |
| argilla      | `argilla.json`                          | `dataset.records.from_json`             |
| cleanlab     | `cleanlab.npz`: `labels`, `pred_probs`  | `find_label_issues`                     |

A label is a prediction or a suggestion there, which a person may correct, and its score is the
probability of the label. Of a set of classes, Argilla takes one for each, and Label Studio one for
all, the least. A record without a label is a task without a prediction. Cleanlab takes records with
a label alone; `row` says which.

The labels and their probabilities come from the same noisy votes, so that Cleanlab finds little in
them alone. It finds more with `pred_probs` of a classifier that was cross-validated on the labels.
"""

import io
import json
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from xml.sax.saxutils import quoteattr

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax.release.label_table import Labels

AGENT = "rknn_jax"
QUESTION = "label"


_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot hold, of which the interface shows that there is one."""


def label_studio(labels: Labels) -> dict[str, bytes]:
    """Return tasks with predictions, and the interface that shows them.

    Raises:
      ValueError: If two classes differ in characters alone that XML cannot hold.
    """
    shown_as = {name: _NO_XML.sub("\ufffd", str(name)) for name in labels.classes}
    if len({*shown_as.values()}) < len(shown_as):
        raise ValueError(
            f"Expected classes that differ in what XML can hold with {option('format')} "
            f"label-studio, got {', '.join(map(ascii, shown_as))}; take {option('format')} argilla."
        )
    tasks = []
    for row in _rows(labels):
        result = {
            "from_name": QUESTION,
            "to_name": "record",
            "type": "choices",
            "value": {"choices": [shown_as[one] for one in row.classes]},
        }
        made = {"model_version": AGENT, "score": min(row.scores, default=None), "result": [result]}
        tasks.append({"data": row.data, "predictions": [made] if row.classes else []})
    texts = [name for name in labels.carried if labels.columns[name].dtype.kind in "OU"]
    shown = "file" if "file" in texts else texts[0] if texts else "row"
    tag = "Image" if shown == "file" else "Text"
    several = ' choice="multiple"' if labels.sets is not None else ""
    choices = "".join(f"\n    <Choice value={quoteattr(name)}/>" for name in shown_as.values())
    interface = (
        f'<View>\n  <{tag} name="record" value={quoteattr(f"${shown}")}/>\n'
        f'  <Choices name="{QUESTION}" toName="record"{several}>{choices}\n  </Choices>\n</View>\n'
    )
    content = {"label_studio.json": json.dumps(tasks, indent=1), "label_studio.xml": interface}
    return {name: text.encode() for name, text in content.items()}


def argilla(labels: Labels) -> dict[str, bytes]:
    """Return records with suggestions. Text is a field, and a number is metadata."""
    records = []
    for row in _rows(labels):
        texts = {name: value for name, value in row.data.items() if isinstance(value, str)}
        numbers = {name: value for name, value in row.data.items() if name not in texts}
        names = [str(one) for one in row.classes]
        value: Any = names if labels.sets is not None else "".join(names)
        score: Any = row.scores if labels.sets is not None else sum(row.scores)
        suggested = {QUESTION: {"value": value, "score": score, "agent": AGENT}}
        records.append(
            {
                "id": str(row.number),
                "fields": texts or {"row": str(row.number)},
                "metadata": numbers,
                "suggestions": suggested if names else {},
            }
        )
    return {"argilla.json": json.dumps(records, indent=1).encode()}


def cleanlab(labels: Labels) -> dict[str, bytes]:
    """Return class numbers and probabilities of the records that have a label.

    Raises:
      ValueError: If a record has a set of classes.
    """
    if labels.sets is not None:
        raise ValueError(
            f"Expected one label for each record with {option('format')} cleanlab, got sets of "
            f"classes; take {option('format')} parquet."
        )
    known = ~np.ma.getmaskarray(labels.columns["label"])
    arrays: dict[str, Any] = {
        "labels": labels.numbers[known],
        "pred_probs": labels.probabilities[known],
        "row": np.asarray(labels.columns["row"].data)[known],
        "class_names": np.asarray(labels.classes),
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return {"cleanlab.npz": buffer.getvalue()}


class _Row(NamedTuple):
    """Record as a program for annotation shows it.

    Attributes:
      number: Number of the row in its source.
      classes: Classes of the record. Empty without a label.
      scores: Probability of each of them.
      data: Values of the columns that the record came with, and `row`.
    """

    number: int
    classes: list[Any]
    scores: list[float]
    data: dict[str, Any]


def _rows(labels: Labels) -> Iterator[_Row]:
    """Yield all records."""
    columns = {name: column.tolist() for name, column in labels.columns.items()}
    each = dict(zip(labels.classes, labels.probabilities.T.tolist(), strict=True))
    for place, number in enumerate(columns["row"]):
        label = columns["label"][place]
        sets = labels.sets
        classes = ([] if label is None else [label]) if sets is None else sets[place]
        data = {name: _in_json(columns[name][place]) for name in ("row", *labels.carried)}
        yield _Row(number, classes, [each[one][place] for one in classes], data)


def _in_json(value: Any) -> Any:
    """Return a value as JSON has it, where an infinite number is missing."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


FORMS = {"label-studio": label_studio, "argilla": argilla, "cleanlab": cleanlab}
"""Files of a form, by their names."""
