"""No name of a private file, folder, column, user or host is in anything that leaves the owner.

Every door releases from files whose path tells a diagnosis. Each byte that it publishes or sends is
searched, inside compressed files too. `config.json` and the ledger stay with the owner.
"""

import contextlib
import gzip
import io
import platform
import socket
import threading
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rknn_jax import ReverseKNNLabeler
from rknn_jax.cli import classes as selection
from rknn_jax.cli import federation, label
from rknn_jax.federation import connection
from rknn_jax.federation.join_settings import Join
from rknn_jax.federation.settings import Serve
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.privacy.statement import as_json
from rknn_jax.release import export
from rknn_jax.release.settings import Settings
from tests.options import named_settings
from tests.test_federation_http import HERE, PATIENCE, free_port, impatient, quick

__all__ = ["impatient", "quick"]

WORDS = ("oncologyward", "jane_doe", "hivstatus", "patientssn", "drwho", "clinichost")
KEPT = ("config.json",)
"""File of a release that its owner keeps, as README says."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of private data, and one beside it for what is published, on a named machine."""
    monkeypatch.setenv("USER", "drwho")
    monkeypatch.setenv("LOGNAME", "drwho")
    monkeypatch.setattr(socket, "gethostname", lambda: "clinichost")
    monkeypatch.setattr(platform, "node", lambda: "clinichost")
    private = tmp_path / "home_drwho" / "oncologyward"
    private.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 4)).astype(np.float32)
    np.savez("P.npz", embeddings=rows)
    pq.write_table(pa.table({f"feature{i}": rows[:, i] for i in range(4)}), "P.parquet")
    return private


def records(rows=40):
    rng = np.random.default_rng(1)
    return rng.normal(size=(rows, 4)).astype(np.float32), rng.integers(0, 3, rows)


def saved(folder, kind):
    """Write private records, and return the settings that name them."""
    rows, labels = records()
    name = folder / f"jane_doe.{kind}"
    if kind == "npz":
        np.savez(name, embeddings=rows, hivstatus=labels)
        return {"private": str(name), "label": "hivstatus"}
    if kind == "npy":
        np.save(name, rows)
        np.save(folder / "jane_doe_labels.npy", labels)
        return {"private": str(name), "private_labels": str(folder / "jane_doe_labels.npy")}
    columns = {f"feature{i}": rows[:, i] for i in range(4)} | {
        "hivstatus": labels,
        "patientssn": np.arange(len(labels)) // 2,
    }
    table = pa.table(columns)
    if kind == "parquet":
        pq.write_table(table, name)
    else:
        name = name.with_suffix(".csv.gz")
        with gzip.open(name, "wt", newline="") as file:
            table.to_pandas().to_csv(file, index=False)
    named = {"label": "hivstatus", "person": "patientssn"}
    return {"private": str(name), "embedding": tuple(columns)[:4], **named}


def inside(name, data):
    """Yield what a file holds, unpacked, and what packed files in it hold."""
    yield name, data
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            for member in packed.namelist():
                yield from inside(f"{name}/{member}", packed.read(member))
    elif data[:2] == b"\x1f\x8b":
        yield from inside(f"{name} unzipped", gzip.decompress(data))
    elif data[:4] == b"PAR1":
        table = pq.read_table(io.BytesIO(data))
        yield f"{name} read", f"{table.schema} {table.schema.metadata} {table.to_pydict()}".encode()


def found(name, data):
    """Return the private words in bytes, in any of the encodings that files have."""
    coded = {
        word: [word.encode(code) for code in ("utf-8", "utf-16-le", "utf-32-le")] for word in WORDS
    }
    return [
        (where, word)
        for where, content in inside(name, data)
        for word, forms in coded.items()
        if any(form in content.lower() for form in forms)
    ]


def found_in(folder, but=()):
    files = [path for path in Path(folder).rglob("*") if path.is_file() and path.name not in but]
    assert files
    names = [(str(path), word) for path in files for word in WORDS if word in path.name]
    return names + [one for path in files for one in found(str(path), path.read_bytes())]


def test_the_search_finds_words_wherever_they_hide(tmp_path):
    """Else the other tests show nothing."""
    out = tmp_path / "out"
    out.mkdir()
    np.savez_compressed(out / "a.npz", x=np.array(["of Jane_Doe"]))
    with gzip.open(out / "b.gz", "wb") as file:
        file.write(b"oncologyward")
    pq.write_table(
        pa.table({"x": [1]}).replace_schema_metadata({"path": "hivstatus"}),
        out / "c.parquet",
        compression="gzip",
    )
    (out / "d.json").write_text('"clinichost"')
    assert {word for _, word in found_in(out)} == {
        "jane_doe",
        "oncologyward",
        "hivstatus",
        "clinichost",
    }


@pytest.mark.parametrize("kind", ["npz", "npy", "parquet", "csv"])
def test_a_release_names_no_private_file(place, kind):
    given = saved(place, kind)
    public = "P.parquet" if "embedding" in given else "P.npz"
    told = label.run(
        named_settings(
            Settings, public, epsilon=0.5, queries=3, classes="3", out=Path("out"), **given
        )
    )
    for form in ("csv", "parquet", "registry"):
        export.write(Path("out"), form)
    assert found_in("out"), "config.json names the file, so the search works"
    assert found_in("out", KEPT) == []
    del told["files"]
    assert found("what --json prints", as_json(told).encode()) == []
    ledger = Ledger.open(next(place.glob("*.ledger.jsonl")))
    assert told["ledger"]["id"] == ledger.id
    assert ledger.id in Path("out/privacy.html").read_text()


def test_a_person_that_names_the_ledger_publishes_no_more(place):
    label.run(
        named_settings(
            Settings,
            "P.npz",
            epsilon=0.5,
            queries=3,
            classes="3",
            out=Path("out"),
            ledger=place / "hivstatus of jane_doe.jsonl",
            **saved(place, "npz"),
        )
    )
    assert found_in("out", KEPT) == []


def test_an_estimator_and_a_selection_of_classes_name_no_private_file(place):
    rows, labels = records()
    ledger = place / "jane_doe.ledger.jsonl"
    made = ReverseKNNLabeler(
        epsilon=0.5, classes=[0, 1, 2], n_queries=3, ledger=ledger, budget=100, budget_delta=0.1
    ).fit(np.load("P.npz")["embeddings"])
    made.label(rows, labels)
    published = {name: value for name, value in vars(made).items() if name.endswith("_")}
    assert "card_" in published
    assert found("attributes", repr(published).encode()) == []
    selected = selection.run(
        named_settings(
            selection.SelectClasses, epsilon=1, delta=1e-3, ledger=ledger, **saved(place, "npz")
        )
    )
    assert found("classes", as_json(selected).encode()) == []


class Wire:
    """Everything that clients send, with headers, and that the server sends them."""

    def __init__(self, monkeypatch):
        self.sent = b""
        original = connection.httpx.Client.stream

        def stream(client, method, path, **named):
            request = client.build_request(method, path, **named)
            self.sent += repr((method, str(request.url), request.headers.raw)).encode()
            self.sent += request.read()
            return original(client, method, path, **named)

        monkeypatch.setattr(connection.httpx.Client, "stream", stream)


def served(**changes):
    """Settings of a server with three queries."""
    return named_settings(
        Serve,
        Path("P.npz"),
        1.0,
        out=Path("server"),
        classes="3",
        queries=3,
        port=free_port(),
        **changes,
    )


def a_round(place, monkeypatch, clients, **changes):
    """Serve a round to clients whose files are named by a disease; return what was sent."""
    wire = Wire(monkeypatch)
    settings = served(clients=clients, **changes)
    rows, labels = records()
    threads = [threading.Thread(target=lambda: federation.serve(settings))]
    for number in range(clients):
        own = place / f"jane_doe_{number}.npz"
        np.savez(own, embeddings=rows, labels=labels)
        agreed = named_settings(
            Join, own, f"{HERE}:{settings.port}", budget=2, budget_delta=0.5, trust=settings.trust
        )
        threads.append(threading.Thread(target=federation.join, args=(agreed,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return wire.sent


@pytest.mark.long
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "changes",
    [
        {"mechanism": "generalized_randomized_response"},
        pytest.param({"trust": "central", "delta": 1e-5}, marks=pytest.mark.long),
    ],
    ids=["messages", "sum"],
)
def test_a_round_carries_no_name_of_a_clients_file(place, monkeypatch, changes):
    sent = a_round(place, monkeypatch, 2, **changes)
    assert len(sent) > 100
    assert found("the wire", sent) == []
    assert found_in("server") == []
    assert Path("server/privacy.json").exists()


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_a_refusal_carries_no_name_and_no_reason(place, monkeypatch):
    rows, labels = records()
    own = place / "jane_doe.npz"
    np.savez(own, embeddings=rows, labels=labels)
    settings = served(clients=1, deadline=3.0, collect_only=True)
    wire = Wire(monkeypatch)

    def serve():
        with contextlib.suppress(ValueError):
            federation.serve(settings)

    thread = threading.Thread(target=serve)
    thread.start()
    told = federation.join(named_settings(Join, own, f"{HERE}:{settings.port}", budget=0.5))
    thread.join(PATIENCE)
    assert told["exit_status"] == federation.REFUSED
    assert b"refusal" in wire.sent
    assert found("the wire", wire.sent) == []
    assert found_in("server") == []


def test_a_client_of_flower_that_fails_tells_the_server_no_reason(place, capsys):
    """Flower sends the words of an error to the server."""
    pytest.importorskip("flwr")
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from rknn_jax.federation import flower

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    app = flower.node_app()
    config = {"private": str(place / "jane_doe.npz"), "budget": 1.0}
    message = Message(
        RecordDict({"round": ConfigRecord({"data": b"?"})}),
        dst_node_id=1,
        message_type=f"query.{flower.ANSWER}",
    )
    with pytest.raises(RuntimeError, match="its owner sees why") as failed:
        app(message, Context(1, 1, config, RecordDict(), {}))
    assert found("the error", repr(failed.value).encode()) == []
    assert "jane_doe" in capsys.readouterr().err
