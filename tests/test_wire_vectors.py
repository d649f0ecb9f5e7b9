"""Examples of the wire format for clients in other languages, and the commands of its page.

`RKNN_RECORD=1 .venv/bin/python -m pytest tests/test_wire_vectors.py` writes the examples anew, for
a change that is meant.
"""

import dataclasses
import datetime
import hashlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rknn_jax.federation import hosting, tls, wire
from rknn_jax.federation.check_rounds import CheckRound
from rknn_jax.federation.rounds import Round
from rknn_jax.kernels import hashing
from rknn_jax.labelers._sum_labeler import Labeling
from rknn_jax.privacy.entropy import Entropy
from tests import recorded
from tests.conftest import sum_labelers
from tests.test_federation import CLASSES, DEPLOYED, a_round
from tests.test_federation_http import HERE, PATIENCE, serving
from tests.test_secure_sum import MASKS, VECTORS

PATH = Path(__file__).with_name("wire_vectors.json")
DOCS = Path(__file__).parent.parent / "docs"
NONCE = "000102030405060708090a0b0c0d0e0f"
QUERIES = np.arange(8, dtype=np.float32).reshape(4, 2) / 4
CELLS = np.array([[0], [7], [-1]], np.int32)  # the last record has no vote


def the_round(mechanism="collision"):
    return Round(QUERIES, CLASSES, a_round(mechanism=mechanism).config, nonce=NONCE)


def question_vectors():
    round = the_round()
    lengths = np.frombuffer(round.data[:16], "<u8").tolist()
    ends = np.cumsum([16, *lengths]).tolist()
    return {
        "hex": round.data.hex(),
        "id": round.id,
        "tree": json.loads(round.data[16 : ends[1]]),
        "arrays": json.loads(round.data[ends[1] : ends[2]]),
        "queries": np.frombuffer(round.data[ends[2] :], "<f4").reshape(4, 2).tolist(),
    }


def sum_question_vectors(kind):
    """A question for a sum, and the sum of four records without noise, of which one counts not."""
    round = Round(QUERIES, CLASSES, kind(1.0, 1e-5), honest=3, nonce=NONCE)
    features = np.array([[0, 1], [1, 0], [5, -3], [1, 1]], np.float32)
    told = round.contribute(features, np.array([0, 1, 2, -1], np.int32))
    return {
        "labeler": round.config.name,
        "hex": round.data.hex(),
        "tree": json.loads(round.data[16 : 16 + int.from_bytes(round.data[:8], "little")]),
        "features": features.tolist(),
        "labels": [0, 1, 2, -1],
        "sum_without_noise": told.tolist(),
        "sensitivity": f"{round.sum.shares.sensitivity:.6g}",
        "stddev_of_a_client": f"{round.sum.shares.share_stddev:.6g}",
    }


def check_vectors():
    """A question with a check share, its check, and the bits of three records of a fixed seed."""
    votes = dataclasses.replace(the_round(), check_share=0.25)
    labels = np.eye(3, dtype=np.float32)[[0, 1, 2, 2]]
    labeling = Labeling("labels", labels, lambda: None)
    check = dataclasses.replace(CheckRound.of_votes(votes, QUERIES, labeling), nonce=NONCE)
    features = np.array([[0, 0], [2, 2], [5, -3]], np.float32)
    cells = check.contribute(features, np.array([0, 2, -1], np.int32))
    messages = check.mechanism.respond(Entropy(bytes(32)), cells)
    return {
        "votes": {"hex": votes.data.hex(), "id": votes.id},
        "hex": check.data.hex(),
        "id": check.id,
        "tree": json.loads(check.data[16 : 16 + int.from_bytes(check.data[:8], "little")]),
        "features": features.tolist(),
        "labels": [0, 2, -1],
        "cells": cells.ravel().tolist(),
        "messages": wire.encode(check.mechanism, messages).hex(),
    }


def message_vectors(name):
    """Messages of three records, drawn from a fixed seed, and the cells that each supports."""
    mechanism = the_round(name).mechanism
    messages = mechanism.respond(Entropy(bytes(32)), CELLS)
    data = wire.encode(mechanism, messages)
    decoded = wire.decode(mechanism, data)
    support = [
        np.flatnonzero(np.asarray(mechanism.support(wire_item(decoded, i)))).tolist()
        for i in range(len(CELLS))
    ]
    found = {
        "mechanism": name,
        "epsilon": 1.0,
        "queries": 4,
        "classes": 3,
        "neighbors": 1,
        "bytes_per_message": wire.message_bytes(mechanism),
        "hex": data.hex(),
        "supported_cells": support,
    }
    if name == "collision":
        found["num_buckets"] = mechanism.num_buckets
        found["hashes"] = [
            {
                "seed": [a, b],
                "cell": cell,
                "word": int(hashing.mix(np.array([a, b], np.uint32), np.int32(cell))),
            }
            for a, b, cell in ((0, 0, 0), (1, 2, 3), (2**32 - 1, 2**31, 11))
        ]
    return found


def wire_item(messages, index):
    if isinstance(messages, tuple):
        return type(messages)(*(leaf[index] for leaf in messages))
    return messages[index]


def exchange(port, sent):
    """Return what a server answers to raw bytes."""
    with socket.create_connection((HERE, port), PATIENCE) as raw:
        raw.sendall(sent)
        came = b""
        while piece := raw.recv(2**16):
            came += piece
    return came.decode("latin1")


def http_vectors(folder):
    """Requests and responses of a client that answers, asks again and hears the end."""
    round = the_round("generalized_randomized_response")
    body = bytes.fromhex(message_vectors("generalized_randomized_response")["hex"])
    post = (
        f"POST /v1/rounds/{round.id}/answers HTTP/1.1\r\nhost: h\r\nconnection: close\r\n"
        f"rknn-ticket: 5\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body
    statement = (
        f"GET /v1/rounds/{round.id}/statement HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n"
    ).encode()
    found = []
    with serving(folder / "out", round) as running:
        for sent in (post, post, statement):
            found.append(
                {"request": sent.decode("latin1"), "response": exchange(running.port, sent)}
            )
            assert running.collected.wait(PATIENCE)
    return found


def vectors(folder):
    return {
        "question": question_vectors(),
        "messages": [message_vectors(name) for name in DEPLOYED],
        "sum": {"steps": VECTORS, "masks": MASKS},
        "sum_questions": [sum_question_vectors(kind) for kind in sum_labelers().values()],
        "check": check_vectors(),
        "http": http_vectors(folder),
    }


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Wait less for clients that have left."""
    monkeypatch.setattr(hosting, "GOODBYE", 0.5)


@pytest.mark.long
def test_the_examples_are_what_both_sides_say(tmp_path):
    found = json.loads(json.dumps(vectors(tmp_path)))
    if os.environ.get(recorded.RECORDING):
        PATH.write_text(json.dumps(found, indent=1) + "\n")
    kept = json.loads(PATH.read_text())
    assert kept.keys() == found.keys()
    for name, values in found.items():
        assert kept[name] == values, name


def test_an_example_of_a_question_is_read_as_it_says():
    kept = json.loads(PATH.read_text())["question"]
    data = bytes.fromhex(kept["hex"])
    round = Round.of(data)
    assert hashlib.sha256(data).hexdigest() == round.id == kept["id"]
    np.testing.assert_array_equal(round.queries, kept["queries"])
    assert round.config.epsilon == kept["tree"]["fields"]["config"]["fields"]["epsilon"] == 1
    assert list(round.classes) == list(CLASSES)


def test_the_hash_of_the_page_is_the_hash_of_the_examples():
    """The block of the page, as 32-bit arithmetic in plain Python."""
    block = re.search(r"```text\n(w = .*?)```", (DOCS / "wire.md").read_text(), re.DOTALL)[1]
    lines = [line.replace("\u00b7", "*") for line in block.splitlines()]
    kept = json.loads(PATH.read_text())["messages"]
    collision = next(found for found in kept if found["mechanism"] == "collision")
    for example in collision["hashes"]:
        names = dict(zip("ab", example["seed"], strict=True)) | {"c": example["cell"]}
        for line in lines[:-1]:
            names["w"] = eval(line.split(" = ")[1], {}, names) % 2**32
        assert names["w"] == example["word"]
    support = collision["supported_cells"]
    data = bytes.fromhex(collision["hex"])
    count = collision["num_buckets"]
    for record, cells in enumerate(support):
        message = data[9 * record : 9 * record + 9]
        names = {"a": int.from_bytes(message[:4], "little")}
        names["b"] = int.from_bytes(message[4:8], "little")
        inside = []
        for cell in range(12):
            names["c"] = cell
            for line in lines[:-1]:
                names["w"] = eval(line.split(" = ")[1], {}, names) % 2**32
            if names["w"] * count >> 32 == message[8]:
                inside.append(cell)
        assert inside == cells


def told_by_the_page(example, rows):
    """Sum of an example's records, by the words of the page."""
    middle = rows.mean(axis=0)
    center = np.asarray(example["features"]) - middle
    length = np.linalg.norm(center, axis=1, keepdims=True)
    if example["labeler"] == "public_prototypes":
        away = rows - middle
        away /= np.linalg.norm(away, axis=1, keepdims=True)
        pairs = [away[i] @ away[j] for j in range(len(rows)) for i in range(j)]
        low, high = np.quantile(pairs, [0.5, 1 - 1 / 6])
        high += high == low
        said = np.floor(1024 * np.clip((center / length @ away.T - low) / (high - low), 0, 1)) - 512
    else:
        radius = np.median(np.linalg.norm(rows - middle, axis=1))
        said = np.trunc(4096 * (1 - 1e-12) * center / np.maximum(radius, length))
        said = np.hstack([said, np.full((len(said), 1), 4096)])
    total = np.zeros((3, said.shape[1]), np.int64)
    for row, label in zip(said, example["labels"], strict=True):
        total[label] += row.astype(np.int64) * (label >= 0)
    return total


def test_examples_of_sums_are_what_the_page_says():
    kept = json.loads(PATH.read_text())["sum_questions"]
    assert {example["labeler"] for example in kept} == sum_labelers().keys()
    for example in kept:
        round = Round.of(bytes.fromhex(example["hex"]))
        found = told_by_the_page(example, np.asarray(round.queries, np.float64))
        np.testing.assert_array_equal(example["sum_without_noise"], found)
        change = 1024 * 2 if example["labeler"] == "public_prototypes" else 8192
        assert float(example["sensitivity"]) == change


# The commands of both pages, with curl and openssl


def commands(page, section):
    """Lines of the first block of bash under a heading, without comments."""
    text = (DOCS / page).read_text()
    text = text[text.index(f"## {section}") :]
    block = re.search(r"```bash\n(.*?)```", text, re.DOTALL)[1]
    return [line for line in block.splitlines() if line]


@pytest.fixture
def made(tmp_path):
    """A folder in which the openssl commands of the federation page have run, as they stand."""
    told = commands("federation_server.md", "Beyond one host")
    lines = [line for line in told if "rknn" not in line]
    assert sum("openssl" in line for line in lines) == 4
    script = (
        "\n".join(lines).replace("DNS:HOST", "DNS:localhost").replace("CN=HOST", "CN=localhost")
    )
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return tmp_path


@pytest.mark.long
@pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("curl")), reason="needs openssl and curl"
)
def test_curl_with_the_certificates_of_the_page_answers_a_round(made):
    round = the_round("generalized_randomized_response")
    known = tls.read_clients(made / "clients.pem")
    context = tls.server_context(made / "tls", known)
    body = bytes.fromhex(message_vectors("generalized_randomized_response")["hex"])
    (made / "messages.bin").write_bytes(body)
    shutil.copy(made / "tls/ca.pem", made)
    with serving(made / "out", round, context=context, known=known) as running:
        told = []
        for line in commands("wire.md", "HTTP"):
            line = line.replace("HOST:9092", f"localhost:{running.port}")
            assert shlex.split(line)[0] == "curl"
            done = subprocess.run(
                ["bash", "-c", f"{line} --silent --show-error --noproxy localhost"],
                cwd=made,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            told.append(done.stdout)
    assert (made / "question.bin").read_bytes() == round.data
    assert json.loads(told[1]) == {"fate": "counted"}
    assert running.collector.clients == set(known.values())


def test_a_client_that_renews_its_certificate_keeps_its_number():
    """A certificate of another number would count a second time in an open round."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding

    began = datetime.datetime(2026, 1, 1)  # noqa: DTZ001 as X.509 has it, in UTC

    def certified(key, name, days):
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        made = x509.CertificateBuilder(subject, subject, key.public_key(), 1 + days, began)
        signed = made.not_valid_after(began + datetime.timedelta(days)).sign(key, hashes.SHA256())
        return tls.key_number(signed.public_bytes(Encoding.DER))

    first, second = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    number = certified(first, "north", 365)
    assert number == certified(first, "north", 730) == certified(first, "clinic", 365)
    assert number != certified(second, "north", 365)
