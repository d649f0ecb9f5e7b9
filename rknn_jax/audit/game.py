"""Game of an audit: two neighboring inputs, and an adversary's view of either."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

HALF_THE_NOISE = "half the noise: the same mechanism made for twice the epsilon"


class Game(NamedTuple):
    """Two neighboring inputs, and an adversary's view of them.

    Attributes:
      inputs: The two inputs, in words.
      observe: Function `observe(key, world, runs)` that returns the view in fresh, independent runs
        on input 0 or 1, `[runs, f]`. `key` is consumed.
      names: Names of the f columns. Defaults to none.
      always: Columns to look at alone even if they seem to tell little, because they show rare
        events. Defaults to none.
    """

    inputs: str
    observe: Callable[[jax.Array, int, int], np.ndarray]
    names: tuple[str, ...] = ()
    always: tuple[int, ...] = ()


class Control(NamedTuple):
    """Same games of a mechanism with a known fault, which measure the audit's power.

    Attributes:
      against: Known fault, in words.
      games: Games of the mechanism with the fault.
    """

    against: str
    games: Sequence[Game]
