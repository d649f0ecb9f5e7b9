"""Transformers of text in `rknn embed`: padding, batches and the other texts never show, truncation
is said, and what cannot be used is refused.
"""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Regex
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from rknn_jax.embedding import text, tokens
from tests import tiny_network

TEXTS = ["cat runs", "dog", "", "fast cat sleeps dog", "unknown dog", None, " ", "runs fast"]
USED = [0, 1, 3, 4, 7]
ROWS = {word: row for row, word in enumerate(tiny_network.WORDS, 4)}


def table(values):
    return pa.table({"text": pa.array(values, pa.string())})


def expected(value, *, pooling="mean", longest=6):
    """Features of a text by the graph's own arithmetic, one token after the other."""
    vectors = tiny_network.token_vectors()
    words = [ROWS.get(word, 1) for word in value.split()][: longest - 2]
    own = vectors[[2, *words, 3]]
    attended = own + own.mean(axis=0)
    return attended.mean(axis=0) if pooling == "mean" else attended[0]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_features_are_those_of_each_text_without_padding(tmp_path, pooling):
    model = text.load(str(tiny_network.write_text(tmp_path, pooling=pooling)))
    made = model(table(TEXTS))
    for row in USED:
        wanted = expected(TEXTS[row], pooling=pooling)
        np.testing.assert_allclose(made.features[row], wanted, rtol=1e-5, atol=1e-6)
    assert made.reasons == dict.fromkeys((2, 5, 6), "no text")
    assert np.isnan(made.features[[2, 5, 6]]).all()
    assert made.truncated == 0


@pytest.mark.parametrize("attends", ["mask", "all", "batch"])
def test_a_transformer_sees_one_text_a_run(tmp_path, attends):
    """The features are the same bits beside other texts, also of one that mixes a batch."""
    model = text.load(str(tiny_network.write_text(tmp_path, attends=attends)))
    among = model(table(TEXTS)).features
    for row in USED:
        alone = model(table([TEXTS[row]])).features[0]
        np.testing.assert_array_equal(among[row], alone)
        if attends == "mask":
            np.testing.assert_allclose(alone, expected(TEXTS[row]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["onnx", "vectors"])
def test_a_text_that_a_tokenizer_cannot_take_is_its_record_s_own_affair(tmp_path, form):
    """One without a token for unknown words fails on all texts if one has such a word."""
    path = tiny_network.write_text(tmp_path)
    model = text.load(str(path))
    if form == "vectors":
        np.save(path.with_suffix(".npy"), np.eye(model.tokenizer.get_vocab_size(), 3))
        model = text.load(str(path.with_suffix(".npy")))
    usual = ["a text", "cat runs", "dog", "runs", "fast cat"]
    expected = model(table(usual)).features
    model.tokenizer.model = WordLevel({word: row for word, row in ROWS.items()}, "[none]")
    odd = model(table([*usual[:2], "unknown", *usual[3:]]))
    np.testing.assert_array_equal(odd.features[[1, 3, 4]], expected[[1, 3, 4]])
    assert odd.reasons == dict.fromkeys((0, 2), tokens.UNREAD)
    assert np.isnan(odd.features[[0, 2]]).all()


def test_a_text_at_which_a_tokenizer_panics_is_its_record_s_own_affair(tmp_path):
    """A panic is no Exception. This one comes from a split that takes too many tries."""
    model = text.load(str(tiny_network.write_text(tmp_path)))
    model.tokenizer.pre_tokenizer = Split(Regex(r"(x+x+)+y|\s"), "removed")
    expected = model(table(["cat runs", "dog"])).features
    odd = model(table(["cat runs", "x" * 32, "dog"]))
    np.testing.assert_array_equal(odd.features[[0, 2]], expected)
    assert odd.reasons == {1: tokens.UNREAD}


def test_normalized_features_have_length_one_and_one_direction(tmp_path):
    plain = text.load(str(tiny_network.write_text(tmp_path)))(table(TEXTS)).features[USED]
    model = text.load(str(tiny_network.write_text(tmp_path, normalize=True)))
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    np.testing.assert_allclose(model(table(TEXTS)).features[USED], plain / lengths, rtol=1e-5)


@pytest.mark.parametrize("private", [False, True])
def test_truncation_is_said(rknn, tmp_path, private):
    network = tiny_network.write_text(tmp_path, max_length=4)
    pq.write_table(table(TEXTS), tmp_path / "t.parquet")
    done = rknn(
        *("embed", "--text", "t.parquet", "--model", network, "--out", "o.parquet", "--json"),
        *(["--private"] if private else []),
    )
    assert done.status == 0, done.err
    assert "1 texts are longer than the model takes, and end at its 4 tokens" in done.err
    assert ("tell nobody how many" in done.err) == private
    card = json.loads(Path("o.card.json").read_text())
    assert card["truncated"] == done.json["truncated"] == (None if private else 1)
    rows = pq.read_table("o.parquet")["embeddings"].to_pylist()
    kept = rows[3] if private else rows[2]
    np.testing.assert_allclose(kept, expected(TEXTS[3], longest=4), rtol=1e-5)


def test_the_digest_is_that_of_the_network_the_tokenizer_and_the_card(tmp_path):
    path = tiny_network.write_text(tmp_path)
    digests = {text.load(str(path)).card["sha256"]}
    path.with_suffix(".json").write_text(json.dumps(tiny_network.TEXT_CARD, indent=4))
    assert text.load(str(path)).card["sha256"] in digests, "spaces are no settings"
    for changes in ({"seed": 1}, {"normalize": True}, {"max_length": 5}):
        digests.add(text.load(str(tiny_network.write_text(tmp_path, **changes))).card["sha256"])
    tiny_network.write_text(tmp_path)
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("sleeps", "snores"))
    digests.add(text.load(str(path)).card["sha256"])
    assert len(digests) == 5


def test_the_private_side_needs_the_model_of_the_card(rknn, tmp_path):
    network = tiny_network.write_text(tmp_path)
    pq.write_table(table(TEXTS), tmp_path / "t.parquet")
    assert rknn("embed", "--text", "t.parquet", "--model", network, "--out", "p.parquet").err
    private = ("embed", "--text", "t.parquet", "--card", "p.card.json", "--private")
    assert rknn(*private, "--out", "r.parquet").status == 0
    tiny_network.write_text(tmp_path, pooling="cls")
    done = rknn(*private, "--out", "s.parquet")
    assert done.status == 2
    assert "sha256, pooling" in done.err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"axes": (1, "t")}, "of any size"),
        ({"axes": ("n", 9)}, "of any size"),
        ({"output": "pooled"}, "pooled"),
        ({"inputs": ["input_ids", "mask"]}, "attention_mask"),
        ({"inputs": ["input_ids"]}, "two or three inputs"),
        ({"pooling": "max"}, "mean or cls"),
        ({"max_length": 0}, "max_length"),
        ({"normalize": "yes"}, "true or false"),
    ],
    ids=str,
)
def test_files_that_do_not_fit_are_told(tmp_path, changes, words):
    path = tiny_network.write_text(tmp_path, **changes)
    with pytest.raises(ValueError, match=words):
        text.load(str(path))


@pytest.mark.parametrize("name", ["words.onnx", "words.json", "tokenizer.json"])
def test_a_missing_file_is_named(tmp_path, name):
    path = tiny_network.write_text(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        text.load(str(path))


# ---- the package sentence_transformers, in whose place a small one stands


class Transformer:
    """Network of the package: the mean of a text's letters."""

    max_seq_length = 5

    def __init__(self, name, *, local_files_only):
        assert local_files_only, "nothing may be downloaded"
        if name.endswith("absent"):
            raise OSError("not in the cache")
        self.tokenizer = Letters()

    def __repr__(self):
        return "Transformer"

    def eval(self):
        """Do nothing, as without dropout."""

    def get_sentence_embedding_dimension(self):
        return 2

    def encode(self, texts, **others):
        cut = [given[: self.max_seq_length] for given in texts]
        return np.array([[len(one), np.mean([*map(ord, one)])] for one in cut])

    def state_dict(self):
        return {}


class Letters:
    backend_tokenizer = SimpleNamespace(to_str=lambda: "letters")

    def __call__(self, texts, *, truncation, verbose):
        return {"input_ids": [[*map(ord, given)] for given in texts]}


@pytest.fixture
def package(monkeypatch):
    module = ModuleType("sentence_transformers")
    module.SentenceTransformer = Transformer
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    monkeypatch.setattr("rknn_jax.embedding.text_sentences.versions", lambda *names: {})
    return module


def test_a_model_of_the_package_is_loaded_without_a_download(rknn, tmp_path, package):
    pq.write_table(table(["cat", "a longer one", None, " "]), tmp_path / "t.parquet")
    command = ("embed", "--text", "t.parquet", "--model", "sentence-transformers/tiny")
    done = rknn(*command, "--private", "--out", "o.parquet", "--json")
    assert done.status == 0, done.err
    assert done.json["model"]["name"] == "tiny"
    assert "1 texts are longer" in done.err
    found = np.array(pq.read_table("o.parquet")["embeddings"].to_pylist(), np.float32)
    np.testing.assert_allclose(found[0], [3, np.mean([*map(ord, "cat")])])
    np.testing.assert_allclose(found[1], [5, np.mean([*map(ord, "a lon")])])
    assert np.isnan(found[2:]).all()


@pytest.mark.parametrize("texts", [["cat", "odd", "dog"], ["odd"]])
def test_a_text_of_which_a_model_makes_other_numbers_is_a_row_of_nan(tmp_path, package, texts):
    class Odd(Transformer):
        def encode(self, texts, **others):
            made = super().encode(texts, **others)
            return made[:, :1] if "odd" in texts else made

    package.SentenceTransformer = Odd
    (tmp_path / "mine").mkdir()
    found = text.load(str(tmp_path / "mine"))(table(texts)).features
    assert found.shape == (len(texts), 2)
    np.testing.assert_array_equal(np.isnan(found).all(axis=1), [one == "odd" for one in texts])


def test_a_folder_is_a_model_of_the_package(tmp_path, package):
    (tmp_path / "mine").mkdir()
    assert text.load(str(tmp_path / "mine")).card["name"] == "mine"


def test_a_model_that_is_not_there_is_told(package):
    with pytest.raises(ValueError, match="to your cache first"):
        text.load("sentence-transformers/absent")


def test_without_the_package_the_remedy_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ValueError, match="pip install sentence-transformers"):
        text.load("sentence-transformers/all-MiniLM-L6-v2")


def test_text_of_white_space_alone_is_none(rknn, tmp_path):
    (tmp_path / "t.csv").write_text('text\n"   "\nwords\n"\n\t"\n')
    done = rknn("embed", "--text", "t.csv", "--out", "t.parquet")
    assert done.status == 0, done.err
    assert "2 records are left out" in " ".join(done.err.split())


def titled(name, titles, bodies):
    pairs = zip(titles, bodies, strict=True)
    lines = [json.dumps({"title": title, "text": body}) for title, body in pairs]
    Path(name).write_text("\n".join(lines) + "\n")


def test_the_card_keeps_the_columns_of_the_text(rknn, tmp_path):
    """The private side reads the same ones in the same order, without naming them."""
    network = tiny_network.write_text(tmp_path, pooling="cls")
    titled("p.jsonl", ["cat", "dog"], ["runs", "sleeps"])
    words = ("--columns", "title", "text")
    done = rknn("embed", "--text", "p.jsonl", "--model", network, *words, "--out", "p.parquet")
    assert done.status == 0, done.err
    assert json.loads(Path("p.card.json").read_text())["model"]["columns"] == ["title", "text"]
    private = ("embed", "--text", "p.jsonl", "--card", "p.card.json", "--private")
    done = rknn(*private, "--out", "r.parquet")
    assert done.status == 0, done.err
    assert pq.read_table("r.parquet")["embeddings"] == pq.read_table("p.parquet")["embeddings"]
    assert rknn(*private, *words, "--out", "s.parquet").status == 0


@pytest.mark.parametrize("columns", [["text"], ["text", "title"]])
def test_columns_that_are_not_the_cards_are_refused(rknn, tmp_path, columns):
    network = tiny_network.write_text(tmp_path)
    titled("p.jsonl", ["cat", "dog"], ["runs", "sleeps"])
    words = ("--columns", "title", "text")
    rknn("embed", "--text", "p.jsonl", "--model", network, *words, "--out", "p.parquet")
    private = ("embed", "--text", "p.jsonl", "--card", "p.card.json", "--private")
    done = rknn(*private, "--columns", *columns, "--out", "r.parquet")
    assert done.status == 2
    told = " ".join(done.err.split())
    assert "Expected --columns title text, as --card p.card.json has them" in told
    assert f"got --columns {' '.join(columns)};" in told


@pytest.mark.parametrize("held", [[], "text", [1]])
def test_damaged_columns_of_a_card_are_refused(rknn, tmp_path, held):
    network = tiny_network.write_text(tmp_path)
    titled("p.jsonl", ["cat", "dog"], ["runs", "sleeps"])
    rknn("embed", "--text", "p.jsonl", "--model", network, "--out", "p.parquet")
    card = json.loads(Path("p.card.json").read_text())
    card["model"]["columns"] = held
    Path("p.card.json").write_text(json.dumps(card))
    done = rknn("embed", "--text", "p.jsonl", "--card", "p.card.json", "--out", "r.parquet")
    assert done.status == 2
    assert "restore the card" in " ".join(done.err.split())


NO_TEXTS = {"a list": ["cat"], "an object": {"raw": "cat"}, "a bool": True, "a number": 1.5}


@pytest.mark.parametrize("kind", NO_TEXTS)
def test_a_public_value_that_is_no_text_is_refused_by_its_row(rknn, tmp_path, kind):
    network = tiny_network.write_text(tmp_path)
    records = [{"text": "cat", "tags": [1]}, {"text": None}, {"text": NO_TEXTS[kind]}]
    Path("p.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    done = rknn("embed", "--text", "p.jsonl", "--model", network, "--out", "p.parquet")
    assert done.status == 2
    told = " ".join(done.err.split())
    assert f"Expected text in column 'text', got {kind} in row 2; save the value" in told


def test_a_private_value_that_is_no_text_is_none(rknn, tmp_path):
    network = tiny_network.write_text(tmp_path)
    values = ["cat", *NO_TEXTS.values(), "dog"]
    Path("r.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in values))
    command = ("embed", "--text", "r.jsonl", "--model", network, "--private")
    done = rknn(*command, "--out", "r.parquet", "--json")
    assert done.status == 0, done.err
    assert done.json["unusable"] is None
    assert "4 private records stay as rows that cast no vote" in " ".join(done.err.split())
    found = np.array(pq.read_table("r.parquet")["embeddings"].to_pylist())
    assert np.isfinite(found).all(axis=1).tolist() == [True, *[False] * 4, True]
    assert "r.jsonl" not in Path("r.card.json").read_text()


def test_a_parquet_column_of_json_is_no_text(rknn, tmp_path):
    if not hasattr(pa, "json_"):
        pytest.skip("this pyarrow has no type of JSON")
    network = tiny_network.write_text(tmp_path)
    column = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"raw": "cat"}', '["dog"]']))
    pq.write_table(pa.table({"text": column}), "p.parquet")
    done = rknn("embed", "--text", "p.parquet", "--model", network, "--out", "o.parquet")
    assert done.status == 2
    assert "Expected text in column 'text'" in " ".join(done.err.split())
