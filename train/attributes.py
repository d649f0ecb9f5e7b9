"""Label public data with several attributes of each record at once, in simulation.

    python -m train.attributes --dataset mnist --data-dir DIR --attributes even=0,2,4,6,8 --out OUT

An attribute is named with the classes that have it, since records of the benchmarks have one class.
`--labeler rknn` takes the attributes of a record as its set of labels (`rknn_jax.label_sets`). One
release labels all public records. `--labeler private_knn` is the tau form: the attributes of each
neighbor are scaled to a sum of at most `--clip`, and one noisy sum answers all attributes of a
query. The folder gets `labels.npz` and `result.json`, which holds the guarantee, the share of right
labels of each attribute, and F1 over the attributes.

Reference: Zhu, Yu, Chandraker & Wang, "Private-kNN: Practical Differential Privacy for Computer
Vision", 2020, section 4.3.
"""

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import tyro
from sklearn.metrics import f1_score

from rknn_jax import answers, bsvs, data, label_sets, postprocessing, representations
from rknn_jax._internal import ranges
from rknn_jax._internal.disk import write_arrays
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax._internal.ranges import AnyEpsilon, Clip, Count, Delta, Probability, Seed
from rknn_jax._internal.terminal import run_program
from rknn_jax.labelers import _vote_mechanism, rknn
from rknn_jax.labelers.private_knn import PrivateKNN, multi_label
from rknn_jax.mechanisms.base import estimate_counts
from rknn_jax.privacy.guarantee import Guarantee, Relation
from rknn_jax.queries import kmeans, sample

from .json_files import write_json

SAMPLED_QUERIES = 800
"""Queries of Private-kNN, which pays for each of them."""


@dataclass(frozen=True)
class Attributes:
    """Settings of the run.

    Attributes:
      dataset: Name of a data set of `rknn_jax.data`.
      attributes: Attributes, each as `name=classes` with commas between the classes' names.
      out: New folder for the results.
      labeler: Labeler: `private_knn`, or `rknn` for reverse k-NN labeling.
      clip: Greatest sum tau of a record's attributes with `private_knn`, or their greatest number r
        with `rknn`, of which the first ones count. Defaults to the number of all, which clips none.
      epsilon: Privacy budget of all queries and attributes together; infinity means no noise.
      delta: Probability delta of the guarantee.
      relation: Neighboring relation of the data sets.
      num_neighbors: Number of nearest sampled records that vote on a query of `private_knn`.
      sampling_prob: Probability that a record takes part in a query of `private_knn`.
      queries: Number of queries s. Defaults to 800 public records for `private_knn`, and to as many
        groups of them as n and epsilon support for `rknn`; needed where `add-remove` hides n.
      representation: Name of a representation, learned from the public images, with its defaults.
      data_dir: Folder of the data set.
      seed: Seed of the split, the queries, the samples and the noise.
    """

    dataset: str
    attributes: tuple[str, ...]
    out: Path
    labeler: Literal["private_knn", "rknn"] = "private_knn"
    clip: Clip | None = None
    epsilon: AnyEpsilon = 1.0
    delta: Delta = 1e-5
    relation: Relation = "replace-one"
    num_neighbors: Count = PrivateKNN.num_neighbors
    sampling_prob: Probability = PrivateKNN.sampling_prob
    queries: Count | None = None
    representation: str = "spectral"
    data_dir: Path | None = None
    seed: Seed = 0


def main(settings: Attributes) -> dict[str, Any]:
    """Label the queries, write the folder, and return the result.

    Raises:
      ValueError: If an attribute, another setting or the data cannot be used.
    """
    if settings.out.exists() and any(settings.out.iterdir()):
        raise ValueError(f"Expected a new or empty --out, got {settings.out}; name another folder.")
    task = data.load(settings.dataset, settings.seed, settings.data_dir)
    names, has = table(settings.attributes, task.card.classes)
    root = jax.random.key(settings.seed)
    config = representations.named(settings.representation)()
    encode = config.fit(stage_key(root, Stage.ENCODER), task.public.images)
    embedded = Embedded(
        np.asarray(encode(task.public.images)),
        np.asarray(encode(task.private.images)),
        has[task.private.labels].astype(bool),
    )
    found = LABELERS[settings.labeler](root, embedded, settings)
    truth = has[task.public.true_labels[found.row]].astype(bool)
    right = (found.present == truth).mean(axis=0)
    scores = {
        kind: float(f1_score(truth, found.present, average=kind, zero_division=0.0))
        for kind in ("micro", "macro")
    }
    result = {
        "settings": asdict(settings),
        "labeled": len(found.row),
        "right": dict(zip(names, right.tolist(), strict=True)),
        "f1": scores,
        "guarantee": found.guarantee.asdict(),
    }
    settings.out.mkdir(parents=True, exist_ok=True)
    arrays = {"row": found.row, "present": found.present, "noisy_counts": found.counts}
    write_arrays(settings.out / "labels.npz", arrays | {"attributes": np.array(names)})
    write_json(settings.out / "result.json", result)
    return result


class Embedded(NamedTuple):
    """Input of a labeler.

    Attributes:
      public: Features of the public records, float32 `[m, f]`.
      private: Features of the private records, float32 `[n, f]`.
      has: Attributes of the private records, bool `[n, a]`.
    """

    public: np.ndarray
    private: np.ndarray
    has: np.ndarray


class Found(NamedTuple):
    """Attributes of public records.

    Attributes:
      row: Positions of the labeled public records, int `[l]`.
      present: bool `[l, a]`.
      counts: Noisy counts `[s, a]`, and for `rknn` `[s, a + 1]` with the number of votes.
      guarantee: Guarantee of all of these together.
    """

    row: np.ndarray
    present: np.ndarray
    counts: np.ndarray
    guarantee: Guarantee


def by_private_knn(root: jax.Array, embedded: Embedded, settings: Attributes) -> Found:
    """Return the attributes of sampled public records, by votes of the private ones near each."""
    labeler = PrivateKNN(
        epsilon=settings.epsilon,
        delta=settings.delta,
        relation=settings.relation,
        num_neighbors=settings.num_neighbors,
        sampling_prob=settings.sampling_prob,
    )
    number = settings.queries or SAMPLED_QUERIES
    queries = sample.select(stage_key(root, Stage.QUERIES), embedded.public, number)
    found = multi_label(
        stage_key(root, Stage.NOISE),
        embedded.private,
        embedded.has.astype(np.int32),
        queries=queries,
        config=labeler,
        clip=embedded.has.shape[1] if settings.clip is None else settings.clip,
    )
    return Found(queries.index, found.present, found.counts, found.guarantee)


def by_rknn(root: jax.Array, embedded: Embedded, settings: Attributes) -> Found:
    """Return the attributes of all public records, from one release of sets of labels.

    Raises:
      ValueError: If `clip` is no whole number of attributes, or if the number of queries would
        reveal the number of records.
    """
    width = embedded.has.shape[1]
    clip = width if settings.clip is None else settings.clip
    if clip != int(clip):
        raise ValueError(
            f"Expected a whole number of attributes in --clip with --labeler rknn, got {clip}."
        )
    # Noise without delta, as the ledger of a release would have it.
    several = int(clip)
    config = rknn.ReverseKNN(
        epsilon=settings.epsilon, relation=settings.relation, labels_per_record=several
    )
    config.check_queries(settings.queries)
    ballots = label_sets.ballots(embedded.has, width, several)
    size = len(embedded.private)
    number = settings.queries or bsvs.suggested_num_queries(
        size, width + 1, 2 * (several + 1) / settings.epsilon, 1, shared=True
    )
    key = stage_key(root, Stage.QUERIES)
    queries = kmeans.select(key, embedded.public, min(number, len(embedded.public)))
    mechanism = _vote_mechanism.calibrated(len(queries.index), width, size, config)
    cells = rknn.vote_cells(
        embedded.private, ballots, queries, num_classes=width + 1, config=config
    )
    counts = np.asarray(estimate_counts(mechanism, stage_key(root, Stage.NOISE), cells))
    graph = postprocessing.public_graph(embedded.public, len(queries.index))
    kernels = answers.kernels(queries, embedded.public, graph)
    sets = label_sets.read(counts, mechanism.stddev(counts, size), queries, kernels)
    every = np.arange(len(embedded.public))
    return Found(every, sets.present, counts, _vote_mechanism.guarantee(mechanism, size, config))


LABELERS: dict[str, Callable[[jax.Array, Embedded, Attributes], Found]] = {
    "private_knn": by_private_knn,
    "rknn": by_rknn,
}


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
        ranges.check(settings)
        result = main(settings)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    for name, share in result["right"].items():
        sys.stdout.write(f"{name}: {share:.1%} of {result['labeled']} public labels right\n")
    sys.stdout.write(f"{result['guarantee']['statement']}\n{settings.out}\n")
    return 0


if __name__ == "__main__":
    run_program(cli)
