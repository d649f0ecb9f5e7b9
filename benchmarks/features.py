"""Features that other benchmarks read: CIFAR-10 on a public network, and Debian packages as text.

    python -m benchmarks.export_encoder --out lite0.onnx --side 112
    python -m benchmarks.features --model lite0.onnx --out FOLDER

FOLDER then has `cifar10.npz`, for RKNN_CIFAR10_FEATURES, with all images of RKNN_CIFAR10_DIR, and
`text.npz`, for RKNN_TEXT_FEATURES, with 9,500 packages of the ten most frequent sections. Nothing
is measured. `rknn embed` makes the features, so that a stopped run goes on.
"""

import argparse
import csv
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks._measured_cases import packages_of
from rknn_jax.cli.main import main as rknn

PACKAGES = 9_500
SEED = 0


def cifar10(model: Path, folder: Path) -> list[Path]:
    """Embed the images of CIFAR-10, and return the files, training images first."""
    made = []
    for part in ("train", "test"):
        made.append(folder / f"cifar10-{part}.parquet")
        images = Path(os.environ["RKNN_CIFAR10_DIR"]) / part
        rknn(["embed", "--images", str(images), "--model", str(model), "--out", str(made[-1])])
    return made


def text(folder: Path) -> list[Path]:
    """Embed descriptions of packages, and return the file."""
    texts, sections = packages_of(10)
    chosen = np.random.default_rng(SEED).permutation(len(texts))[:PACKAGES]
    table, made = folder / "packages.csv", folder / "packages.parquet"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows(
            [("text", "labels"), *((texts[i], sections[i]) for i in chosen)],
        )
    rknn(["embed", "--text", str(table), "--out", str(made)])
    return [made]


def write(out: Path, parquets: list[Path]) -> None:
    """Write the embeddings of Parquet files and the numbers of their classes, in order of names."""
    tables = [pq.read_table(path) for path in parquets]
    rows = [np.stack(one["embeddings"].to_numpy()).astype(np.float32) for one in tables]
    names = np.concatenate([one["labels"].to_numpy().astype(str) for one in tables])
    np.savez(out, features=np.concatenate(rows), labels=np.unique(names, return_inverse=True)[1])


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="ONNX file of the network")
    parser.add_argument("--out", type=Path, required=True, help="folder of the files")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    write(given.out / "text.npz", text(given.out))
    write(given.out / "cifar10.npz", cifar10(given.model, given.out))


if __name__ == "__main__":
    main()
