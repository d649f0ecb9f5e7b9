"""Label public data with several attributes of each record at once, by Private-kNN, in simulation.

    python -m train.attributes --dataset mnist --data-dir DIR --attributes even=0,2,4,6,8 --out OUT

An attribute is named with the classes that have it, since records of the benchmarks have one class.
This is the tau form: the attributes of each neighbor are scaled to a sum of at most `--clip`, and
one noisy sum answers all attributes of a query. `rknn_jax.labelers.private_knn.multi_label` is the
mechanism. The folder gets `labels.npz` and `result.json`, which holds the guarantee.

Reference: Zhu, Yu, Chandraker & Wang, "Private-kNN: Practical Differential Privacy for Computer
Vision", 2020, section 4.3.
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from rknn_jax import data, representations
from rknn_jax._internal.disk import write_arrays
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.labelers.private_knn import PrivateKNN, multi_label
from rknn_jax.privacy.guarantee import Relation
from rknn_jax.queries import sample

from .json_files import write_json


@dataclass(frozen=True)
class Attributes:
    """Settings of the run.

    Attributes:
      dataset: Name of a data set of `rknn_jax.data`.
      attributes: Attributes, each as `name=classes` with commas between the classes' names.
      out: New folder for the results.
      clip: Greatest sum tau of a record's attributes. Defaults to their number, which clips none.
      epsilon: Privacy budget of all queries and attributes together; infinity means no noise.
      delta: Probability delta of the guarantee.
      relation: Neighboring relation of the data sets.
      num_neighbors: Number of nearest sampled records k that vote on a query.
      sampling_prob: Probability that a record takes part in a query.
      queries: Number of public records that are labeled.
      representation: Name of a representation, learned from the public images, with its defaults.
      data_dir: Folder of the data set.
      seed: Seed of the split, the queries, the samples and the noise.
    """

    dataset: str
    attributes: tuple[str, ...]
    out: Path
    clip: float | None = None
    epsilon: float = 1.0
    delta: float = 1e-5
    relation: Relation = "replace-one"
    num_neighbors: int = PrivateKNN.num_neighbors
    sampling_prob: float = PrivateKNN.sampling_prob
    queries: int = 800
    representation: str = "spectral"
    data_dir: Path | None = None
    seed: int = 0


def main(settings: Attributes) -> dict[str, Any]:
    """Label the queries, write the folder, and return the result.

    Raises:
      ValueError: If an attribute, another setting or the data cannot be used.
    """
    if settings.out.exists() and any(settings.out.iterdir()):
        raise ValueError(f"Expected a new or empty --out, got {settings.out}; name another folder.")
    task = data.load(settings.dataset, settings.seed, settings.data_dir)
    names, has = table(settings.attributes, task.card.classes)
    labeler = PrivateKNN(
        epsilon=settings.epsilon,
        delta=settings.delta,
        relation=settings.relation,
        num_neighbors=settings.num_neighbors,
        sampling_prob=settings.sampling_prob,
    )
    root = jax.random.key(settings.seed)
    config = representations.named(settings.representation)()
    encode = config.fit(stage_key(root, Stage.ENCODER), task.public.images)
    features = encode(task.public.images)
    queries = sample.select(stage_key(root, Stage.QUERIES), features, settings.queries)
    answers = multi_label(
        stage_key(root, Stage.NOISE),
        encode(task.private.images),
        has[task.private.labels],
        queries,
        labeler,
        len(names) if settings.clip is None else settings.clip,
    )
    right = (answers.present == has[task.public.true_labels[queries.index]]).mean(axis=0)
    result = {
        "settings": asdict(settings),
        "right": dict(zip(names, right.tolist(), strict=True)),
        "guarantee": answers.guarantee.asdict(),
    }
    settings.out.mkdir(parents=True, exist_ok=True)
    arrays = {"row": queries.index, "present": answers.present, "noisy_counts": answers.counts}
    write_arrays(settings.out / "labels.npz", arrays | {"attributes": np.array(names)})
    write_json(settings.out / "result.json", result)
    return result


def table(attributes: tuple[str, ...], classes: tuple[str, ...]) -> tuple[list[str], np.ndarray]:
    """Return the names of attributes and which classes have them, int32 `[num_classes, a]`.

    Args:
      attributes: Attributes as `name=classes`.
      classes: Names of all classes.

    Raises:
      ValueError: If an attribute is written in another way, is named twice, or names no class.
    """
    pairs = [attribute.partition("=") for attribute in attributes]
    names = [name for name, _, _ in pairs]
    having = [listed.split(",") for _, _, listed in pairs]
    unknown = sorted({one for listed in having for one in listed} - set(classes))
    if not names or not all(names) or len(set(names)) < len(names) or unknown:
        raise ValueError(
            f"Expected different --attributes as name=classes, with classes out of "
            f"{', '.join(classes)}, got {' '.join(attributes) or 'none'}; write them as "
            f"first={classes[0]},{classes[-1]}."
        )
    return names, np.array([[one in listed for listed in having] for one in classes], np.int32)


def cli() -> int:
    """Run from the command line. Exit status 2 means bad input."""
    try:
        settings = tyro.cli(Attributes, description=__doc__)
        result = main(settings)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    for name, share in result["right"].items():
        sys.stdout.write(f"{name}: {share:.1%} of {settings.queries} public labels right\n")
    sys.stdout.write(f"{result['guarantee']['statement']}\n{settings.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(cli())
