"""Command line of the report: it writes the page of a run folder again."""

import sys

import tyro
from rich.console import Console

from rknn_jax._internal.terminal import run_program

from .. import report


def cli() -> int:
    """Run from the command line. Exit status 2 means a folder that cannot be read or written."""
    console = Console(stderr=True)
    try:
        console.print(
            f"The report: {tyro.cli(report.write, description=report.__doc__)}",
            highlight=False,
        )
    except (ValueError, OSError) as error:
        console.print("[bold red]error:[/]", end=" ")
        console.print(str(error), markup=False, highlight=False)
        return 2
    return 0


if __name__ == "__main__":
    sys.argv[0] = "python -m train.report"
    run_program(cli)
