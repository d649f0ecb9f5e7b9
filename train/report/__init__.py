"""Report of a run: its results, its cost, and the confidence of every label.

    python -m train.report RUN_FOLDER

`write` reads the run folder alone, so a page can be written again at any time, and without access
to private data. The page is one file that loads nothing. Charts are SVG whose colors are the page's
CSS variables, so that they follow a dark screen. Pictures are PNG inside the file. `report.html.j2`
holds the text and the order, and `page` computes the
content.
"""

from .folder import Run, read
from .page import write

__all__ = ["Run", "read", "write"]
