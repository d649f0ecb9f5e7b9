"""Screenshots of every kind of page, for docs/screenshots.md: each is made from digits, then drawn.

    python -m benchmarks.screenshots

Chromium must be installed. Nothing is measured. Private sides are public benchmark data.
"""

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from sklearn.datasets import load_digits

from benchmarks._measure import RESULTS
from rknn_jax.cli import main as cli
from rknn_jax.federation import publish, round_folder
from rknn_jax.federation.agreement import Agreement
from rknn_jax.federation.client import Client
from rknn_jax.federation.collector import Collector, Reply
from rknn_jax.federation.request import Asked, Public
from rknn_jax.labelers.rknn import ReverseKNN

ROOT = Path(__file__).parents[1]
SHOWN = ROOT / "docs/screenshots"
WIDTHS = (1400, 400)
"""Widths of a desk's screen and of a telephone, in CSS pixels."""

HEIGHT = 1000
"""Height of a screenshot, in CSS pixels."""

NUM_PUBLIC = 300
SITE = """\
INHERIT: {root}/mkdocs.yml
docs_dir: {docs}
site_dir: {site}
strict: false
nav: [index.md, wire.md, glossary.md]
hooks: [{root}/mkdocs_math.py]
plugins: [search]
"""
"""The site's own settings, with three pages that run no code."""


def release(folder: Path) -> Path:
    """Label digits with `rknn label` at epsilon 1, and return the folder of the release."""
    pixels, labels = load_digits(return_X_y=True)
    folder.mkdir(parents=True)
    rows = (pixels / 16).astype(np.float32)
    np.savez(folder / "public.npz", embeddings=rows[:NUM_PUBLIC])
    private = {"embeddings": rows[NUM_PUBLIC:], "labels": labels[NUM_PUBLIC:]}
    np.savez(folder / "private.npz", **private)
    out = folder / "release"
    sides = ("--public", folder / "public.npz", "--private", folder / "private.npz")
    words = [*sides, "--classes", 10, "--epsilon", 1, "--out", out]
    if code := cli.main(["label", *map(str, words)]):
        raise RuntimeError(f"Expected rknn label to end with 0, got {code}; see its error above.")
    return out


def federation(folder: Path) -> Path:
    """Run a round among one-record clients with simulated noise, and return its report."""
    digits = load_digits()
    images = (digits.images * 15.9).astype(np.uint8)[..., None]
    public = Public(images[:NUM_PUBLIC])
    config = ReverseKNN(epsilon=4.0, mechanism="collision", trust="local")
    classes = tuple(map(str, range(10)))
    asked = Asked(
        config, classes, 10, representation="pixels", student="none", simulated=0, clients=3
    )
    quiet = lambda *_: None  # noqa: E731
    round, queries = round_folder.prepare(folder, public, asked, quiet)
    collector = Collector(folder, round)
    labels = digits.target.astype(np.int32)
    for first in range(NUM_PUBLIC, len(images), 499):
        mine = slice(first, first + 499)
        agreed = Agreement(simulated=True)
        client = Client(images[mine], labels[mine], None, folder / "clients", agreed, first)
        round_id, ticket, payload = client.answer(round.data)
        collector.receive([Reply(ticket, round_id, payload)])
    publish.publish(folder, public, asked, queries, collector, quiet)
    return folder / "report.html"


def run(folder: Path) -> Path:
    """Run `train.distill` at epsilon 1, and return its report."""
    words = ("--dataset", "digits", "--epsilon", "1", "--noise-seed", "0", "--out", str(folder))
    subprocess.run([sys.executable, "-m", "train.distill", *words], check=True, cwd=ROOT)
    return folder / "report.html"


def site(folder: Path) -> Path:
    """Build three pages of the documentation, and return one with tables."""
    docs = folder / "docs"
    docs.mkdir(parents=True)
    for name in ("index.md", "wire.md", "glossary.md", "report.png", "contrast.css"):
        shutil.copy(ROOT / "docs" / name, docs)
    built = folder / "site"
    settings = folder / "mkdocs.yml"
    settings.write_text(SITE.format(root=ROOT, docs=docs, site=built))
    command = (sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", str(settings))
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    return built / "wire.html"


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start the system's Chromium, without a window.

    Raises:
      FileNotFoundError: If none is installed.
    """
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise FileNotFoundError("Expected Chromium on the PATH, got none; install it.")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def draw(browser: Browser, name: str, page: Path) -> None:
    """Write the top of a page at each width, as PNG with few colors."""
    for width in WIDTHS:
        size = {"width": width, "height": HEIGHT}
        tab = browser.new_page(viewport=size, color_scheme="light")
        tab.goto(page.resolve().as_uri())
        shown = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
        picture = shown.quantize(128, Image.Quantize.MAXCOVERAGE)
        picture.save(SHOWN / f"{name}-{width}.png", optimize=True)
        tab.close()


def main() -> None:
    """Make every kind of page in a folder of its own and draw it."""
    SHOWN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        os.environ["RKNN_STATE_DIR"] = home  # public digits need no budget beyond this program
        released = release(folder / "label")
        made = {
            "release": released / "report.html",
            "statement": released / "privacy.html",
            "federation": federation(folder / "federation"),
            "run": run(folder / "run"),
            "compare": RESULTS / "compare.html",
            "site": site(folder / "site"),
        }
        with chromium() as browser:
            for name, page in made.items():
                draw(browser, name, page)


if __name__ == "__main__":
    main()
