"""Federation: MNIST's writers as parties, a million messages, and ten thousand virtual clients.

    RKNN_MNIST_DIR=... python -m benchmarks.federation [mnist|labelers|replay|clients]

`mnist` lets every party answer by `Client`, each with its own ledger and sealed randomness.
`Collector` counts the answers, without processes between them. Sums of trust=central are taken
without their masks, which cancel exactly. `labelers` compares the labelers whose sums clients add
up, on training images alone. `replay` measures the server alone. `clients` measures
one round in Flower's simulation engine, with all processes that the engine starts.
"""

import gc
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from sklearn.datasets import load_digits

from benchmarks._measure import mnist_folder, save_part, summary
from benchmarks._virtual_clients import virtual
from rknn_jax import data
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.federation import round_labels, wire
from rknn_jax.federation.agreement import Agreement
from rknn_jax.federation.client import Client
from rknn_jax.federation.collector import Collector, Reply, Sum
from rknn_jax.federation.request import Asked
from rknn_jax.federation.rounds import Round
from rknn_jax.labelers import named, rknn
from rknn_jax.privacy.entropy import Entropy
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.representations import spectral

SEEDS = (0, 1, 2)
MESSAGES = 1_000_000
BATCH = 100_000
PLAIN = 20_000
NODES = (1000, 10_000)

PARTIES: tuple[dict[str, Any], ...] = (
    {"parties": 3, "trust": "local", "epsilon": 0.2},
    {"parties": 3, "trust": "local", "epsilon": 0.4},
    {"parties": 3, "trust": "local", "epsilon": 1.0},
    {"parties": 10, "trust": "shuffle", "epsilon": 0.1, "honest": 60_000},
    {"parties": 10, "trust": "central", "epsilon": 0.1, "honest": 10},
    {"parties": 10, "trust": "central", "epsilon": 0.02, "honest": 8},
    {"parties": 539, "trust": "central", "epsilon": 0.2, "honest": 539},
    {
        "parties": 539,
        "trust": "central",
        "epsilon": 1.0,
        "honest": 500,
        "unit": "client",
        "records": 4,
    },
    {"parties": 539, "trust": "local", "epsilon": 4.0, "unit": "client", "records": 1},
)

SUMS: tuple[dict[str, Any], ...] = tuple(
    {"labeler": labeler, "trust": "central", "honest": ways["parties"]}
    | {name: value for name, value in ways.items() if name != "records" or labeler == "rknn"}
    for ways in (
        {"parties": 10, "epsilon": 0.02},
        {"parties": 10, "epsilon": 0.1},
        {"parties": 10, "epsilon": 1.0},
        {"parties": 10, "epsilon": 1.0, "unit": "client", "records": 4},
        {"parties": 539, "epsilon": 0.2, "unit": "client", "records": 4},
        {"parties": 539, "epsilon": 1.0, "unit": "client", "records": 4},
    )
    for labeler in ("rknn", "prototypes", "least_squares", "public_prototypes")
)


def mnist() -> list[dict[str, Any]]:
    """Return the accuracy of public labels for every way to take part, over three splits."""
    return measured("mnist", PARTIES)


def labelers() -> list[dict[str, Any]]:
    """Return the same for sums of several labelers, on splits of the training images."""
    return measured("mnist:train", SUMS)


def measured(name: str, parties: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the accuracy of public labels for every way to take part, over three splits.

    Args:
      name: Data set with writers.
      parties: Ways to take part.
    """
    found: list[list[float]] = [[] for _ in parties]
    sizes: list[dict[str, Any]] = [{} for _ in parties]
    for seed in SEEDS:
        task = data.load(name, seed, mnist_folder())
        key = jax.random.key(seed)
        encode = spectral.fit(
            stage_key(key, Stage.ENCODER), task.public.images, spectral.Config(dimension=10)
        )
        public, private = (
            np.asarray(encode(images), np.float32)
            for images in (task.public.images, task.private.images)
        )
        for number, party in enumerate(parties):
            asked = request(party, task.card.classes)
            query_key = stage_key(key, Stage.QUERIES)
            queries = asked.config.ask(query_key, public, len(asked.classes), asked.num_queries)
            round = Round(
                np.asarray(queries.features),
                asked.classes,
                asked.config,
                None,
                asked.unit,
                asked.records_per_client,
                asked.honest,
            )
            with tempfile.TemporaryDirectory() as folder:
                answers, longest = answered(Path(folder), round, party, private, task.private)
            guarantee = round.guarantee(round.honest or None)
            labels = round_labels.read(
                answers, guarantee, round_labels.rows_of(round, queries, public)
            ).labels
            found[number].append(float(np.mean(labels == task.public.true_labels)))
            sizes[number] = {
                "messages": answers.num_messages,
                "most_bytes": longest,
                "question_bytes": len(round.data),
                "guarantee": guarantee.asdict(),
            }
            print(f"seed {seed}, {party}: {found[number][-1]:.2%}", flush=True)
    return [
        party | size | {"label_accuracy": summary(values)}
        for party, size, values in zip(parties, sizes, found, strict=True)
    ]


def request(party: dict[str, Any], classes: tuple[str, ...]) -> Asked:
    """Return the request of a server for one way to take part."""
    labeler = party.get("labeler", "rknn")
    config: Any = None
    if labeler == "rknn":
        config = rknn.ReverseKNN(
            epsilon=party["epsilon"],
            delta=1e-6,
            mechanism="binomial" if party["trust"] == "central" else "collision",
            trust=party["trust"],
            amplification="general",
        )
    else:
        config = named(labeler)(epsilon=party["epsilon"], delta=1e-6)
    return Asked(
        config,
        classes,
        unit=party.get("unit", "record"),
        records_per_client=party.get("records", 0),
        honest=party.get("honest", 0),
    )


def answered(
    folder: Path, round: Round, party: dict[str, Any], features: np.ndarray, private: Any
) -> tuple[Collector | Sum, int]:
    """Return the aggregate of all parties' answers, and the bytes of the longest answer.

    Each party has its own ledger.
    """
    writers = np.unique(private.clients, return_inverse=True)[1]
    owner = writers * party["parties"] // (writers.max() + 1)
    honest = round.honest or None
    vectors = []
    replies = []
    for number in range(party["parties"]):
        mine = owner == number
        ledger = Ledger.create(
            folder / f"{number}.jsonl", fingerprint(features[mine]), 9, "1/100", unit=round.unit
        )
        client = Client(
            features[mine],
            private.labels[mine],
            ledger,
            folder / str(number),
            Agreement(party["trust"], honest),
        )
        if party["trust"] == "central":
            vectors.append(client.ready(round.data).vector())
        else:
            id, ticket, payload = client.answer(round.data)
            replies.append(Reply(ticket, id, payload))
    if vectors:
        return Sum(round, np.sum(vectors, axis=0), len(vectors), Counter()), 8 * len(vectors[0])
    collector = Collector(folder / "server", round)
    assert set(collector.receive(replies)) == {"counted"}
    return collector, max(len(reply.payload) for reply in replies)


def replay() -> list[dict[str, Any]]:
    """Return messages per second through validation, the disk, and aggregation.

    The rows also hold the ratio to a loop that takes messages one by one.
    """
    rows = []
    for name in (
        "collision",
        "subset_selection",
        "randomized_response",
        "generalized_randomized_response",
    ):
        rng = np.random.default_rng(0)
        round = Round(
            rng.normal(size=(40, 10)).astype(np.float32),
            tuple("0123456789"),
            rknn.ReverseKNN(epsilon=0.4, mechanism=name, trust="local"),
        )
        mechanism = round.mechanism
        size = wire.message_bytes(round.mechanism)
        made = wire.encode(
            mechanism,
            mechanism.respond(Entropy.fresh(), rng.integers(0, 400, (2**15, 1)).astype(np.int32)),
        )
        payload = (made * (MESSAGES * size // len(made) + 1))[: MESSAGES * size]
        replies = [Reply(i, round.id, payload[i * size : (i + 1) * size]) for i in range(MESSAGES)]
        gc.freeze()  # a million answers in memory belong to this benchmark, not to a server
        with tempfile.TemporaryDirectory() as folder:
            Collector(Path(folder) / "compiles", round).receive(replies[:BATCH])
            collector = Collector(Path(folder) / "server", round)
            started = time.perf_counter()
            for start in range(0, MESSAGES, BATCH):
                collector.receive(replies[start : start + BATCH])
            seconds = time.perf_counter() - started
            collector.close()
            for _ in range(2):  # the first pass compiles
                started = time.perf_counter()
                again = Collector(Path(folder) / "server", round)
                resumed = time.perf_counter() - started
                again.close()
            assert np.array_equal(again.totals, collector.totals)
            del again
        alone = one_by_one(round, replies[:PLAIN])
        rows.append(
            {
                "mechanism": name,
                "message_bytes": size,
                "messages_per_second": MESSAGES / seconds,
                "resumed_per_second": MESSAGES / resumed,
                "one_by_one_per_second": alone,
                "ratio": MESSAGES / seconds / alone,
            }
        )
        print(rows[-1], flush=True)
        gc.unfreeze()
    return rows


def one_by_one(round: Round, replies: list[Reply]) -> float:
    """Return messages per second of the same work, one message at a time and without the disk."""
    mechanism = round.mechanism
    seen = set()
    totals = np.zeros(round.mechanism.num_totals, np.int64)
    check = jax.jit(lambda message: (mechanism.valid(message), mechanism.support(message)))
    jax.block_until_ready(
        check(jax.tree.map(lambda leaf: leaf[0], wire.decode(mechanism, replies[0].payload)))
    )
    started = time.perf_counter()
    for client, id, payload in replies:
        message = jax.tree.map(lambda leaf: leaf[0], wire.decode(mechanism, payload))
        valid, support = check(message)
        if id == round.id and client not in seen and valid:
            seen.add(client)
            totals += np.asarray(support)
    return len(replies) / (time.perf_counter() - started)


def clients() -> list[dict[str, Any]]:
    """Return the time of one round of virtual one-record clients, and the memory of all processes.

    Each client has its own ledger.
    """
    with tempfile.TemporaryDirectory() as folder:
        digits = load_digits()
        features = (digits.data / 16).astype(np.float32)
        np.savez(Path(folder) / "public.npz", embeddings=features[1000:])
        rows = []
        for nodes in NODES:
            records = np.arange(nodes) % 1000  # more clients than records hold some again
            np.savez(
                Path(folder) / "private.npz",
                embeddings=features[records],
                labels=digits.target[records],
            )
            rows.append({"nodes": nodes} | virtual(Path(folder), nodes))
            print(rows[-1], flush=True)
        return rows


if __name__ == "__main__":
    parts = {"mnist": mnist, "labelers": labelers, "replay": replay, "clients": clients}
    for part in sys.argv[1:] or parts:
        save_part("federation", part, parts[part](), seeds=list(SEEDS))
