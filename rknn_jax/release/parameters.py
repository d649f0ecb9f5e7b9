"""Words of `rknn label` in the parameters of the estimator."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from rknn_jax.answers.concerns import Concern

# Parameters whose names differ from the flags of `rknn label`.
_PARAMETERS = {
    "neighbors": "n_neighbors",
    "queries": "n_queries",
    "seed": "random_state",
    "private": "X",
    "public": "X",
}


def in_parameters(text: str) -> str:
    """Replace the flags of `rknn label` by parameters, up to the command that is advised."""
    words, command, rest = text.partition("rknn budget")
    return (
        re.sub(
            r"--([a-z-]+)", lambda flag: _PARAMETERS.get(flag[1], flag[1].replace("-", "_")), words
        )
        + command
        + rest
    )


def concerns_in_parameters(found: Iterable[Concern]) -> tuple[Concern, ...]:
    """Return concerns whose remedies name parameters."""
    return tuple(replace(one, remedy=in_parameters(one.remedy)) for one in found)


@contextmanager
def errors_in_parameters() -> Iterator[None]:
    """Replace flags by parameters in errors of input and settings."""
    try:
        yield
    except ValueError as error:
        error.args = (in_parameters(str(error)),)
        raise
