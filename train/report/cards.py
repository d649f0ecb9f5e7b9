"""Cards of the queries: picture, label and noisy counts."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from .folder import Run

MOST_QUERIES_SHOWN = 60

PICTURE_SIZE = 64
"""Greatest size of a picture in pixels. Larger pictures are scaled down."""


def order(run: Run) -> np.ndarray:
    """Return the queries in the order of the page.

    They are sorted by label if all fit. Otherwise wrong ones come first, then small leads.
    """
    lead = run.lead
    if len(lead) <= MOST_QUERIES_SHOWN:
        return np.lexsort((-lead, run.queries["label"], run.queries["round"]))
    return np.lexsort((lead, ~run.wrong))


def card(run: Run, row: int) -> dict[str, Any]:
    """Return the page's content about one query."""
    queries = run.queries
    label = int(run.queries["label"][row])
    truth = int(queries["true_label"][row]) if run.wrong[row] else None
    counts = queries["noisy_counts"][row]
    return {
        "row": int(queries["number"][row]),
        "picture": picture(queries["image"][row]),
        "label": run.classes[label],
        "truth": None if truth is None else run.classes[truth],
        "size": int(queries["size"][row]),
        "round": int(queries["round"][row]) + 1,
        "public_index": int(queries["public_index"][row]),
        "bars": bars(counts, queries["stddev"][row], label, truth) if run.counts_released else None,
        "counts": ", ".join(
            f"{name}: {count:.4g}"
            for name, count in zip(run.classes, counts, strict=True)
            if abs(count) >= 0.5
        ),
        "votes": round(float(counts[label])),
    }


def picture(image: np.ndarray) -> str:
    """Return a picture `[height, width, channels]` as a data URL."""
    pixels = image if image.shape[2] in (3, 4) else image[:, :, 0]
    drawn = Image.fromarray(pixels)
    drawn.thumbnail((PICTURE_SIZE, PICTURE_SIZE))
    buffer = io.BytesIO()
    drawn.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def bars(counts: np.ndarray, stddev: np.ndarray, label: int, truth: int | None) -> dict[str, Any]:
    """Return SVG paths, 100 wide and 40 high, of the counts with error bars of the noise.

    Args:
      counts: Noisy counts `[num_classes]`.
      stddev: Standard deviation of each count's noise, `[num_classes]`, in votes.
      label: Class of the query's label.
      truth: True class of a wrong label, otherwise None.

    Returns:
      `zero`, the height of the base line; `label`, `truth` and `others`, bars; `noise`, error bars.
    """
    top = max(float((counts + stddev).max()), 0.0)
    bottom = min(float((counts - stddev).min()), 0.0)
    unit = 40 / ((top - bottom) or 1)
    step = 100 / len(counts)
    zero = top * unit
    paths = {"label": "", "truth": "", "others": "", "noise": ""}
    for position, (count, noise) in enumerate(zip(counts, stddev, strict=True)):
        kind = "label" if position == label else "truth" if position == truth else "others"
        paths[kind] += (
            f"M{(position + 0.15) * step:.4g} "
            f"{zero:.4g}v{-count * unit:.4g}h{0.7 * step:.4g}V{zero:.4g}z"
        )
        if noise:
            paths["noise"] += (
                f"M{(position + 0.5) * step:.4g} "
                f"{zero - (count - noise) * unit:.4g}v{-2 * noise * unit:.4g}"
            )
    return paths | {"zero": f"{zero:.4g}"}
