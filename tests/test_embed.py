"""`rknn embed`: the same file however often it was stopped, nothing lost, each record by itself."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rknn_jax.embedding import cards, images, rows, run, table, text
from rknn_jax.formats import Columns
from rknn_jax.release.shards import FileShard
from rknn_jax.representations import pretrained
from tests import tiny_network, tiny_vectors
from tests.tiny_vectors import WORDS

ROOT = Path(__file__).parent.parent
TEXTS = ("cat runs", "dog sleeps", "", "cat cat dog", "fast dog runs", "runs fast")
LABELS = ("a", "b", "a", "a", "b", "a")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(run, "ROWS_A_PART", 2)


@pytest.fixture
def network(tmp_path):
    return tiny_network.write(tmp_path)


@pytest.fixture
def folder(tmp_path):
    """Five images of two classes, of several sizes, modes and suffixes."""
    random = np.random.default_rng(0)
    made = tmp_path / "photos"
    files = ("cat/0.png", "cat/1.png", "cat/deep/2.PNG", "dog/0.jpg", "dog/1.png")
    for number, name in enumerate(files):
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (5 + number, 7, 3)).astype(np.uint8)
        image = Image.fromarray(pixels).convert("L" if number == 1 else "RGB")
        image.save(path, "JPEG" if path.suffix == ".jpg" else "PNG")
    (made / ".hidden.png").write_bytes(b"")
    (made / "notes.txt").write_text("no image")
    return made


@pytest.fixture
def vectors(tmp_path):
    return tiny_vectors.write(tmp_path)


def embeddings(path):
    return np.array(pq.read_table(path)["embeddings"].to_pylist(), np.float32)


def write_texts(path, values=TEXTS, labels=LABELS):
    records = [
        {"text": value, "labels": label} for value, label in zip(values, labels, strict=True)
    ]
    match path.suffix:
        case ".csv":
            lines = [f'"{record["text"]}",{record["labels"]}' for record in records]
            path.write_text("\n".join(["text,labels", *lines]) + "\n")
        case ".jsonl":
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(records), path)
    return path


# ---- images


def test_folders_are_classes_and_rows_are_the_encoders(rknn, folder, network):
    done = rknn("embed", "--images", folder, "--model", network, "--out", "o.parquet", "--json")
    assert done.status == 0, done.err
    assert done.json["rows"] == 5
    found = pq.read_table("o.parquet")
    names = ["cat/0.png", "cat/1.png", "cat/deep/2.PNG", "dog/0.jpg", "dog/1.png"]
    assert found["file"].to_pylist() == names
    assert found["labels"].to_pylist() == ["cat"] * 3 + ["dog"] * 2
    encode = pretrained.load(network)
    for name, row in zip(names, embeddings("o.parquet"), strict=True):
        alone = np.asarray(Image.open(folder / name).convert("RGB"))[None]
        np.testing.assert_allclose(row, np.asarray(encode(alone))[0], rtol=1e-5, atol=1e-5)


def test_label_reads_what_was_written(rknn, folder, network):
    rknn("embed", "--images", folder, "--model", network, "--out", "o.parquet")
    [block] = FileShard("o.parquet", "--private", Columns()).blocks(10)
    assert block.embeddings.shape == (5, 5)
    assert block.labels.tolist() == ["cat"] * 3 + ["dog"] * 2


def test_images_without_folders_have_no_labels(rknn, folder, network):
    rknn("embed", "--images", folder / "dog", "--model", network, "--out", "o.parquet")
    assert pq.read_table("o.parquet").column_names == ["embeddings", "file"]


def test_a_photo_that_lies_on_its_side_is_turned(folder, network):
    turned = Image.open(folder / "cat/0.png").transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise to see it
    turned.save(folder / "turned.png", exif=exif)
    model = images.NetworkModel(pretrained.load(network))
    made = model([folder / "turned.png", folder / "cat/0.png"])
    assert not made.reasons
    np.testing.assert_array_equal(made.features[0], made.features[1])


def test_a_bad_public_image_is_named_and_left_out(rknn, folder, network):
    (folder / "cat/0.png").write_bytes(b"no image")
    done = rknn("embed", "--images", folder, "--model", network, "--out", "o.parquet", "--json")
    assert done.status == 0
    assert "cat/0.png" in done.err
    assert done.json["unusable"] == 1
    assert pq.read_table("o.parquet")["file"].to_pylist()[0] == "cat/1.png"
    assert len(embeddings("o.parquet")) == 4
    assert list(json.loads(Path("o.card.json").read_text())["unusable"]) == ["file cat/0.png"]


def test_a_bad_private_image_stays_as_a_row_that_casts_no_vote(rknn, folder, network):
    rknn("embed", "--images", folder, "--model", network, "--out", "all.parquet", "--private")
    (folder / "cat/1.png").write_bytes(b"no image")
    done = rknn("embed", "--images", folder, "--model", network, "--out", "o.parquet", "--private")
    assert "tell nobody" in done.err
    good, bad = embeddings("all.parquet"), embeddings("o.parquet")
    assert np.isnan(bad[1]).all()
    np.testing.assert_array_equal(np.delete(bad, 1, 0), np.delete(good, 1, 0))
    cards = [json.loads(Path(f"{name}.card.json").read_text()) for name in ("all", "o")]
    assert [card["rows"] for card in cards] == [5, 5]
    assert "1.png" not in Path("o.card.json").read_text()
    assert [Path(f"o.{end}").stat().st_mode & 0o077 for end in ("parquet", "card.json")] == [0, 0]


def test_a_public_record_without_finite_features_is_named_and_left_out(tmp_path, vectors):
    matrix = np.load(vectors)
    matrix[WORDS.index("fast") + 1] = np.inf
    np.save(vectors, matrix)
    source = rows.TableFile(write_texts(tmp_path / "t.jsonl"), "--text", ("text",), texts=True)
    out = tmp_path / "o.parquet"
    made = run.embed(source, text.load(str(vectors)), out, private=False)
    bad = "its features are not finite"
    assert made.unusable == {"row 2": "no text", "row 4": bad, "row 5": bad}
    assert pq.read_table(out)["row"].to_pylist() == [0, 1, 3]


@pytest.mark.parametrize("options", [(), ("--private",)])
def test_links_to_images_of_the_folder_are_told(rknn, folder, network, options):
    given = ("embed", "--images", folder, "--model", network, *options)
    assert "links to images" not in rknn(*given, "--out", "o.parquet").err
    (folder / "dog/again.png").symlink_to(folder / "cat/0.png")
    (folder / "dog/hard.png").hardlink_to(folder / "cat/0.png")
    (folder / "dog/gone.png").symlink_to(folder / "nowhere.png")
    os.mkfifo(folder / "dog/pipe.png")  # nobody writes to it, and nobody waits
    told = " ".join(rknn(*given, "--out", "p.parquet").err.split())
    assert "2 names are links to images" in told
    assert "pipe.png" in told


def test_a_folder_without_images_is_told(rknn, tmp_path, network):
    (tmp_path / "empty").mkdir()
    done = rknn("embed", "--images", "empty", "--model", network, "--out", "o.parquet")
    assert done.status == 2
    assert "got none" in done.err
    assert not Path("o.parquet").exists()


def test_a_folder_of_bad_images_makes_no_file(rknn, folder, network):
    for name in images.ImageFolder.find(folder).files:
        (folder / name).write_bytes(b"no image")
    done = rknn("embed", "--images", folder, "--model", network, "--out", "o.parquet")
    assert done.status == 2
    assert "cat/0.png" in done.err
    assert not list(Path().glob("*o.parquet*")), "a repaired folder can be embedded at once"


# ---- stopped, and changed


class Stop(Exception):
    """Stand-in for a kill."""


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("parts", [0, 1, 3])
def test_a_stopped_run_goes_on_and_makes_the_same_bytes(tmp_path, folder, network, parts, private):
    (folder / "cat/1.png").write_bytes(b"no image")
    source = images.ImageFolder.find(folder)
    model = images.NetworkModel(pretrained.load(network))
    whole = run.embed(source, model, tmp_path / "whole.parquet", private=private)

    rows = []

    def stop(count):
        rows.append(count)
        if len(rows) > parts:
            raise Stop

    out = tmp_path / "o.parquet"
    with pytest.raises(Stop):
        run.embed(source, model, out, private=private, advance=stop if parts < 3 else _stop)
    assert not out.exists()
    hidden = tmp_path / ".o.parquet.parts"
    assert not private or not hidden.stat().st_mode & 0o077
    assert {path.stat().st_mode & 0o077 for path in hidden.iterdir() if path.name[0] != "."} == {0}
    again = run.embed(source, model, out, private=private)
    assert again.resumed == (min(2 * (parts + 1), 5) if parts < 3 else 2)
    assert again.unusable == whole.unusable == {"file cat/1.png": again.unusable["file cat/1.png"]}
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert again.card == whole.card
    assert not list(tmp_path.glob(".*"))


def _stop(count):
    raise Stop


@pytest.mark.parametrize("moment", ["write_whole", "replace", "sync_folder"])
def test_a_stop_while_the_result_is_put_in_place(tmp_path, folder, network, monkeypatch, moment):
    source = images.ImageFolder.find(folder)
    model = images.NetworkModel(pretrained.load(network))
    run.embed(source, model, tmp_path / "whole.parquet", private=False)
    out = tmp_path / "o.parquet"
    place = os if moment == "replace" else run.disk
    kept = getattr(place, moment)

    def stop(*arguments, **named):
        final = out in arguments or cards.card_path(out) in arguments or moment == "sync_folder"
        if final and (moment != "sync_folder" or out.exists()):
            raise Stop
        return kept(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(place, moment, stop)
        with pytest.raises(Stop):
            run.embed(source, model, out, private=False)
    run.embed(source, model, out, private=False)
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_a_finished_run_is_not_done_again_and_another_is_refused(rknn, folder, network):
    command = ("embed", "--images", folder, "--model", network, "--out", "o.parquet")
    rknn(*command)
    before = Path("o.parquet").read_bytes()
    again = rknn(*command)
    assert again.status == 0
    assert "5 rows were there already" in again.err
    other = rknn(*command, "--private")
    assert other.status == 2
    assert "name another" in other.err
    assert Path("o.parquet").read_bytes() == before


def test_records_that_change_meanwhile_are_refused(tmp_path, folder, network):
    source = images.ImageFolder.find(folder)
    model = images.NetworkModel(pretrained.load(network))
    out = tmp_path / "o.parquet"
    with pytest.raises(Stop):
        run.embed(source, model, out, private=False, advance=_stop)
    (folder / "cat/0.png").write_bytes((folder / "dog/1.png").read_bytes())
    with pytest.raises(ValueError, match="begin anew"):
        run.embed(source, model, out, private=False)


def test_records_that_change_while_they_are_embedded_are_refused(tmp_path, folder, network):
    source = images.ImageFolder.find(folder)
    model = images.NetworkModel(pretrained.load(network))
    out = tmp_path / "o.parquet"

    def change(count):
        (folder / "cat/0.png").write_bytes((folder / "dog/1.png").read_bytes())

    with pytest.raises(ValueError, match="to stay as it is while it is embedded"):
        run.embed(source, model, out, private=True, advance=change)
    assert not list(tmp_path.glob("*.parquet*")) + list(tmp_path.glob(".*"))
    run.embed(source, model, out, private=True)


@pytest.mark.parametrize("words", ["begin anew", "name another"])
def test_a_run_with_other_columns_is_another_one(tmp_path, vectors, words):
    path = write_texts(tmp_path / "t.jsonl")
    model = text.load(str(vectors))
    out = tmp_path / "o.parquet"
    source = rows.TableFile(path, "--text", ("text",), texts=True)
    with pytest.raises(Stop):
        run.embed(source, model, out, private=False, advance=_stop)
    if words == "name another":
        run.embed(source, model, out, private=False)
    labeled = dataclasses.replace(source, label="labels")
    with pytest.raises(ValueError, match=words):
        run.embed(labeled, model, out, private=False)


def test_the_digest_is_the_networks(tmp_path):
    models = [pretrained.load(tiny_network.write(tmp_path, seed=seed)) for seed in (0, 1)]
    cards = [images.NetworkModel(model).card for model in models[::-1]]
    assert cards[0]["sha256"] != cards[1]["sha256"]


def test_the_private_side_needs_the_model_of_the_card(rknn, folder, network, tmp_path):
    rknn("embed", "--images", folder, "--model", network, "--out", "p.parquet")
    private = ("embed", "--images", folder, "--card", "p.card.json", "--private")
    assert rknn(*private, "--out", "r.parquet").status == 0
    np.testing.assert_array_equal(embeddings("p.parquet"), embeddings("r.parquet"))
    other = tiny_network.write(tmp_path, "other", seed=1)
    done = rknn(*private, "--model", other, "--out", "s.parquet")
    assert done.status == 2
    assert "sha256" in done.err


def test_ctrl_c_tells_that_the_same_command_goes_on(rknn, folder, network, monkeypatch):
    command = ("embed", "--images", folder, "--model", network, "--out", "o.parquet")
    kept = run._table

    def interrupted(rows, *others):
        if "dog/1.png" in rows.names:
            raise KeyboardInterrupt
        return kept(rows, *others)

    monkeypatch.setattr(run, "_table", interrupted)
    stopped = rknn(*command)
    assert stopped.status == 130
    assert "The same command goes on." in stopped.err
    monkeypatch.setattr(run, "_table", kept)
    assert "4 rows were there already" in rknn(*command).err


@pytest.mark.long
def test_a_killed_process_goes_on(tmp_path, folder, network):
    command = [sys.executable, "-m", "rknn_jax.cli.main", "embed", "--images", str(folder)]
    command += ["--model", str(network), "--out", str(tmp_path / "o.parquet")]
    part = tmp_path / ".o.parquet.parts/00000000.parquet"
    slow = (
        "import time; from rknn_jax.embedding import run; run.ROWS_A_PART = 2; kept = run._table\n"
        "def table(*rows):\n    time.sleep(0.5); return kept(*rows)\n"
        "run._table = table\nfrom rknn_jax.cli import main; main.main()"
    )
    process = subprocess.Popen([sys.executable, "-c", slow, *command[3:]], cwd=ROOT)
    while not part.exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "o.parquet").exists()
    source = images.ImageFolder.find(folder)
    model = images.NetworkModel(pretrained.load(str(network)))
    again = run.embed(source, model, tmp_path / "o.parquet", private=False)
    assert again.resumed >= 2
    whole = run.embed(source, model, tmp_path / "whole.parquet", private=False)
    assert whole.card == again.card
    assert (tmp_path / "o.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


# ---- text


def test_a_text_is_the_mean_of_its_tokens_vectors(vectors):
    model = text.load(str(vectors))
    made = model(pa.table({"text": ["cat dog", "runs", None, "unknown cat"]}))
    matrix = np.load(vectors).astype(np.float32)
    np.testing.assert_array_equal(made.features[0], (matrix[1] + matrix[2]) / 2)
    np.testing.assert_array_equal(made.features[1], matrix[3])
    np.testing.assert_array_equal(made.features[3], (matrix[0] + matrix[1]) / 2)
    assert made.reasons == {2: "no text"}
    assert np.isnan(made.features[2]).all()


def test_a_long_text_takes_no_memory_for_the_vectors_of_its_tokens(vectors):
    """A private text of 64 MiB asked for 34 GB, and ended `rknn embed`."""
    model = text.load(str(vectors))
    model = dataclasses.replace(model, vectors=np.repeat(model.vectors, 500, axis=1))
    record = pa.table({"text": ["cat dog runs " * 20_000]})
    tracemalloc.start()
    try:
        features = model(record).features[0]
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(features, model.vectors[1:4].mean(axis=0), rtol=1e-5)
    assert most < 60_000 * 4 * model.width / 2


def test_the_digest_is_that_of_the_vectors_and_of_the_tokenizer(vectors):
    digests = {text.load(str(vectors)).card["sha256"]}
    np.save(vectors, np.load(vectors) + 1)
    digests.add(text.load(str(vectors)).card["sha256"])
    tokenizer = vectors.with_name("tokenizer.json")
    tokenizer.write_text(tokenizer.read_text().replace("sleeps", "snores"))
    digests.add(text.load(str(vectors)).card["sha256"])
    assert len(digests) == 3


def test_a_text_does_not_depend_on_others(vectors):
    model = text.load(str(vectors))
    among = model(pa.table({"text": list(TEXTS)})).features
    for row, alone in enumerate(TEXTS):
        np.testing.assert_array_equal(model(pa.table({"text": [alone]})).features[0], among[row])


def test_three_formats_of_one_text_give_the_same_rows(rknn, tmp_path, vectors):
    for suffix in (".csv", ".jsonl", ".parquet"):
        path = write_texts(tmp_path / f"texts{suffix}")
        done = rknn("embed", "--text", path, "--model", vectors, "--out", f"o{suffix}.parquet")
        assert done.status == 0, done.err
        assert "row 2 (no text)" in done.err
    one, *others = (
        pq.read_table(f"o{suffix}.parquet") for suffix in (".csv", ".jsonl", ".parquet")
    )
    assert one["row"].to_pylist() == [0, 1, 3, 4, 5]
    assert one["labels"].to_pylist() == ["a", "b", "a", "b", "a"]
    for other in others:
        for name in one.column_names:
            assert one[name].to_pylist() == other[name].to_pylist()


def test_a_broken_line_is_one_record_without_values(rknn, tmp_path, vectors):
    (tmp_path / "t.csv").write_text('text,labels\ncat,a\n"dog,b\nrough, cut,c\n\nruns,d\n')
    (tmp_path / "t.jsonl").write_text('{"text": "cat"}\n{"text": "do\n[1]\n\n{"text": "runs"}\n')
    for name, good in (("t.csv", [0, 4]), ("t.jsonl", [0, 4])):
        out = tmp_path / f"{name}.parquet"
        done = rknn("embed", "--text", name, "--model", vectors, "--private", "--out", out)
        assert done.status == 0, done.err
        usable = np.isfinite(embeddings(out)).all(axis=1)
        assert np.flatnonzero(usable).tolist() == good, name
        assert len(usable) == 5


def not_unicode(path):
    """Write three texts and labels; the second one is half of a pair, or one byte of two."""
    if path.suffix == ".jsonl":
        bad = '"cat \\ud83d"'
        lines = [f'{{"text": {text}, "labels": {text}}}' for text in ('"cat"', bad, '"runs"')]
        path.write_text("\n".join(lines))
    else:
        texts = pa.array([b"cat", b"cat \xc3", b"runs"]).cast(pa.string(), safe=False)
        columns = {"text": texts, "labels": texts.dictionary_encode(), "who": texts}
        pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_text_that_is_no_unicode_stops_no_other_record(rknn, tmp_path, vectors, suffix):
    path = not_unicode(tmp_path / f"t{suffix}")
    done = rknn("embed", "--text", path, "--model", vectors, "--private", "--out", "o.parquet")
    assert done.status == 0, done.err
    assert np.isfinite(embeddings("o.parquet")).all()
    labels = pq.read_table("o.parquet")["labels"].to_pylist()
    assert (labels[0], labels[2]) == ("cat", "runs")


def test_which_names_private_json_lines_have_decides_nothing(rknn, tmp_path, vectors):
    """One record among the first hundred once decided whether there is a column."""
    for name, line in (("all", '{"text": "cat", "who": 1, "labels": "a"}'), ("few", "{}")):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"text": "cat"}}\n{line}\n')
        done = rknn(
            *("embed", "--text", f"{name}.jsonl", "--model", vectors, "--keep", "who"),
            *("--private", "--out", f"{name}.parquet"),
        )
        assert done.status == 0, done.err
    schemas = [pq.read_schema(f"{name}.parquet") for name in ("all", "few")]
    assert schemas[0] == schemas[1]


def test_several_columns_are_one_text_and_others_are_kept(rknn, tmp_path, vectors):
    rows = pa.table({"title": ["cat"], "body": ["dog runs"], "who": [7], "class": [3]})
    pq.write_table(rows, tmp_path / "t.parquet")
    done = rknn(
        *("embed", "--text", "t.parquet", "--model", vectors, "--out", "o.parquet"),
        *("--columns", "title", "body", "--label", "class", "--keep", "who"),
    )
    assert done.status == 0, done.err
    found = pq.read_table("o.parquet")
    assert (found["who"].to_pylist(), found["labels"].to_pylist()) == ([7], [3])
    matrix = np.load(vectors).astype(np.float32)
    np.testing.assert_allclose(embeddings("o.parquet")[0], matrix[[1, 2, 3]].mean(axis=0))


def test_the_packaged_vectors_are_the_default(rknn, tmp_path):
    write_texts(tmp_path / "t.jsonl")
    done = rknn("embed", "--text", "t.jsonl", "--out", "o.parquet", "--json")
    assert done.json["model"]["name"] == "wordllama"
    assert done.json["dimensions"] == 256


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("words.bin", "safetensors, .npy or .onnx"),
        ("none.npy", "There is no file"),
        ("few.npy", "shape"),
    ],
)
def test_vectors_that_cannot_be_used_are_told(vectors, name, words):
    np.save(vectors.with_name("few.npy"), np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match=words):
        text.load(str(vectors.with_name(name)))


# ---- tables

PUBLIC = {
    "age": [20.0, 40.0, None, 60.0],
    "city": ["Oslo", "Rome", "Oslo", None],
    "member": [True, False, True, True],
    "labels": ["a", "b", "a", "b"],
}


def test_a_table_is_standardized_as_the_public_one(rknn, tmp_path):
    pq.write_table(pa.table(PUBLIC), tmp_path / "p.parquet")
    private = {"age": ["40", "80", "old", "1e400"], "city": ["Rome", "Paris", "", "Oslo"]}
    rows = zip(*private.values(), strict=True)
    lines = [f"{city},x,{age},b,0" for age, city in rows]
    (tmp_path / "r.csv").write_text("\n".join(["city,other,age,labels,member", *lines]))
    assert rknn("embed", "--table", "p.parquet", "--out", "public.parquet").status == 0
    done = rknn(
        *("embed", "--table", "r.csv", "--card", "public.card.json", "--private"),
        *("--out", "private.parquet"),
    )
    assert done.status == 0, done.err
    std, member = np.std([20, 40, 60]), np.std([1, 0, 1, 1])
    np.testing.assert_allclose(embeddings("public.parquet")[:, 0] * std, [-20, 0, 0, 20], atol=1e-5)
    np.testing.assert_array_equal(
        embeddings("public.parquet")[:, 1:3], [[1, 0], [0, 1], [1, 0], [0, 0]]
    )
    found = embeddings("private.parquet")
    np.testing.assert_allclose(found[:, 0] * std, [0, 40, 0, 0], atol=1e-5)
    np.testing.assert_array_equal(found[:, 1:3], [[0, 1], [0, 0], [0, 0], [1, 0]])
    np.testing.assert_allclose(found[:, 3] * member, -0.75, rtol=1e-6)


@pytest.mark.parametrize("values", [pa.string(), pa.string_view()])
def test_categories_of_arrow_files_are_one_hot_and_text(rknn, tmp_path, values):
    """Polars writes its categories as dictionaries of views, which cannot be cast."""
    words = pa.DictionaryArray.from_arrays(
        pa.array(np.arange(40) % 3, pa.uint32()), pa.array(["a b", "c", "d"]).cast(values)
    )
    found = pa.table({"x": np.arange(40) / 3, "material": words})
    with pa.ipc.new_file(tmp_path / "T.arrow", found.schema) as file:
        file.write_table(found)
    done = rknn("embed", "--table", "T.arrow", "--out", "T.parquet")
    assert done.status == 0, done.err
    embedded = pq.read_table(tmp_path / "T.parquet")["embeddings"]
    assert len(embedded[0]) == 1 + 3
    assert rows.texts(found.select(["material"]))[:3] == ["a b", "c", "d"]


@pytest.mark.long
def test_pyarrow_comes_with_all_that_is_used_of_it():
    """In a process in which nothing else has imported it."""
    code = "from rknn_jax.formats._arrow import pyarrow as pa; pa().compute; pa().parquet; pa().ipc"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_private_table_without_a_card_is_refused(rknn, tmp_path):
    pq.write_table(pa.table(PUBLIC), tmp_path / "r.parquet")
    done = rknn("embed", "--table", "r.parquet", "--private", "--out", "o.parquet")
    assert done.status == 2
    assert "--card" in done.err


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ([f"{row} Main Street" for row in range(40)], "at most 32 different values"),
        (list(range(40)), "as an id has"),
        ([[1.0, 2.0]] * 40, "Expected numbers or text"),
    ],
)
def test_columns_that_are_no_features_are_refused(rknn, tmp_path, column, words):
    rows = pa.table({"age": [1.5, 2.5] * 20, "odd": column})
    pq.write_table(rows, tmp_path / "p.parquet")
    done = rknn("embed", "--table", "p.parquet", "--out", "o.parquet")
    assert done.status == 2
    assert words in done.err
    assert "--columns" in done.err
    assert (
        rknn("embed", "--table", "p.parquet", "--out", "o.parquet", "--columns", "age").status == 0
    )


def test_a_card_that_was_changed_is_refused(rknn, tmp_path):
    pq.write_table(pa.table(PUBLIC), tmp_path / "p.parquet")
    rknn("embed", "--table", "p.parquet", "--out", "public.parquet")
    card = json.loads(Path("public.card.json").read_text())
    assert table.of_card(card["model"]).card["sha256"] == card["model"]["sha256"]
    card["model"]["columns"][0]["mean"] += 1
    with pytest.raises(ValueError, match="not those of its digest"):
        table.of_card(card["model"])


# ---- settings


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--images", "d", "--text", "t.csv"), "one of --images, --text and --table"),
        ((), "one of --images, --text and --table"),
        (("--images", "d"), "Expected --model"),
        (("--table", "t.csv", "--model", "wordllama"), "no --model with --table"),
        (("--text", "t.txt"), ".csv, .jsonl, .parquet"),
        (("--text", "none.csv"), "--text none.csv could not be opened: No such file"),
        (("--text", "t.csv", "--columns", "story"), "'story'"),
        (("--text", "t.csv", "--label", "kind"), "--label kind"),
        (("--images", "d", "--keep", "who"), "no --columns, --keep and --label"),
        (("--images", "d", "--card", "none.json"), "--card none.json"),
    ],
)
def test_wrong_settings_are_told(rknn, tmp_path, words, told):
    write_texts(tmp_path / "t.csv")
    (tmp_path / "t.txt").write_text("text")
    done = rknn("embed", *words, "--out", "o.parquet")
    assert done.status == 2
    assert told in done.err
    assert not Path("o.parquet").exists()


def test_the_result_is_parquet(rknn):
    assert ".parquet" in rknn("embed", "--text", "t.csv", "--out", "o.npz").err
