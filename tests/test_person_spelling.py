"""`rknn check` tells the curator how many persons' names differ in capitals or spaces alone."""

import numpy as np
import pandas as pd
import pytest

from tests.test_cli import arguments
from tests.test_drop import write
from tests.test_inputs import LABELS, PRIVATE, PUBLIC, frame

NAMES = ["P12", "p12 ", "P 12", "Müller", "MÜLLER", "Straße", "STRASSE", "q", "r", "12", "012"]


@pytest.mark.long
@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl", "npz"])
def test_the_curator_is_told_of_names_that_are_alike(rknn, tmp_path, form):
    who = np.resize(NAMES, 90)
    path = tmp_path / f"R.{form}"
    private = frame(PRIVATE).assign(labels=LABELS, who=who)
    if form == "npz":
        np.savez(path, embeddings=PRIVATE, labels=LABELS, who=who)
    elif form == "jsonl":
        private.to_json(path, orient="records", lines=True)
    else:
        write(private, path)
    np.savez(tmp_path / "P.npz", embeddings=PUBLIC)
    words = ["check", path.name, "--classes", 3, "--person", "who", "--public", "P.npz"]
    told = " ".join(rknn(*words).out.split())
    assert "7 names of persons are 3, but for capitals or spaces" in told
    given = arguments(private=path.name, person="who")
    dry = rknn(*given, "--dry-run")
    assert dry.status == 0, dry.err
    assert "capitals" not in dry.err + dry.out


@pytest.mark.parametrize("who", [["a", "b"], [1, 2], [1.0, np.nan], ["", "nan"]], ids=str)
def test_persons_of_different_names_are_no_advice(rknn, tmp_path, who):
    write(frame(PRIVATE).assign(labels=LABELS, who=pd.Series(who * 45)), tmp_path / "R.parquet")
    done = rknn("check", "R.parquet", "--classes", 3, "--person", "who")
    assert done.status == 0, done.err
    assert "capitals" not in done.out
