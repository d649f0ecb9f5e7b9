"""Search of JAX's compilation cache for private numbers, in a process of its own.

    python -m tests.cached_programs rknn FOLDER

The process keeps every program that it compiles in the folder, also the briefest. Then it compiles
some with a fault, which the search must find: functions that close over private arrays. It prints a
JSON object: how many programs there are, and the names of those that hold private numbers.

The private records are noise, so that eight bytes of one are found nowhere else. They are looked
for as bytes of images, as float32 features of either sign (XLA makes x - c into x + (-c)), row by
row and column by column, and as labels of any width. A number that was computed from several
records, or folded with another constant, is not found.
"""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.compilation_cache import decompress_executable

from rknn_jax import labelers
from rknn_jax.labelers import rknn
from rknn_jax.types import Records
from tests.contracts import test_labelers as contract
from train import commandline, distill, stages

MAGNITUDE = np.uint64(0x7FFFFFFF7FFFFFFF)
"""All bits of two float32 numbers but the signs."""

NUM_LABELS = 24
"""Labels in a row that occur nowhere else."""


def noise(num_records, shape, num_classes):
    rng = np.random.default_rng(11)
    images = rng.integers(0, 256, (num_records, *shape), np.uint8)
    return images, rng.integers(0, num_classes, num_records).astype(np.int32)


def windows_of_bytes(images):
    rows = np.ascontiguousarray(images).reshape(len(images), -1)
    found = np.lib.stride_tricks.sliding_window_view(rows, 8, axis=1)
    return np.unique(np.ascontiguousarray(found).view(np.uint64))


def windows_of_floats(features):
    """Two neighbors in a row or in a column, without signs; equal ones may occur anywhere."""
    pairs = []
    for rows in (np.asarray(features, np.float32), np.asarray(features, np.float32).T):
        both = np.stack([rows[:, :-1].ravel(), rows[:, 1:].ravel()], 1)
        pairs.append(both[(np.abs(both[:, 0]) != np.abs(both[:, 1])) & both.all(axis=1)])
    return np.unique(np.ascontiguousarray(np.concatenate(pairs)).view(np.uint64) & MAGNITUDE)


def holds(program, images, features, labels):
    """Return True if the bytes of a program hold private numbers."""
    for offset in range(8):
        usable = (len(program) - offset) // 8 * 8
        words = np.frombuffer(program, np.uint64, usable // 8, offset)
        if np.isin(words, images).any() or np.isin(words & MAGNITUDE, features).any():
            return True
    starts = range(0, len(labels) - NUM_LABELS + 1, NUM_LABELS)
    # A compiler may narrow a table of small integers.
    kinds = [labels.astype(kind) for kind in (np.int8, np.int16, np.int32, np.float32)]
    return any(one[i : i + NUM_LABELS].tobytes() in program for one in kinds for i in starts)


def searched(folder, images, features, labels):
    """Return the number of programs, and the names of those that hold private numbers."""
    private = windows_of_bytes(images), windows_of_floats(features), labels
    files = sorted(Path(folder).glob("*-cache"))
    bad = [one.name for one in files if holds(decompress_executable(one.read_bytes()), *private)]
    return {"programs": len(files), "private": [name.rsplit("-", 2)[0] for name in bad]}


PLANTED = ("by_columns", "by_features", "by_images", "by_labels")
"""Functions that close over private arrays."""


def plant(images, features, labels):
    """Compile functions that close over private arrays, and one that takes them."""
    images, features, labels = images[:60], features[:60], labels[:60]

    def taken(features, images, labels, x):
        return jnp.sum((x[None] - features) ** 2) + jnp.sum(images) + jnp.sum(labels)

    def by_features(x):
        return jnp.sum((x[None] - features) ** 2)

    def by_columns(x):
        return features @ x

    def by_images(x):
        return jnp.asarray(images)[x]

    def by_labels(x):
        return jnp.asarray(labels)[x]

    x = np.ones(features.shape[1], np.float32)
    jax.jit(taken)(features, images.astype(np.float32), labels.astype(np.float32), x)
    for function in (by_features, by_columns):
        jax.jit(function)(x)
    for function in (by_images, by_labels):
        jax.jit(function)(np.int32(3))


def labeled(examples):
    """Label a few public records with private noise by each of some labelers."""
    task, encode, queries = contract.problem()
    images, labels = noise(300, task.public.images.shape[1:], 3)
    task = dataclasses.replace(task, private=Records(images, labels))
    for labeler in examples:
        labelers.label(labeler, jax.random.key(2), task, encode, queries)
    return images, np.asarray(encode(images)), labels


def experiment(folder):
    """Run an experiment whose private images are noise."""
    settings = commandline.parsed(
        ["--dataset", "digits", "--epsilon", "1", "--out", str(folder / "run")]
        + ["--student.epochs", "1"],
        "An experiment.",
    )
    found = stages.prepare(settings)
    shape = found.task.public.images.shape[1:]
    images, labels = noise(len(found.task.private.labels), shape, 10)
    task = dataclasses.replace(found.task, private=Records(images, labels))
    distill.main(settings, lambda _: found._replace(task=task))
    return images, np.asarray(found.encode(images)), labels


def main(kind, folder):
    jax.config.update("jax_compilation_cache_dir", str(folder / "cache"))
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    every = [one for one in contract.EXAMPLES.values() if not one.slow]
    kinds = {
        "rknn": lambda: labeled(rknn.EXAMPLES[:1]),
        "labelers": lambda: labeled(every),
        "experiment": lambda: experiment(folder),
    }
    private = kinds[kind]()
    plant(*private)
    sys.stdout.write(json.dumps(searched(folder / "cache", *private)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
