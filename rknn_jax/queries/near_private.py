"""NearPrivate: uncertain public queries that are close to uncertain private records.

A public pool may hold many records unlike any private one, and the model is uncertain about all of
them. Private records therefore choose:

1. Principal components of the private features are released with noise on their second moments
   (`rknn_jax.queries._dp_pca`).
2. Each uncertain private record votes for its nearest uncertain public record. Both are projected
   with the same center, length, and clipping.
3. Laplace noise is added to the votes. The public records with the most votes are the queries.

A neighboring data set changes the votes by 1 in each of several places. The number of places is the
scale of the noise times epsilon:

| private records that vote                 | add-remove | replace-one |
|-------------------------------------------|------------|-------------|
| `threshold`: those beyond a public one    | 1          | 2           |
| `top`: as many as there are public places | 2          | 2           |

For `top`, an added record pushes another one out, so add-remove changes 2 places. The threshold is
the uncertainty of the last public record that is uncertain enough. Threshold, center, and length
depend only on the model and on public records.

**As published** the guarantee does not hold, and none of the published procedure is reproduced
here. The scale of the noise was epsilon instead of its inverse, and the sensitivity was taken as 1.
Private points were centered by their own mean, so one distant record moves all votes. Public points
were centered by another mean, which misaligned the two. The delta of the components was not added.

Reference: Zhao, Papernot, Singh, Polyzotis & Odena, "Improving Differentially Private Models with
Active Learning", 2019.
"""

import functools
import math
from dataclasses import dataclass
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.neighbors import nearest
from rknn_jax.privacy import accounting
from rknn_jax.privacy.events import Laplace
from rknn_jax.privacy.guarantee import RELATIONS, Guarantee, Relation
from rknn_jax.queries import _dp_pca, uncertainty
from rknn_jax.types import Array, Queries

Voters = Literal["top", "threshold"]


@dataclass(frozen=True)
class Config:
    """Settings of NearPrivate, with its privacy budget.

    Attributes:
      epsilon_pca: Epsilon of the principal components, with `delta`. Defaults to 0.3.
      epsilon_support: Pure epsilon of the votes. Defaults to 0.7.
      delta: Delta of the principal components, and of the whole selection. Defaults to 1e-5.
      relation: Relation of neighboring data sets. Defaults to `replace-one`.
      candidates: Uncertain public records in addition to the queries. Defaults to 3000.
      components: Number of principal components for the search of nearest records. Defaults to 16.
      voters: Private records that vote, `top` or `threshold`. Under replace-one both cost the same.
        In a polluted pool the threshold is high, and `top` has more voters. Defaults to `top`.
      measure: Measure of uncertainty, `entropy` or `difference`. Defaults to `entropy`.
    """

    epsilon_pca: float = 0.3
    epsilon_support: float = 0.7
    delta: float = 1e-5
    relation: Relation = "replace-one"
    candidates: int = 3000
    components: int = 16
    voters: Voters = "top"
    measure: uncertainty.Measure = "entropy"

    def __post_init__(self) -> None:
        for name in ("epsilon_pca", "epsilon_support"):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"Expected {name} > 0, got {name}={getattr(self, name)}; infinity adds no "
                    "noise."
                )
        if self.epsilon_pca < math.inf and not 0 < self.delta < 1:
            raise ValueError(
                f"Expected 0 < delta < 1, got delta={self.delta}; the components' noise is "
                "Gaussian and needs one."
            )
        if self.candidates < 0:
            raise ValueError(
                f"Expected candidates >= 0, got candidates={self.candidates}; 0 leaves private "
                "records no choice."
            )
        if self.components < 1:
            raise ValueError(f"Expected components >= 1, got components={self.components}.")
        choices = {
            "relation": RELATIONS,
            "voters": get_args(Voters),
            "measure": get_args(uncertainty.Measure),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"Expected {name} to be one of {', '.join(allowed)}, got "
                    f"{name}={getattr(self, name)!r}."
                )


def select(
    key: jax.Array,
    features: Array,
    probabilities: Array,
    private_features: Array,
    private_probabilities: Array,
    num_queries: int,
    config: Config = Config(),
) -> tuple[Queries, Guarantee]:
    """Choose public records that are close to uncertain private ones.

    Args:
      key: Random key of the noise, the only randomness; consumed by the call.
      features: The model's features of public records, `[m, f]`.
      probabilities: The model's predictions for public records, `[m, num_classes]`.
      private_features: The model's features of private records, `[n, f]`.
      private_probabilities: The model's predictions for private records, `[n, num_classes]`. One
        that is not finite or below 0 counts as certain.
      num_queries: Number of queries s; s + `candidates` is at most m.
      config: Settings of NearPrivate.

    Returns:
      Queries that each label only their own record, most votes first, and their privacy cost beyond
      the model's.

    Guarantee:
      Components and votes composed, at delta or below. The model has seen the same records, so
      compose the model's guarantee with this one.

    Raises:
      ValueError: For too few public records, fewer features than `components`, and private arrays
        that do not fit.
    """
    features = np.asarray(features, np.float32)
    uncertain = uncertainty.candidates(
        features, probabilities, num_queries, extra=config.candidates, measure=config.measure
    )
    scores = uncertainty.score(_each_usable(private_probabilities), config.measure)
    if len(private_features) != len(scores):
        raise ValueError(
            f"Expected a prediction for each private record, got {len(scores)} for "
            f"{len(private_features)} private_features."
        )
    component_key, vote_key = jax.random.split(key)
    components = fit_components(component_key, features, private_features, config)
    threshold = float(
        uncertainty.score(np.asarray(probabilities)[uncertain[-1:]], config.measure)[0]
    )
    voting = voters(scores, config.voters, len(uncertain), threshold)
    counts = support(components(features[uncertain]), components(private_features), voting)
    chosen = uncertain[uncertainty.most(noisy_support(vote_key, counts, config), num_queries)]
    guarantee = accounting.compose([components.guarantee, support_guarantee(config)], config.delta)
    return Queries.alone(features, chosen), guarantee


def _each_usable(probabilities: Array) -> np.ndarray:
    """Replace rows of private predictions that are none by a certain one.

    An error in their place would tell of that one record.
    """
    rows = np.asarray(probabilities, np.float64)
    usable = (rows >= 0) & (rows < math.inf)
    certain = np.arange(rows.shape[-1]) == 0
    return np.where(usable.all(axis=-1, keepdims=True), rows, certain)


def fit_components(
    key: jax.Array, features: Array, private_features: Array, config: Config
) -> _dp_pca.Components:
    """Fit principal components of private features around the public mean.

    The unit of length is the median distance of public features from that mean.
    """
    features = np.asarray(features, np.float64)
    centre = features.mean(axis=0)
    return _dp_pca.fit(
        key,
        private_features,
        config.components,
        centre=centre,
        length=float(np.median(np.linalg.norm(features - centre, axis=1))),
        epsilon=config.epsilon_pca,
        delta=config.delta,
        relation=config.relation,
    )


def voters(scores: np.ndarray, kind: Voters, count: int, threshold: float) -> np.ndarray:
    """Return a mask of the private records that vote, bool `[n]`.

    `top` takes the `count` most uncertain records, or all if there are fewer. `threshold` takes the
    records with at least a public threshold.
    """
    if kind == "threshold":
        return scores >= threshold
    voting = np.zeros(len(scores), bool)
    voting[uncertainty.most(scores, count)] = True
    return voting


def support(points: Array, private_points: Array, voting: np.ndarray) -> np.ndarray:
    """Count the voting private points nearest to each public point, int64 `[len(points)]`.

    `changed_votes` bounds the change of these counts.
    """
    near = np.asarray(
        nearest(private_points, points, 1)[:, 0]
    )  # search for all points, each independently, so that no shape depends on the voters
    return np.bincount(near[voting], minlength=len(points))


def noisy_support(key: jax.Array, counts: np.ndarray, config: Config) -> np.ndarray:
    """Add Laplace noise to votes, float64; `key` is consumed.

    Float32 noise is a simulation, as in `rknn_jax.mechanisms.laplace`.
    """
    noise = jax.random.laplace(key, counts.shape, jnp.float32)
    return counts + support_scale(config) * np.asarray(noise, np.float64)


def changed_votes(config: Config) -> int:
    """Return the L1 sensitivity of the counts.

    It is the maximum number of counts that a neighboring data set changes by 1.
    """
    return 1 if config.relation == "add-remove" and config.voters == "threshold" else 2


def support_scale(config: Config) -> float:
    """Return the scale of the Laplace noise, in votes."""
    return changed_votes(config) / config.epsilon_support


def support_guarantee(config: Config) -> Guarantee:
    """Return the guarantee of the noisy votes alone."""
    event = Laplace(support_scale(config), changed_votes(config))
    return Guarantee(config.epsilon_support, 0.0, config.relation, trust="central", events=(event,))


def _example(key: jax.Array, features: Array, num_queries: int, config: Config) -> Queries:
    features = np.asarray(features)
    scores = np.abs(features[:, :3]) + 0.1  # any prediction will do
    probabilities = scores / scores.sum(axis=1, keepdims=True)
    return select(
        key,
        features,
        probabilities,
        private_features=features[::2] + 0.1,
        private_probabilities=probabilities[::2],
        num_queries=num_queries,
        config=config,
    )[0]


EXAMPLES = (
    functools.partial(_example, config=Config(candidates=20, components=3)),
    functools.partial(
        _example,
        config=Config(
            candidates=20,
            components=2,
            voters="threshold",
            relation="add-remove",
            measure="difference",
        ),
    ),
)
