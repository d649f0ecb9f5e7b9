"""NearPrivate: queries that a model is unsure of and that are near private records of which it is
unsure too.

A public pool may hold much that the private records are not about, and the model is unsure of all
that. So private records choose:

1. principal components of the private features, by noise on their second moments
  (`rknn_jax.queries._dp_pca`);
2. each uncertain private record votes for its nearest uncertain public one, both projected by the
  same centre, length and clipping;
3. Laplace noise on the votes, and the public records that have most of them are the queries.

A neighbouring data set changes the votes by 1 each in so many places, which are what the noise's
scale is per epsilon:

| private records that vote                 | add-remove | replace-one |
|-------------------------------------------|------------|-------------|
| `threshold`: those beyond a public one    | 1          | 2           |
| `top`: as many as there are public places | 2          | 2           |

One record that comes in pushes another one out of the top, hence its 2 under add-remove. The
threshold is the uncertainty of the last public record that is uncertain enough; it depends on the
model and on public records alone, as do centre and length.

**As published** the guarantee does not hold, and none of it is reproduced here. The scale of the
noise was epsilon in place of its inverse; the change was taken for 1; private points were centred
by their own mean, so that one far record moves all votes; public points were centred by another
mean, which put the two out of register; and delta of the components was not added.

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
from rknn_jax.privacy.guarantee import RELATIONS, Event, Guarantee, Relation
from rknn_jax.queries import _dp_pca, uncertainty
from rknn_jax.types import Array, Queries

Voters = Literal["top", "threshold"]


@dataclass(frozen=True)
class Config:
    """Which records are asked about, and at what price.

    Attributes:
      epsilon_pca: of the principal components, with `delta`.
      epsilon_support: of the votes, pure.
      delta: of the principal components, and of everything together.
      relation: which data sets are neighbours.
      candidates: uncertain public records beside those that will be asked about.
      components: principal components in which the nearest is looked for.
      voters: private records that vote, `top` or `threshold`; under replace-one both cost the same,
        and in a polluted pool, where the threshold is high, the top ones are more.
      measure: of uncertainty, `entropy` or `difference`.
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
    """Choose public records that uncertain private ones are near.

    Args:
      key: is consumed; it makes the noise, and no chance beside it.
      features: `[m, f]`, the model's, of public records.
      probabilities: `[m, num_classes]`, the model's prediction for them.
      private_features: `[n, f]`, the same model's.
      private_probabilities: `[n, num_classes]`.
      num_queries: s; s + `candidates` is at most m.
      config: see `Config`.

    Returns:
      Queries, each of which stands for itself alone, that of most votes first, and what they cost
      beyond the model.

    Guarantee:
      Components and votes composed, at delta or below. The model has seen the same records, so its
      guarantee is to be composed with this.

    Raises:
      ValueError: where public records are too few, features fewer than `components`, and for
        private arrays that do not fit.
    """
    features = np.asarray(features, np.float32)
    uncertain = uncertainty.candidates(
        features, probabilities, num_queries, config.candidates, config.measure
    )
    scores = uncertainty.score(private_probabilities, config.measure)
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


def fit_components(
    key: jax.Array, features: Array, private_features: Array, config: Config
) -> _dp_pca.Components:
    """Find principal components of private features around the public mean, in units of the
    median public distance from it.
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
    """Return which private records vote, bool `[n]`: the `count` most uncertain, all of fewer,
    or those from a public threshold on.
    """
    if kind == "threshold":
        return scores >= threshold
    voting = np.zeros(len(scores), bool)
    voting[uncertainty.most(scores, count)] = True
    return voting


def support(points: Array, private_points: Array, voting: np.ndarray) -> np.ndarray:
    """Count the private points that vote and are nearest to each public one, int64
    `[len(points)]`: what `changed_votes` is about.
    """
    near = np.asarray(
        nearest(private_points, points, 1)[0][:, 0]
    )  # of all, each by itself: no shape depends on who votes
    return np.bincount(near[voting], minlength=len(points))


def noisy_support(key: jax.Array, counts: np.ndarray, config: Config) -> np.ndarray:
    """Add Laplace noise to votes, float64; `key` is consumed.

    In float32 this is a simulation: see `rknn_jax.mechanisms.laplace`.
    """
    noise = jax.random.laplace(key, counts.shape, jnp.float32)
    return counts + support_scale(config) * np.asarray(noise, np.float64)


def changed_votes(config: Config) -> int:
    """Return how many counts a neighbouring data set changes by 1 each, at most: their L1
    sensitivity.
    """
    return 1 if config.relation == "add-remove" and config.voters == "threshold" else 2


def support_scale(config: Config) -> float:
    """Return the scale of the Laplace noise, in votes."""
    return changed_votes(config) / config.epsilon_support


def support_guarantee(config: Config) -> Guarantee:
    """Return the guarantee of the noisy votes alone."""
    event = Event("laplace", support_scale(config), changed_votes(config))
    return Guarantee(config.epsilon_support, 0.0, config.relation, "central", (event,))


def _example(key: jax.Array, features: Array, num_queries: int, config: Config) -> Queries:
    features = np.asarray(features)
    scores = np.abs(features[:, :3]) + 0.1  # any prediction will do
    probabilities = scores / scores.sum(axis=1, keepdims=True)
    return select(
        key, features, probabilities, features[::2] + 0.1, probabilities[::2], num_queries, config
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
