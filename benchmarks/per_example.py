"""Per-example gradients, clipped and summed: time relative to training without privacy.

The speeds are ratios in one run, of wall time on both cores and of their CPU time. jax-privacy is
measured beside optax, without its dependencies:

    pip install --no-deps --target PEER jax-privacy
    PYTHONPATH=PEER python -m benchmarks.per_example
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks._measure import save, seconds
from rknn_jax.students import clipped_gradients, dpsgd
from rknn_jax.students import fit as students

NETWORKS = (("m5", 32), ("cnn", 64), ("tanh_cnn", 256))
"""Networks, with the records of a batch."""


def speed(model: str, batch_size: int) -> dict[str, Any]:
    """Return the time relative to training without privacy.

    The rows are per-example gradients, clipped and summed, and whole steps.
    """
    from jax_privacy import clipped_grad

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
        ratios = {name: times[name] / times["without privacy"] for name in ("optax", "jax-privacy")}
        found |= {
            kind: ratios | {"step": times["noisy step"] / times["step without privacy"]},
            f"seconds, {clock.__name__}": times,
        }
    return found


if __name__ == "__main__":
    save("per_example", [speed(*network) for network in NETWORKS])
