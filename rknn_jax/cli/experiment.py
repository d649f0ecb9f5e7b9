"""`rknn experiment`: the programs on benchmark data, which need no checkout.

    rknn experiment distill --dataset digits --epsilon 1
    rknn experiment compare --dataset digits

They are those of `python -m train.NAME` in a checkout. A wheel has them as `rknn_jax.experiments`.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence

from rknn_jax._internal.terminal import err

PACKAGES = ("rknn_jax.experiments", "train")
"""Package of the programs in a wheel, and in a checkout."""

NAMES = ("distill", "sweep", "compare", "audit", "parties", "attributes", "report")


def run(arguments: Sequence[str]) -> int:
    """Run one of the programs and return its exit status.

    Args:
      arguments: Name of the program, and its own arguments.
    """
    name = arguments[0] if arguments else "--help"
    if name not in NAMES:
        err.print(f"usage: rknn experiment {{{','.join(NAMES)}}} [OPTIONS]")
        return 0 if name in ("-h", "--help") else 2
    [package, *_] = [each for each in PACKAGES if importlib.util.find_spec(each)]
    program = importlib.import_module(f"{package}.{name}")
    if hasattr(program, "__path__"):
        program = importlib.import_module(f"{package}.{name}.__main__")
    command: Callable[[], int] = program.cli
    sys.argv = [f"rknn experiment {name}", *arguments[1:]]
    return command()
