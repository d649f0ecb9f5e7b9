"""Labels by hand: what public data give with no private record, and where a comparison starts.

An oracle names a few public records, one in the middle of each cluster, and epsilon is 0. The
decoder of labels without counts names all others.
"""

import json
from collections.abc import Sequence
from typing import Any

import jax

from rknn_jax._internal.keys import Stage, stage_key

from .. import truth
from ..distill import Prepare
from ..experiment import Experiment
from ..json_files import write_json
from ..sweep import mean_of
from .plan import Config

LABELS_PER_CLASS = (1, 10)
"""Labels by hand for each class."""


def rows(config: Config, seeds: Sequence[int], prepared: Prepare) -> list[dict[str, Any]]:
    """Return a row for each number of labels, and keep each split's accuracies in the folder.

    Args:
      config: Settings of the comparison.
      seeds: Seeds of the splits.
      prepared: `stages.prepare`, or a replacement that shares its results with the runs.
    """
    splits = [_of_split(config, seed, prepared) for seed in seeds]
    return [
        {"labels": int(number), "label_accuracy": mean_of([one[number] for one in splits])}
        for number in splits[0]
    ]


def _of_split(config: Config, seed: int, prepared: Prepare) -> dict[str, float]:
    """Return the accuracy by number of labels of one split, from its file if it is there.

    One of another data set is not: it is measured again, as no private record is asked.
    """
    path = config.folder / f"by-hand-seed={seed}.json"
    asked = {"dataset": config.dataset, "data_dir": str(config.data_dir)}
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if kept.get("asked") != asked:
        experiment = Experiment(dataset=config.dataset, data_dir=config.data_dir, seed=seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {"asked": asked, "label_accuracy": _measured(experiment, prepared)}
        write_json(path, kept)
    accuracies: dict[str, float] = kept["label_accuracy"]
    return accuracies


def _measured(experiment: Experiment, prepared: Prepare) -> dict[str, float]:
    task, encode, _ = prepared(experiment)
    features = encode(task.public.images)
    key = stage_key(jax.random.key(experiment.seed), Stage.QUERIES, 0)
    num_classes = task.card.num_classes
    found = {}
    for each in LABELS_PER_CLASS:
        labels = truth.by_hand(
            key,
            features,
            task.public.true_labels,
            num_classes=num_classes,
            num_labels=each * num_classes,
        )
        found[str(each * num_classes)] = float((labels == task.public.true_labels).mean())
    return found
