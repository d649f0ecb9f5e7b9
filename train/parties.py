"""Cut a benchmark's data into files as the parties of a federation hold them: one public, one of a
test set, one for each party.

    python -m train.parties --dataset mnist --data-dir DIR --parties 3 --out runs/parties

Records of one client, such as the writer of a digit, stay with one party.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from rknn_jax import data
from rknn_jax._internal.disk import OWNER, write_arrays


@dataclass(frozen=True)
class Parties:
    """What to cut.

    Attributes:
      dataset: a name of `rknn_jax.data`.
      out: folder for `public.npz`, `test.npz` and `party0.npz` to the last.
      parties: how many share the private records; 0 for one for each client that the data set knows
        of.
      data_dir: of the data set.
      seed: of the split.
    """

    dataset: str
    out: Path
    parties: int = 3
    data_dir: Path | None = None
    seed: int = 0


def main(settings: Parties) -> list[int]:
    """Write the files and return how many records each party has.

    Raises:
      ValueError: where there are fewer clients, or records where clients are not known, than
        parties.
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


if __name__ == "__main__":
    sizes = main(tyro.cli(Parties))
    sys.stdout.write(f"{len(sizes)} parties of {min(sizes):,} to {max(sizes):,} records\n")
