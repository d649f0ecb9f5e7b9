"""Noisy SGD on MNIST: time relative to training without privacy, and accuracy of its networks.

The accuracies are those of the networks themselves on the
test set, under replace-one unless a row says otherwise. The speeds are ratios in one run, of wall
time on both cores and of their CPU time. jax-privacy is measured if installed.
"""

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import _kept
from benchmarks._measure import mnist_folder, save, seconds, summary
from rknn_jax.students import clipped_gradients, dpsgd
from rknn_jax.students import fit as students
from train import commandline, distill, sweep

DELTA = 1e-5
SEEDS = (5, 6, 7)
HEADS = (
    "--noisy-sgd.batch-size 1024 --noisy-sgd.epochs 10 --noisy-sgd.learning-rate 4 "
    "--noisy-sgd.clip 0.3"
)
PUBLISHED = (
    "--relation add-remove --noisy-sgd.batch-size 256 --noisy-sgd.sampling-prob 0.0042666667"
)
TUNED = (
    "--representation self_trained --noisy-sgd.network encoder --noisy-sgd.epochs 2 "
    "--noisy-sgd.part"
)
NETWORK = (
    "--representation pixels --noisy-sgd.network tanh_cnn --noisy-sgd.epochs 15 --noisy-sgd.clip"
)
CURVE = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
KINDS: dict[str, tuple[str, tuple[float, ...], tuple[int, ...]]] = {
    "linear, spectral features": (
        f"--representation spectral --noisy-sgd.network linear {HEADS}",
        CURVE,
        SEEDS,
    ),
    "two layers, spectral features": (
        f"--representation spectral --noisy-sgd.network mlp {HEADS}",
        (1.0,),
        SEEDS,
    ),
    "linear, HOG": (
        "--representation hog --noisy-sgd.network linear --noisy-sgd.batch-size 1024 "
        "--noisy-sgd.epochs 10 --noisy-sgd.learning-rate 0.5",
        (1.0,),
        SEEDS,
    ),
    "head of a self-trained network": (f"{TUNED} head", (1.0,), SEEDS[:1]),
    "head and normalisation of it": (f"{TUNED} norms", (1.0,), SEEDS[:1]),
    "head, normalisation and 1% of the rest": (f"{TUNED} sparse", (1.0,), SEEDS[:1]),
    "DiversePublic's network, all of it": (
        f"{NETWORK} 0.3 --noisy-sgd.learning-rate 1",
        (2.0,),
        SEEDS[:1],
    ),
    "the same with σ = 1.3, C = 1.5, batches of 256": (
        f"{NETWORK} 1.5 --noisy-sgd.noise-multiplier 1.3 --noisy-sgd.learning-rate 0.25 "
        f"--noisy-sgd.momentum 0 {PUBLISHED}",
        (1.0,),
        SEEDS[:1],
    ),
}


def run(folder: Path, name: str, epsilon: float, seed: int, prepared: Any) -> dict[str, Any]:
    """Run one kind on one split, or read the saved result."""
    words = [
        "--dataset",
        "mnist",
        "--data-dir",
        str(mnist_folder()),
        "--labeler",
        "noisy_sgd",
        *KINDS[name][0].split(),
    ]
    words += [
        "--epsilon",
        str(epsilon),
        "--delta",
        str(DELTA),
        "--seed",
        str(seed),
        "--student",
        "none",
    ]
    out = folder / f"{list(KINDS).index(name)}-{epsilon}-{seed}"
    return distill.run(commandline.parsed([*words, "--out", str(out)]), prepared)


def speed(model: str, batch_size: int) -> dict[str, Any]:
    """Return the time relative to training without privacy.

    The rows are per-example gradients, clipped and summed, and whole steps.
    """
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (batch_size, 28, 28, 1)).astype(np.uint8)
    labels = rng.integers(0, 10, batch_size).astype(np.int32)
    student = students.Config(model=model, augmentation="none", batch_size=batch_size)
    network = students.network_of(student, 10)
    variables = students.drawn(network, jax.random.key(0), images[:1])
    scaled = jnp.asarray(images, jnp.float32) / 255
    targets = jnp.eye(10)[labels]

    def loss_of(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        logits = network.apply({**variables, "params": params}, images, train=False)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def apart(params: Any) -> Any:
        return jax.vmap(jax.grad(loss_of), (None, 0, 0))(
            params, scaled[:, None], jnp.asarray(labels)[:, None]
        )

    ways: dict[str, Callable[[Any], Any]] = {
        "without privacy": lambda params: jax.grad(loss_of)(params, scaled, jnp.asarray(labels)),
        "optax": lambda params: optax.per_example_global_norm_clip(apart(params), 1.0)[0],
    }
    if importlib.util.find_spec("jax_privacy"):
        from jax_privacy import clipped_grad

        clipped = clipped_grad(loss_of, l2_clip_norm=1.0, batch_argnums=(1, 2))
        ways["jax-privacy"] = lambda params: clipped(params, scaled, jnp.asarray(labels))
    runs: dict[str, Callable[[], Any]] = {
        name: lambda way=jax.jit(way): way(variables["params"]) for name, way in ways.items()
    }  # type: ignore[misc]

    data = jax.device_put((images, np.asarray(targets), np.ones(batch_size, np.float32)))
    states = {"state": students.initial(student, 100, jax.random.key(1), 10, images[:1])}

    def usual() -> Any:
        everyone = np.arange(batch_size, dtype=np.int32), np.ones(batch_size, np.float32)
        states["state"], loss = students._step(
            student, 100, jax.random.key(2), states["state"], data, *everyone
        )
        return loss

    pace = dpsgd.Pace.of(dpsgd.Settled(batch_size=batch_size), 1.0)
    trained, fixed, mask = clipped_gradients.parted(variables["params"], "all", 0.5)
    average, first = (jax.tree.map(jnp.copy, trained) for _ in range(2))
    private = {
        "state": dpsgd.State(
            jnp.zeros((), jnp.int32), first, average, optax.sgd(0.1, 0.9).init(trained)
        )
    }
    records = (jnp.asarray(images), jnp.asarray(labels))

    def noisy() -> Any:
        total = jax.tree.map(jnp.zeros_like, private["state"].trained)
        whole = jnp.arange(batch_size), jnp.ones(batch_size, bool)
        state = private["state"]
        statistics = variables["batch_stats"]
        total = clipped_gradients.add_clipped(
            network, 1.0, total, state.trained, fixed, mask, statistics, records, *whole
        )
        private["state"] = dpsgd._descend(0.9, 0.98, pace, jax.random.key(3), state, total, mask)
        return private["state"].step

    runs |= {"step without privacy": usual, "noisy step": noisy}
    found: dict[str, Any] = {"model": model, "batch_size": batch_size}
    for kind, clock in (("times_as_long", time.perf_counter), ("times_the_cpu", time.process_time)):
        times = {name: seconds(run, 9, clock) for name, run in runs.items()}
        ratios = {
            name: times[name] / times["without privacy"]
            for name in ("optax", "jax-privacy")
            if name in times
        }
        found |= {
            kind: ratios | {"step": times["noisy step"] / times["step without privacy"]},
            f"seconds, {clock.__name__}": times,
        }
    return found


def accuracies(folder: Path) -> list[dict[str, Any]]:
    """Return each kind's means over splits, at each epsilon."""
    prepared = sweep.sharing()
    ordered = sorted(
        (
            (kind[0].split()[1], seed, name, asked)
            for name, kind in KINDS.items()
            for asked in kind[1]
            for seed in kind[2]
        )
    )
    found = {
        (name, asked, seed): run(folder, name, asked, seed, prepared)
        for _, seed, name, asked in ordered
    }
    rows = []
    for name, (_, epsilons, seeds) in KINDS.items():
        for asked in epsilons:
            mine = [found[name, asked, seed] for seed in seeds]
            row = {
                "name": name,
                "seeds": seeds,
                "epsilon": max(one["epsilon"] for one in mine),
                "relation": mine[0]["relation"],
            }
            rows.append(
                row
                | {
                    what: summary([one[what] for one in mine])
                    for what in ("label_accuracy", "model_test_accuracy", "seconds")
                }
            )
    return rows


if __name__ == "__main__":
    with _kept.parts("noisy_sgd") as folder:
        rows = accuracies(folder)
        speeds = [
            speed(model, batch_size)
            for model, batch_size in (("m5", 32), ("cnn", 64), ("tanh_cnn", 256))
        ]
        save("noisy_sgd", {"speed": speeds, "accuracy": rows}, delta=DELTA)
