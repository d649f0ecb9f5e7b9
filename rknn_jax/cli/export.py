"""`rknn export`: labels, networks or the statement of a finished folder, in other forms."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from rknn_jax._internal import progress
from rknn_jax._internal.ranges import Share
from rknn_jax._internal.terminal import err, tell
from rknn_jax.release.export_formats import Format


@dataclass(frozen=True)
class Export:
    """Write the labels, networks or statement of a finished folder in a form that other programs read, beside the files that are there.

    Attributes:
      folder: folder that rknn label, rknn serve or train.distill wrote.
      format: parquet or csv, for the labels; label-studio, argilla or cleanlab, for the labels in programs
        for annotation; onnx, stablehlo or safetensors, for networks that onnxruntime, jax.export or
        other programs load; registry, for the statement as a record of the OpenDP Deployments Registry.
      threshold: smallest probability of a label; records below it get no label.
      json: end with one line of JSON on stdout.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    folder: Positional[Path]
    format: Format
    threshold: Share = 0.0
    json: bool = False


def run(settings: Export) -> dict[str, Any]:
    """Write the folder's results in another form, and return what `--json` prints."""
    with progress.phase("loading"):
        from rknn_jax.release import export, registry
    with progress.phase("writing"):
        paths = export.write(settings.folder, settings.format, settings.threshold)
    tell(err, "files", ", ".join(map(str, paths)))
    files = {path.stem: str(path) for path in paths}
    if settings.format != "registry":
        return {"files": files}
    unanswered = registry.read(settings.folder).unanswered
    tell(err, "unanswered", ", ".join(unanswered))
    return {"files": files, "unanswered": list(unanswered)}
