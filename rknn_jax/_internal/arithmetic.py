"""Arithmetic as every release needs it, whatever a program has made errors of."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def quiet() -> Iterator[None]:
    """Compute without errors of rounding, underflow and overflow.

    Where a program makes errors of them, one record would decide whether there is a release, and a
    release that is paid for would be lost.
    """
    import scipy.special  # imported late: a part of the package does without it

    with np.errstate(all="ignore"), scipy.special.errstate(all="ignore"):
        yield
