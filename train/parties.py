"""Split a benchmark's data into the files of a federation's parties.

There is one public file, one test file, and one file for each party.

    python -m train.parties --dataset mnist --data-dir DIR --parties 3 --out runs/parties

Records of one client, such as the writer of a digit, stay with one party.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from rknn_jax import data
from rknn_jax._internal import ranges
from rknn_jax._internal.disk import OWNER, write_arrays
from rknn_jax._internal.ranges import CountOrNone, Seed
from rknn_jax._internal.terminal import run_program


@dataclass(frozen=True)
class Parties:
    """Settings of the split.

    Attributes:
      dataset: Name of a data set of `rknn_jax.data`.
      out: Folder for `public.npz`, `test.npz`, and `party0.npz` to the last party's file.
      parties: Number of parties that share the private records; 0 for one for each client of the
        data set.
      data_dir: Folder of the data set.
      seed: Seed of the split.
    """

    dataset: str
    out: Path
    parties: CountOrNone = 3
    data_dir: Path | None = None
    seed: Seed = 0


def main(settings: Parties) -> list[int]:
    """Write the files and return the number of records of each party.

    Raises:
      ValueError: If there are more parties than clients, or than records of a data set without
        clients.
    """
    task = data.load(settings.dataset, settings.seed, settings.data_dir)
    private = task.private
    clients = (
        np.arange(len(private.labels))
        if private.clients is None
        else np.unique(private.clients, return_inverse=True)[1]
    )
    count = settings.parties or clients.max() + 1
    if not 1 <= count <= clients.max() + 1:
        raise ValueError(
            f"Expected 1 <= parties <= {clients.max() + 1} clients, got "
            f"parties={settings.parties}; cut fewer."
        )
    settings.out.mkdir(parents=True, exist_ok=True)
    write_arrays(settings.out / "public.npz", {"images": task.public.images}, compress=False)
    test = {"images": task.test.images, "labels": task.test.labels}
    write_arrays(settings.out / "test.npz", test, compress=False)
    sizes = []
    for number in range(count):
        mine = clients * count // (clients.max() + 1) == number
        part = {"images": private.images[mine], "labels": private.labels[mine]}
        write_arrays(settings.out / f"party{number}.npz", part, mode=OWNER, compress=False)
        sizes.append(int(mine.sum()))
    return sizes


def cli() -> int:
    """Run from the command line. Exit status 2 means bad input."""
    try:
        settings = tyro.cli(Parties, description=__doc__)
        ranges.check(settings)
        sizes = main(settings)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{len(sizes)} parties of {min(sizes):,} to {max(sizes):,} records\n")
    return 0


if __name__ == "__main__":
    run_program(cli)
