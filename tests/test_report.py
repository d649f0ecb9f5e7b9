"""The report says what the run folder says, marks wrong queries and only these, and loads nothing."""

import html.parser
import json
import math
import os
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import tyro
from scipy import stats
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from rknn_jax import bsvs
from rknn_jax.privacy import accounting
from rknn_jax.privacy.guarantee import Event, Guarantee
from train import report
from train.experiment import Experiment

HOSTILE = '<script>alert("1")</script>\'&$\\frac{'
VOID = {"meta", "img", "br", "link", "hr", "input"}
CLASSES = 10


def fake_run(folder, *, epsilon=1.0, rounds=1, num_queries=40, dataset="digits", mechanism="discrete_laplace", colour=False, seed=0):
    """Write a run folder as train.distill does: digits clustered by their pixels, real votes, NumPy's noise."""
    key = np.random.default_rng(seed)
    pixels, truth = load_digits(return_X_y=True)
    public, private = pixels[:899], pixels[899:1348]
    experiment = Experiment(dataset=dataset, epsilon=epsilon, queries=num_queries, rounds=rounds, mechanism=mechanism, noise_seed=3)
    scale = 2 * rounds / epsilon
    rows = [answer(key, public, private, truth[899:1348], num_queries, scale, mechanism, step) for step in range(rounds)]
    queries = {name: np.concatenate([row[name] for row in rows]) for name in rows[0] if name != "cluster"}
    query = rows[-1]["cluster"] + (rounds - 1) * num_queries
    counts = np.zeros((len(query), CLASSES), int)
    counts = np.stack([np.bincount(truth[:899][query == row], minlength=CLASSES) for row in range(rounds * num_queries)])
    images = np.repeat((public.reshape(-1, 8, 8, 1) * 15.9).astype(np.uint8), 3 if colour else 1, axis=3)
    queries |= {
        "image": images[queries["public_index"]],
        "true_label": np.where(counts.sum(axis=1) > 0, counts.argmax(axis=1), truth[queries["public_index"]]),
        "size": counts.sum(axis=1),
        "probability": np.eye(CLASSES, dtype=np.float32)[queries["label"]],
    }
    label = queries["label"][query].astype(np.int32)
    probability = np.eye(CLASSES, dtype=np.float32)[label]
    np.savez(folder / "queries.npz", **queries)
    np.savez(folder / "labels.npz", label=label, query=query.astype(np.int32), probability=probability, true_label=truth[:899])
    guarantees = [Guarantee(epsilon / rounds, 0.0, "replace-one", "central", (Event("discrete_laplace", scale, 2),)) for _ in range(rounds)]
    whole = accounting.compose(guarantees, experiment.delta)
    accountants = accounting.epsilons([event for one in guarantees for event in one.events], experiment.delta)
    write(
        folder / "privacy.json",
        {
            "whole": whole.asdict(),
            "rounds": [one.asdict() for one in guarantees],
            "accountants": accountants,
            "covers": ["the noisy counts", "the labels of the public records", "the student"],
            "does_not_cover": [
                "the number of private records, which replace-one takes as public",
                "settings chosen by looking at private data or at accuracies, such as this page's",
                "everything under not_covered_by_epsilon in result.json",
            ],
        },
    )
    sweep = [{"epsilon": e, "mean": 0.93 / (1 + 0.02 / e), "stddev": 0.02 / (1 + 20 * e), "draws": 10} for e in np.geomspace(0.001, 2, 11)]
    accuracy = 0.96 - 0.6 * np.exp(-np.arange(20 * rounds) / 4)
    result = {
        "label_accuracy": float(np.mean(label == truth[:899])),
        "test_accuracy": float(accuracy[-1]),
        "epsilon": whole.epsilon,
        "delta": whole.delta,
        "relation": whole.relation,
        "trust": whole.trust,
        "seed": 42,
        "seconds": 41.7,
        "interrupted": False,
        "num_public": 899,
        "num_private": 449,
        "num_test": 449,
        "not_covered_by_epsilon": {
            "note": "Computed from the private votes without privacy.",
            "nonprivate_label_accuracy": 0.937,
            "label_accuracy_by_epsilon": sweep,
        },
    }
    write(folder / "result.json", result)
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(experiment).items()}
    environment = {
        "python": "3.11.7",
        "versions": {"jax": "0.10.2", "numpy": "2.3.4"},
        "device": "cpu",
        "cores": 2,
        "date": "2026-11-21T00:00:00Z",
    }
    write(folder / "config.json", settings | {"resolved_queries": num_queries} | environment)
    lines = [
        {"round": i // 20, "epoch": i % 20 + 1, "epochs": 20, "loss": 1.0, "seconds": 1.5, "test_accuracy": float(value)}
        for i, value in enumerate(accuracy)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def answer(key, public, private, private_labels, num_queries, scale, mechanism, step):
    """Return one round's queries and what came back for them."""
    clusters = KMeans(num_queries, n_init=1, max_iter=20, random_state=step).fit(public)
    counts = np.zeros((num_queries, CLASSES))
    np.add.at(counts, (clusters.predict(private), private_labels), 1)
    noisy = counts + np.round(key.laplace(0, scale, counts.shape))
    stddev = np.full(counts.shape, math.sqrt(2) * scale)
    if mechanism == "permute_and_flip":
        noisy, stddev = np.eye(CLASSES)[noisy.argmax(axis=1)], np.zeros(counts.shape)
    return {
        "public_index": clusters.transform(public).argmin(axis=0),
        "round": np.full(num_queries, step),
        "label": noisy.argmax(axis=1).astype(np.int32),
        "noisy_counts": noisy.astype(np.float32),
        "stddev": stddev.astype(np.float32),
        "cluster": clusters.labels_,
    }


def write(path, value):
    path.write_text(json.dumps(value))
