"""Results of a finished folder in other forms: `rknn export` without its command line.

`rknn label`, `rknn serve` and `train.distill` leave folders of the same layout: `labels.npz` and
`privacy.json`, and some of them networks in `student/` and `model/`. An export is post-processing
of what was released, and costs nothing.

| forms                                | module                           |
|--------------------------------------|----------------------------------|
| `parquet`, `csv`                     | `rknn_jax.release.label_table`   |
| `label-studio`, `argilla`, `cleanlab`| `rknn_jax.release.annotation`    |
| `stablehlo`, `onnx`, `safetensors`   | `rknn_jax.release.networks`      |
| `registry`                           | `rknn_jax.release.registry`      |
"""

import json
from pathlib import Path

from rknn_jax._internal.disk import write_whole
from rknn_jax._internal.option_names import option
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.release import annotation, label_table, networks, registry
from rknn_jax.release.export_formats import Format
from rknn_jax.release.label_table import FINISHED


def write(folder: Path, form: Format, threshold: float = 0.0) -> tuple[Path, ...]:
    """Write the folder's results in another form, beside them.

    Each file is whole or absent.

    Args:
      folder: Finished folder.
      form: Form of the files.
      threshold: Least probability of a label. Records below it have none. Defaults to 0.

    Returns:
      Paths of the files.

    Raises:
      ValueError: If the folder is not finished or lacks these results, or if the form needs a
        package that is missing, or has no labels for a threshold.
      OSError: If a file cannot be written.
    """
    if not (folder / "privacy.json").exists():
        raise ValueError(
            f"Expected {FINISHED}, got {folder}, which has no privacy.json; let the run come to "
            "its end."
        )
    if threshold and form in (*networks.FORMS, "registry"):
        raise ValueError(
            f"Expected a form of labels with {option('threshold')}, got {option('format')} {form}; "
            "leave it out."
        )
    made = _made(folder, form, threshold)
    paths = tuple(folder / name for name in made)
    for path, content in zip(paths, made.values(), strict=True):
        write_whole(path, content)
    return paths


def _made(folder: Path, form: Format, threshold: float) -> dict[str, bytes]:
    """Return the content of the files by their names."""
    if form == "registry":
        return {"registry.yaml": registry.read(folder).as_yaml()}
    if form in networks.FORMS:
        found = networks.networks(folder)
        carried = {"guarantee": json.dumps(_guarantee(folder), allow_nan=False)}
        made = networks.FORMS[form]
        return {f"{name}.{form}": made(model, carried) for name, model in found.items()}
    labels = label_table.read(folder)
    if threshold:
        labels = labels.abstaining(threshold)
    if form == "parquet":
        return {"labels.parquet": label_table.parquet(labels)}
    if form == "csv":
        return {"labels.csv": label_table.as_csv(labels)}
    return annotation.FORMS[form](labels)


def _guarantee(folder: Path) -> dict[str, object]:
    """Return the guarantee of a folder, JSON-ready.

    Raises:
      ValueError: If `privacy.json` is damaged.
    """
    try:
        card = json.loads((folder / "privacy.json").read_text(encoding="utf-8"))
        return Guarantee.of(card["whole"] if "whole" in card else card["guarantee"]).asdict()
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"Expected {FINISHED}, got {folder}, whose privacy.json is damaged ({error}); restore "
            "it from a copy."
        ) from error
