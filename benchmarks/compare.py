"""Every method on the same splits of MNIST at a grid of epsilon, by `train.compare`.

All parts are training images, because settings were chosen on test images. If stopped, the same
command resumes. The cells are those of `python -m train.compare --dataset mnist:train`, in the same
folder, `runs/compare-mnist-train`. The page itself is kept beside the JSON.
"""

import shutil

from benchmarks._measure import RESULTS, mnist_folder, save
from rknn_jax._internal import compilation
from train.compare.plan import Config
from train.compare.run import main

if __name__ == "__main__":
    compilation.keep()
    config = Config(dataset="mnist:train", data_dir=mnist_folder())
    found = main(config)
    for name in ("compare.html", "compare.md"):
        shutil.copy(config.folder / name, RESULTS)
    told = {
        name: found[name]
        for name in ("rows", "by_hand", "claims", "machines", "failed", "settings")
    }
    save(
        "compare",
        told,
        **{
            name: found[name]
            for name in ("dataset", "seeds", "delta", "relation", "runs", "measured")
        },
    )
