"""Every method on the same splits of MNIST at a grid of epsilon, by `train.compare`. Stopped, the same command goes on.

Cells are those of `python -m train.compare --dataset mnist` and lie in the same folder, `runs/compare-mnist`.
"""

from benchmarks._measure import mnist_folder, save
from rknn_jax import compilation
from train import compare

if __name__ == "__main__":
    compilation.keep()
    found = compare.main(compare.Config(dataset="mnist", data_dir=mnist_folder()))
    told = {name: found[name] for name in ("rows", "claims", "machines", "failed", "settings")}
    save("compare", told, **{name: found[name] for name in ("dataset", "seeds", "delta", "relation", "runs", "measured")})
