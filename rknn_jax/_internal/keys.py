"""Random keys: one stream for each stage, derived by `fold_in`.

A new stage therefore changes no other stream. The experiment's seed never makes release noise.
`fresh_noise_key` takes the operating system's entropy, and a release does not use `jax.random` at
all (`rknn_jax.privacy.exact_noise`).
"""

import enum
import secrets

import jax


class Stage(enum.IntEnum):
    """Purpose of a key. Values are part of every recorded result: add, never renumber."""

    SPLIT = 0
    ENCODER = 1
    QUERIES = 2
    NOISE = 3
    STUDENT = 4
    BENCHMARK = 5
    SAMPLING = 6
    ROLES = 7
    CHECK = 8


def stage_key(root: jax.Array, stage: Stage, step: int = 0) -> jax.Array:
    """Derive the key of `stage` in round `step` from the experiment's root key.

    `root` may be used again for other stages.
    """
    return jax.random.fold_in(jax.random.fold_in(root, stage), step)


def fresh_noise_key() -> jax.Array:
    """Return a key from the operating system's entropy.

    It makes simulated noise that no seed can repeat.
    """
    return jax.random.fold_in(jax.random.key(secrets.randbits(32)), secrets.randbits(32))
