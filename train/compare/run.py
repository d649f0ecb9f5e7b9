"""Runs of a comparison, in order, and the page after each group."""

from collections.abc import Sequence
from typing import Any

from rknn_jax._internal import progress
from rknn_jax._internal.disk import write_text

from .. import distill, run_folder, stages, sweep
from ..json_files import write_json
from . import by_hand
from .measure import Measured, read, summary
from .methods import Plan
from .page import markdown, page
from .plan import Cell, Config, group, plan
from .sections import sections


def main(config: Config) -> dict[str, Any]:
    """Run all cells without a result, and write the page.

    Returns:
      Content of compare.json. A failed cell is listed under `failed`, and the others are run.

    Raises:
      ValueError: If a cell's folder holds a run of other settings, before anything is run.
      KeyboardInterrupt: If the comparison was stopped; the page is written.
    """
    chosen, cells = plan(config)
    before = [run_folder.find_result(cell.experiment) for cell in cells]
    measured = {
        cell: read(cell) for cell, result in zip(cells, before, strict=True) if result is not None
    }
    left = [cell for cell in cells if cell not in measured]
    failed = dict[Cell, str]()
    stages.console.print(f"{len(measured)} of {len(cells)} runs are done, {len(left)} to do")
    prepared = sweep.sharing(len(chosen.seeds))
    with progress.phase("labels by hand"):
        free = by_hand.rows(config, chosen.seeds, prepared)
    try:
        with progress.phase("comparison", len(cells), "runs", done=len(measured)) as done:
            for number, cell in enumerate(left, 1):
                stages.console.print(f"\n{number} of {len(left)}: {cell.experiment.out}")
                try:
                    distill.run(cell.experiment, prepared)
                    measured[cell] = read(cell)
                # The other cells do not depend on a failed one, and the page reports it.
                except Exception as error:
                    failed[cell] = f"{type(error).__name__}: {error}"
                    stages.console.print(f"failed: {failed[cell]}")
                done.advance()
                if number == len(left) or group(chosen, cell) != group(chosen, left[number]):
                    write(config, chosen, cells, measured=measured, failed=failed, free=free)
    except KeyboardInterrupt as stopped:
        stopped.add_note(f"{len(measured)} of {len(cells)} runs are done")
        raise
    finally:
        found = write(config, chosen, cells, measured=measured, failed=failed, free=free)
    stages.console.print(f"\nThe comparison: {config.folder / 'compare.html'}")
    return found


def write(
    config: Config,
    chosen: Plan,
    cells: Sequence[Cell],
    measured: dict[Cell, Measured],
    failed: dict[Cell, str],
    free: list[dict[str, Any]],
) -> dict[str, Any]:
    """Write the page as HTML, JSON and Markdown."""
    found = summary(config, chosen, cells, measured, failed) | {"by_hand": free}
    parts = sections(found)
    config.folder.mkdir(parents=True, exist_ok=True)
    write_json(config.folder / "compare.json", found)
    for name, text in (
        ("compare.md", markdown(found, parts)),
        ("compare.html", page(found, parts)),
    ):
        write_text(config.folder / name, text)
    return found
