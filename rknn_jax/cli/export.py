"""`rknn export`: labels or networks of a finished folder, in forms that other programs read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from rknn_jax._internal.terminal import err, tell


@dataclass(frozen=True)
class Export:
    """Write the labels or networks of a finished folder in a form that other programs read, beside the files that are there.

    Attributes:
      folder: that rknn label, rknn serve or train.distill wrote.
      format: parquet or csv, for the labels; stablehlo, for networks that jax.export loads without
        this package.
      json: end with one line of JSON on stdout.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    folder: Positional[Path]
    format: Literal["parquet", "csv", "stablehlo"]
    json: bool = False


def run(settings: Export) -> dict[str, Any]:
    """Write the folder's results in another form, and return what `--json` prints."""
    with err.status("loading"):
        from rknn_jax.release import export
    with err.status("writing"):
        paths = export.write(settings.folder, settings.format)
    tell(err, "files", ", ".join(map(str, paths)))
    return {"files": {path.stem: str(path) for path in paths}}
