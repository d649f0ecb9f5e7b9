"""Features that one may take for others are told: columns beside lists, and names on one side."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from rknn_jax.cli.federation import _settle
from rknn_jax.federation.inputs import read_public
from rknn_jax.federation.question_notice import tell_question
from rknn_jax.federation.settings import Serve
from rknn_jax.formats import Columns, FormatError
from rknn_jax.release import public_rows
from rknn_jax.release.settings import Settings
from rknn_jax.release.shards import FileShard
from tests.options import named_settings
from tests.test_federation_sums import a_party, a_sum
from tests.test_inputs import LABELS, PRIVATE, PUBLIC, frame

BESIDE = "features are the lists in 'embeddings' alone, and the columns of numbers beside them, age"
NAMES = ("x0", "x1", "x2", "x3")


def lists(rows, **columns):
    return pd.DataFrame({"embeddings": list(rows)}).assign(**columns)


def told_of(folder, form, *, embedding=(), **columns):
    """Return the sentences on public columns of a release."""
    path = folder / f"P.{form}"
    table = lists(PUBLIC, **columns)
    table.to_json(path, orient="records", lines=True) if form == "jsonl" else table.to_parquet(path)
    asked = Columns(embedding or None, public=True, reads_label=False)
    settings = named_settings(Settings, str(path), "R.npz", 1.0, embedding=embedding)
    return public_rows.read(settings, asked, 3).doubts


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_columns_beside_lists_are_told_to_be_no_features(tmp_path, form):
    (sentence,) = told_of(tmp_path, form, age=np.linspace(20, 80, 60), ward="a")
    assert sentence.startswith(BESIDE)
    assert "ward" not in sentence
    assert not told_of(tmp_path, form, ward="a")
    assert not told_of(tmp_path, form, embedding=("embeddings",), age=1.5)
    assert not told_of(tmp_path, form, row=np.arange(60), age=1.5)  # kept by rknn embed


def test_lists_and_columns_that_are_named_together_are_refused(tmp_path):
    lists(PUBLIC, age=1.5).to_parquet(tmp_path / "P.parquet")
    columns = Columns(("embeddings", "age"), public=True)
    with pytest.raises(FormatError, match="one column of lists of numbers with embedding, alone"):
        FileShard(str(tmp_path / "P.parquet"), "--public", columns).layout()


def test_check_tells_of_columns_beside_lists(rknn, tmp_path):
    lists(PUBLIC, age=1.5).to_parquet(tmp_path / "P.parquet")
    lists(PRIVATE, labels=LABELS).to_parquet(tmp_path / "R.parquet")
    done = rknn("check", "R.parquet", "--public", "P.parquet", "--classes", 3)
    assert BESIDE[1:] in " ".join(done.out.split())


@pytest.mark.parametrize("named", [True, False])
def test_serve_tells_which_columns_are_features(tmp_path, capsys, named):
    table = frame(PUBLIC) if named else lists(PUBLIC, age=1.5)
    table.to_parquet(tmp_path / "P.parquet")
    mine = read_public(tmp_path / "P.parquet", None)
    _settle(named_settings(Serve, tmp_path / "P.parquet", tmp_path / "out", "3", 1.0, 3), mine)
    told = " ".join(capsys.readouterr().err.split())
    if named:
        assert "x0, x1, x2, x3; of a client whose columns have no names, their order" in told
    else:
        assert BESIDE in told


@pytest.mark.parametrize("round_names", [NAMES, ()])
@pytest.mark.parametrize("own_names", [NAMES, ()])
def test_a_client_hears_of_names_on_one_side(tmp_path, round_names, own_names):
    round = a_sum(queries=np.zeros((5, 4), np.float32))
    round = dataclasses.replace(round, features=round_names)
    party = dataclasses.replace(a_party(tmp_path, 1), inputs=PRIVATE[:6], features=own_names)
    said = []
    tell_question(round.data, party, lambda *line: said.append(line))
    told = [text for word, text in said if word == "warning"]
    assert len(told) == (bool(round_names) != bool(own_names))
    side = "public" if round_names else "private"
    assert all(f"columns of the {side} side have names" in text for text in told)
