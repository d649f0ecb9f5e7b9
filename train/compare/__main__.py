"""Command line of a comparison."""

import sys

import tyro

from rknn_jax._internal import compilation, ranges
from rknn_jax._internal.terminal import run_program

from .. import compare, stages
from .plan import Config
from .run import main


def cli() -> int:
    """Run from the command line.

    Exit status 1 means that cells failed, 2 bad input, and 130 that it was stopped.
    """
    config = tyro.cli(Config, description=compare.__doc__)
    compilation.keep()
    try:
        ranges.check(config)
        return 1 if main(config)["failed"] else 0
    except (ValueError, OSError) as error:
        stages.console.print(f"error: {error}")
        return 2
    except KeyboardInterrupt as stopped:
        done = "".join(f"; {note}" for note in getattr(stopped, "__notes__", []))
        stages.console.print(f"Stopped{done}. The same command goes on.")
        return 130


if __name__ == "__main__":
    sys.argv[0] = "python -m train.compare"
    run_program(cli)
