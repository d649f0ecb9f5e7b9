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


_COMMAND = re.compile(r"(?=rknn budget|python -m )")
"""Start of a command that is advised, whose flags stay as they are."""


def in_parameters(text: str) -> str:
    """Replace the flags of `rknn label` by parameters, up to the command that is advised."""
    words, *command = _COMMAND.split(text, maxsplit=1)

    def parameter(flag: re.Match[str]) -> str:
        return _PARAMETERS.get(flag[1], flag[1].replace("-", "_"))

    return "".join([re.sub(r"--([a-z-]+)", parameter, words), *command])


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
