"""Active learning: buy labels of a few public records and fine-tune a private network on them.

The methods are DiversePublic, NearPrivate and their baselines. Private records train the network.
The labels bought here are the truth, from a paid oracle who knows it, and no private votes. So a
result with `labels > 0` is not comparable to one of votes alone, and the oracle must be named
before anything is bought.

- `select` chooses public records by chance, by uncertainty, diverse, or near private records. Only
  the last way costs epsilon.
- `bought_labels` returns the oracle's labels, -1 for a record of none of the classes. Such a record
  is paid for, and of no use.
- `fine_tune` trains all layers, on the bought records alone.

Reference: Zhao, Papernot, Singh, Polyzotis & Odena, "Improving Differentially Private Models with
Active Learning", 2019.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import numpy as np

from rknn_jax.labelers import Labeler
from rknn_jax.labelers.noisy_sgd import HEADS, NoisySGD
from rknn_jax.privacy.contributions import Protected
from rknn_jax.privacy.guarantee import Guarantee, Relation
from rknn_jax.queries import diverse_public, most_uncertain, near_private, sample
from rknn_jax.queries.uncertainty import Measure
from rknn_jax.students import fit as students
from rknn_jax.types import Queries, Task

Selector = Literal["random", "entropy", "difference", "diverse_public", "near_private"]
CANDIDATES = {
    "diverse_public": diverse_public.Config.candidates,
    "near_private": near_private.Config.candidates,
}
"""Default numbers of uncertain public records beside those that are bought, as in the paper."""


@dataclass(frozen=True)
class Config:
    """Settings of bought labels: their number, their oracle, and the training on them.

    Attributes:
      labels: Number of labels that are bought; 0 buys none.
      oracle: Source of the labels. `benchmark` takes the true labels of a benchmark's public
        records. A path is that of an .npy file of integers `[m]`, -1 for public records of none of
        the classes. `none` sells nothing.
      select: Choice of public records: random, the most uncertain by entropy or difference,
        diverse_public or near_private.
      uncertainty: Measure of uncertainty for diverse_public and near_private: entropy, or
        difference of the two largest probabilities.
      components: Number of principal components of the features, for the same two.
      per_cluster: Number of records bought in a cluster, for diverse_public.
      candidates: Number of uncertain public records beside those that are bought, for the same two.
        Defaults to 1,000 and 3,000.
      private_uncertain: Private records that vote in near_private: the top ones, or those beyond a
        public threshold. The latter are fewer in a polluted pool, but cost half as much under
        add-remove.
      epsilon_pca: Privacy budget of near_private's components, on top of the network's epsilon.
      epsilon_support: Privacy budget of near_private's votes, also on top.
      epochs: Number of passes over the bought records.
      learning_rate: Peak learning rate, which falls to 0 by a cosine. Momentum (Nesterov's, 0.9)
        moves weights ten times as far. So a peak of 0.02 (mean 0.01) equals the paper's constant
        rate without momentum (0.1).
      batch_size: Number of records of a step.
    """

    labels: int = 0
    oracle: Literal["none", "benchmark"] | Path = "none"
    select: Selector = "diverse_public"
    uncertainty: Measure = "entropy"
    components: int = 16
    per_cluster: int = 10
    candidates: int | None = None
    private_uncertain: near_private.Voters = "top"
    epsilon_pca: float = 0.3
    epsilon_support: float = 0.7
    epochs: int = 100
    learning_rate: float = 0.02
    batch_size: int = 256

    def __post_init__(self) -> None:
        if self.labels < 0 or self.labels == 1:
            raise ValueError(
                f"Expected labels=0 or labels >= 2, got labels={self.labels}; 0 buys none, and "
                "one teaches nothing."
            )
        if self.labels and self.oracle == "none":
            raise ValueError(
                f"Expected an oracle with labels={self.labels}, got oracle=none; say who sells "
                "them: --buy.oracle benchmark for the true "
                "labels of a benchmark's public records, or the path of an .npy file of labels."
            )
        choices = {
            "select": Selector,
            "uncertainty": Measure,
            "private_uncertain": near_private.Voters,
        }
        for name, kind in choices.items():
            if getattr(self, name) not in get_args(kind):
                raise ValueError(
                    f"Expected {name} to be one of {', '.join(get_args(kind))}, got "
                    f"{name}={getattr(self, name)!r}."
                )
        for name in ("components", "per_cluster", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected {name} >= 1, got {name}={getattr(self, name)}.")
        if self.candidates is not None and self.candidates < 0:
            raise ValueError(f"Expected candidates >= 0, got candidates={self.candidates}.")
        for name in ("epsilon_pca", "epsilon_support", "learning_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"Expected {name} > 0, got {name}={getattr(self, name)}.")

    def check_labeler(self, labeler: Labeler[Any]) -> None:
        """Check that the labeler trains a network on images, which bought labels can fine-tune.

        Raises:
          ValueError: If labels are bought for another labeler.
        """
        if not self.labels:
            return
        network = labeler.network if isinstance(labeler, NoisySGD) else "none"
        if network == "none" or network in HEADS:
            raise ValueError(
                "Expected labeler=noisy_sgd and a network on images, such as tanh_cnn, with "
                f"buy.labels={self.labels}, got labeler={labeler.name} and network={network}."
            )

    def check_unit(self, unit: Protected) -> None:
        """Check that the choice of labels protects the run's privacy unit.

        Raises:
          ValueError: If the choice reads private records and persons are the unit.
        """
        if self.labels and self.select == "near_private" and unit != "record":
            raise ValueError(
                f"Expected unit=record with buy.select=near_private, got unit={unit}; its noise "
                "hides one record, choose another selector, such as diverse_public."
            )

    @property
    def num_candidates(self) -> int:
        """Number of uncertain public records beside those bought; 0 if the selector has none."""
        paper = CANDIDATES.get(self.select, 0)
        return self.candidates if paper and self.candidates is not None else paper


def check(task: Task, config: Config, delta: float) -> None:
    """Check that the labels can be bought, before a network is trained for hours.

    Args:
      task: Data of the run.
      config: Settings of the purchase.
      delta: Probability delta of near_private's guarantee.

    Raises:
      ValueError: If labels and candidates exceed the public records, if labels are fewer than a
        cluster has, if near_private has no delta, and for the errors of `known_labels`.
      FileNotFoundError: If the oracle's file does not exist.
    """
    if not config.labels:
        return
    known_labels(task, config)
    candidates = config.num_candidates
    if config.labels + candidates > len(task.public.images):
        raise ValueError(
            "Expected labels + candidates <= number of public records, got "
            f"labels={config.labels} and candidates={candidates} with "
            f"{len(task.public.images)}; buy fewer, or choose among fewer (--buy.candidates)."
        )
    if config.select == "diverse_public" and config.labels < config.per_cluster:
        raise ValueError(
            f"Expected labels >= per_cluster, got labels={config.labels} and "
            f"per_cluster={config.per_cluster}; buy more."
        )
    if config.select == "near_private" and not 0 < delta < 1:
        raise ValueError(
            f"Expected 0 < delta < 1 with select=near_private, got delta={delta}; pass --delta "
            "1e-5."
        )


def select(
    key: jax.Array,
    noise_key: jax.Array,
    task: Task,
    model: students.Student,
    config: Config,
    relation: Relation,
    delta: float,
) -> tuple[Queries, Guarantee | None]:
    """Choose the public records whose labels are bought.

    Args:
      key: Random key of the choice, which is consumed.
      noise_key: Random key of near_private's noise, which is consumed.
      task: Data of the run. Only near_private reads the private records.
      model: Released network that private records have trained.
      config: Settings of the purchase.
      relation: Neighboring relation of the data sets.
      delta: Probability delta of near_private's guarantee.

    Returns:
      Queries, and the guarantee of the choice, None if it costs nothing. Compose it with the
      model's guarantee.

    Raises:
      ValueError: If labels=0, and for numbers that the selector does not accept.
    """
    if not config.labels:
        raise ValueError("Expected labels >= 2 to buy, got labels=0; pass --buy.labels.")
    features = model.features(task.public.images)
    if config.select == "random":
        return sample.select(key, features, config.labels), None
    probabilities = model.predict_proba(task.public.images)
    if config.select in ("entropy", "difference"):
        return most_uncertain.select(
            key,
            features,
            probabilities,
            num_queries=config.labels,
            config=most_uncertain.Config(config.select),
        ), None
    candidates = config.num_candidates
    if config.select == "diverse_public":
        diverse = diverse_public.Config(
            candidates, config.components, config.per_cluster, config.uncertainty
        )
        return diverse_public.select(
            key, features, probabilities, num_queries=config.labels, config=diverse
        ), None
    near = near_private.Config(
        config.epsilon_pca,
        config.epsilon_support,
        delta,
        relation,
        candidates,
        config.components,
        config.private_uncertain,
        config.uncertainty,
    )
    private_features = model.features(task.private.images)
    private_probabilities = model.predict_proba(task.private.images)
    return near_private.select(
        noise_key,
        features,
        probabilities,
        private_features=private_features,
        private_probabilities=private_probabilities,
        num_queries=config.labels,
        config=near,
    )


def bought_labels(task: Task, index: np.ndarray, config: Config) -> np.ndarray:
    """Return the oracle's labels of the chosen records.

    Args:
      task: Data of the run.
      index: int `[num_queries]`, public records from `select`.
      config: Settings of the purchase, which name the oracle.

    Returns:
      int32 `[num_queries]`, -1 for records of none of the classes.

    Raises:
      ValueError: If oracle=none, or if a file holds other than integers `[m]` from -1 to the number
        of classes less 1.
      FileNotFoundError: If there is no such file.
    """
    if config.oracle == "none":
        raise ValueError(
            "Expected an oracle to buy labels from, got oracle=none; pass --buy.oracle benchmark "
            "or the path of an .npy file."
        )
    bought: np.ndarray = known_labels(task, config)[index].astype(np.int32)
    return bought


def known_labels(task: Task, config: Config) -> np.ndarray:
    """Return all labels that the oracle knows, integers `[m]`.

    Raises:
      ValueError: If a file holds other than integers `[m]` from -1 to the number of classes less 1.
      FileNotFoundError: If there is no such file.
    """
    known = task.public.true_labels if config.oracle == "benchmark" else _read(Path(config.oracle))
    num_public = len(task.public.images)
    num_classes = task.card.num_classes
    whole = known.shape == (num_public,) and np.issubdtype(known.dtype, np.integer)
    if not whole or not ((known >= -1) & (known < num_classes)).all():
        raise ValueError(
            f"Expected labels [{num_public}] of integers from -1 to {num_classes - 1}, one for "
            "each public record, in "
            f"oracle={config.oracle}, got {known.dtype} {known.shape}"
            + (f" from {known.min()} to {known.max()}." if whole else ".")
        )
    return known


def fine_tune(
    key: jax.Array,
    task: Task,
    model: students.Student,
    index: np.ndarray,
    labels: np.ndarray,
    config: Config,
    on_epoch: students.OnEpoch | None = None,
) -> students.Student:
    """Train all layers further, on the bought records alone.

    This is post-processing of the model and the choice, and costs no privacy. The loss is plain
    cross-entropy. There is no average over steps, no smoothing and no augmentation. Every epoch has
    its own order; published code repeats one.

    Args:
      key: Random key, which is consumed.
      task: Data of the run.
      model: Network at the start.
      index: int `[num_queries]`, bought public records.
      labels: int `[num_queries]`, labels of these records. Those with -1 are left out.
      config: Settings of the purchase.
      on_epoch: Callback after every epoch, as in `students.fit`. Defaults to none.

    Raises:
      ValueError: If fewer than two records are of one of the classes.
      KeyboardInterrupt: If it came before the end of the first epoch.
    """
    useful = np.asarray(labels) >= 0
    if useful.sum() < 2:
        raise ValueError(
            "Expected two bought records or more that are of one of the classes, got "
            f"{useful.sum()} of labels={len(useful)}; buy more, or "
            "choose them by near_private."
        )
    how = students.Config(
        model=model.config.model,
        epochs=config.epochs,
        batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        weight_decay=0.0,
        label_smoothing=0.0,
        ema_decay=0.0,
        augmentation="none",
        optimizer="sgd",
        warmup=0.0,
    )
    targets = np.eye(model.num_classes, dtype=np.float32)[np.asarray(labels)[useful]]
    start = {"params": model.params, "batch_stats": model.batch_stats}
    return students.fit(
        key,
        task.public.images[np.asarray(index)[useful]],
        targets,
        how,
        start=start,
        on_epoch=on_epoch,
    )


def _read(path: Path) -> np.ndarray:
    try:
        labels: np.ndarray = np.load(path, allow_pickle=False)
        return labels
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged file may fail with any exception
        raise ValueError(f"Expected an .npy file of labels, got oracle={path}: {error}.") from error
