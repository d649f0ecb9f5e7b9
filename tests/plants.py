"""Mechanisms with a bug, by which the audit is judged: each breaks its guarantee in another way."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rknn_jax._internal import pytree
from rknn_jax.mechanisms import collision
from rknn_jax.mechanisms.collision import Collision
from rknn_jax.mechanisms.discrete_laplace import DiscreteLaplace
from rknn_jax.mechanisms.randomized_response import RandomizedResponse


class Plant(NamedTuple):
    """A bug.

    Attributes:
      words: The bug.
      mechanism: Mechanism that has it.
      honest: Mechanism that it is a copy of, whose guarantee it claims.
      runs: Runs of each input at which `make test` finds it.
    """

    words: str
    mechanism: object
    honest: object
    runs: int = 600


def planted(kind, **members):
    """Make the class of a mechanism with a bug."""
    return pytree.register(
        dataclasses.dataclass(frozen=True)(type(f"Planted{kind.__name__}", (kind,), members))
    )


def noise_of(self, key):
    """Noise of the honest mechanism, float32 `[num_queries, num_classes]`."""
    return DiscreteLaplace.estimate(self, key, jnp.zeros(self.shape, jnp.int32), 1)


def query_1_without_noise(self, key, counts, noise):
    return jnp.where(jnp.arange(self.num_queries)[:, None] == 1, 0, noise)


def last_class_without_noise(self, key, counts, noise):
    return jnp.where(jnp.arange(self.num_classes)[None] == self.num_classes - 1, 0, noise)


def less_noise_at_large_counts(self, key, counts, noise):
    return jnp.where(counts > 10, jnp.round(noise / 10), noise)


def noise_reused_four_queries_on(self, key, counts, noise):
    return noise[jnp.arange(self.num_queries) % 4]


def sometimes_without_noise(self, key, counts, noise):
    return jnp.where(jax.random.bernoulli(key, 1e-3), 0, noise)


def even_noise(self, key, counts, noise):
    return 2 * jnp.round(noise / 2)


def leader_without_noise(self, key, counts, noise):
    return jnp.where(counts == counts.max(axis=1, keepdims=True), 0, noise)


def empty_cells_skipped(self, key, counts, noise):
    return jnp.where(counts == 0, 0, noise)


def noise_from_the_votes(self, key, counts, noise):
    seed = jnp.sum(counts.astype(jnp.int32) * (1 + jnp.arange(self.num_cells).reshape(self.shape)))
    return noise_of(self, jax.random.fold_in(jax.random.key(5), seed))


def less_noise_for_many_votes(self, key, counts, noise):
    return jnp.where(counts.sum() > 100, jnp.round(noise / 8), noise)


NOISES = (
    query_1_without_noise,
    last_class_without_noise,
    less_noise_at_large_counts,
    noise_reused_four_queries_on,
    sometimes_without_noise,
    even_noise,
    leader_without_noise,
    empty_cells_skipped,
    noise_from_the_votes,
    less_noise_for_many_votes,
)


@pytree.register
@dataclasses.dataclass(frozen=True)
class SpoiledLaplace(DiscreteLaplace):
    """Discrete Laplace noise with a bug. Its number is a leaf, so that one program has them all.

    Attributes:
      bug: Number of a function of `NOISES`.
    """

    bug: int = 0

    def estimate(self, key, totals, num_records):
        first, second = jax.random.split(key)
        counts = totals.reshape(self.shape).astype(jnp.float32)
        branches = [functools.partial(change, self) for change in NOISES]
        return counts + jax.lax.switch(self.bug, branches, second, counts, noise_of(self, first))


def _ten_fold(self, messages):
    partly = (messages >= 0).any(axis=1) & (messages < 0).any(axis=1)
    cells = jnp.where(messages < 0, self.num_cells, messages)
    weights = jnp.broadcast_to(jnp.where(partly, 10, 1)[:, None], cells.shape)
    return jnp.zeros(self.num_cells, jnp.int32).at[cells].add(weights, mode="drop")


PartlyMissingTenFold = planted(DiscreteLaplace, aggregate=_ten_fold)


def _seed_bit(self, key, cells):
    sent = Collision.randomize(self, key, cells)
    low = sent.seed[0] & jnp.uint32(2**32 - 2) | (jnp.max(cells) & 1).astype(jnp.uint32)
    return sent._replace(seed=sent.seed.at[0].set(low))


def _seed_parity(self, key, cells):
    """The exclusive or of two bits of the seed is the lowest bit of the vote; each bit is fair."""
    sent = Collision.randomize(self, key, cells)
    wrong = sent.seed[0] >> 3 ^ sent.seed[1] >> 17 ^ jnp.max(cells).astype(jnp.uint32)
    return sent._replace(seed=sent.seed.at[0].set(sent.seed[0] ^ (wrong & 1) << 3))


def _ground_seed(self, key, cells):
    """Of two seeds the one is taken under which the votes fall into different buckets."""
    one, other = (Collision.randomize(self, k, cells) for k in jax.random.split(key))
    held = collision.distinct_buckets(one.seed, cells, self.num_buckets)[1]
    crowded = jnp.sum(held) < jnp.sum(cells >= 0)
    return jax.tree.map(lambda a, b: jnp.where(crowded, b, a), one, other)


def _plain_without_votes(self, key, cells):
    sent = RandomizedResponse.randomize(self, key, cells)
    return jnp.where((cells >= 0).any(), sent, jnp.zeros_like(sent))


MESSAGES = (_seed_bit, _seed_parity, _ground_seed)


@pytree.register
@dataclasses.dataclass(frozen=True)
class SpoiledCollision(Collision):
    """Collision with a bug.

    Attributes:
      bug: Number of a function of `MESSAGES`.
    """

    bug: int = 0

    def randomize(self, key, cells):
        branches = [functools.partial(change, self) for change in MESSAGES]
        return jax.lax.switch(self.bug, branches, key, cells)


PlainWithoutVotes = planted(RandomizedResponse, randomize=_plain_without_votes)


def plants(queries: int = 5, classes: int = 3, epsilon: float = 0.5) -> list[Plant]:
    """Return all bugs, at sizes of their mechanisms."""
    sizes = (epsilon, queries, classes)
    laplace = DiscreteLaplace(*sizes)
    client = Collision(*sizes)
    two = DiscreteLaplace(*sizes, num_neighbors=2)
    two_client = Collision(*sizes, num_neighbors=2)

    def counts(words, change, runs=600):
        return Plant(words, SpoiledLaplace(*sizes, bug=NOISES.index(change)), laplace, runs)

    def message(words, change, honest=client, runs=600):
        spoiled = SpoiledCollision(
            *sizes, num_neighbors=honest.num_neighbors, bug=MESSAGES.index(change)
        )
        return Plant(words, spoiled, honest, runs)

    return [
        message("the lowest bit of the public seed equals that of the vote", _seed_bit),
        counts("query 1 has no noise", query_1_without_noise),
        counts("a tenth of the noise where a count is above 10", less_noise_at_large_counts),
        Plant(
            "partly missing votes count ten-fold",
            PartlyMissingTenFold(*sizes, num_neighbors=2),
            two,
        ),
        counts("the last class has no noise", last_class_without_noise),
        counts("noise is reused four queries on", noise_reused_four_queries_on),
        counts("1 release in 1,000 has no noise", sometimes_without_noise, 200_000),
        counts("noise is even", even_noise),
        counts("the leader of a query has no noise", leader_without_noise),
        counts("cells without votes are released as 0", empty_cells_skipped),
        counts("the key of the noise is made of the votes", noise_from_the_votes),
        counts("an eighth of the noise above 100 votes in all", less_noise_for_many_votes),
        message("two bits of the seed differ if the vote is odd", _seed_parity),
        message("a seed is drawn again if votes collide", _ground_seed, two_client, 4000),
        Plant(
            "a client without votes sends zeros",
            PlainWithoutVotes(*sizes),
            RandomizedResponse(*sizes),
        ),
    ]
