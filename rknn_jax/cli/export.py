"""`rknn export`: labels, networks or the statement of a finished folder, in other forms."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from rknn_jax._internal.terminal import err, tell


@dataclass(frozen=True)
class Export:
    """Write the labels, networks or statement of a finished folder in a form that other programs read, beside the files that are there.

    Attributes:
      folder: that rknn label, rknn serve or train.distill wrote.
      format: parquet or csv, for the labels; stablehlo, for networks that jax.export loads without
        this package; registry, for the statement as a record of the OpenDP Deployments Registry.
      json: end with one line of JSON on stdout.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    folder: Positional[Path]
    format: Literal["parquet", "csv", "stablehlo", "registry"]
    json: bool = False


def run(settings: Export) -> dict[str, Any]:
    """Write the folder's results in another form, and return what `--json` prints."""
    with err.status("loading"):
        from rknn_jax.release import export, registry
    with err.status("writing"):
        paths = export.write(settings.folder, settings.format)
    tell(err, "files", ", ".join(map(str, paths)))
    files = {path.stem: str(path) for path in paths}
    if settings.format != "registry":
        return {"files": files}
    unanswered = registry.read(settings.folder).unanswered
    tell(err, "unanswered", ", ".join(unanswered))
    return {"files": files, "unanswered": list(unanswered)}
