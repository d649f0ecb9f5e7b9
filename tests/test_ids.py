"""Public columns that may be ids are told before a charge, and measured numbers are not."""

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets

from rknn_jax.records.public_values import doubted, find_ids, stand_in
from rknn_jax.release.estimator import ReverseKNNLabeler
from tests.test_cli import arguments
from tests.test_drop import write
from tests.test_inputs import LABELS, PRIVATE, frame

ROWS = 600


def repeated(draw, numbers):
    """Return each number in 1 to 5 rows, `ROWS` in all, a person's rows together."""
    return np.repeat(numbers, draw.integers(1, 6, len(numbers)))[:ROWS]


IDS = {
    "a counter": lambda draw: draw.permutation(repeated(draw, np.arange(400))),
    "a counter from 1 million on": lambda draw: draw.permutation(
        repeated(draw, np.arange(10**6, 10**6 + 400))
    ),
    "codes of six digits": lambda draw: draw.permutation(
        repeated(draw, draw.integers(10**5, 10**6, 400))
    ),
    "rows that stand together": lambda draw: repeated(
        draw, np.unique(np.exp(draw.normal(8, 1, 400)).astype(int))
    ),
    "numbers of twelve digits": lambda draw: draw.permutation(10**11 + np.arange(ROWS)),
    "seconds since 1970": lambda draw: draw.integers(1_700_000_000, 1_800_000_000, ROWS),
    "a part of a larger table": lambda draw: draw.choice(
        np.repeat(np.arange(2000), 3), ROWS, replace=False
    ),
}


def table(draw, rows=ROWS):
    return frame(draw.normal(size=(rows, 4)).astype(np.float32))


@pytest.mark.parametrize("kind", IDS)
def test_ids_that_repeat_are_doubted_by_their_values(kind):
    found = 0
    for seed in range(20):
        draw = np.random.default_rng(seed)
        public = table(draw).assign(a=np.resize(IDS[kind](draw), ROWS))
        told = [*doubted(public.to_numpy(np.float32).T, [*public])]
        assert all("['a']" in sentence for sentence in told)
        found += bool(told)
    assert found >= 17, f"{found} of 20 were told"


def measured():
    """Yield tables of measured numbers, all columns of which are features."""
    for name in ("iris", "wine", "breast_cancer", "digits", "linnerud"):
        yield getattr(datasets, f"load_{name}")().data
    yield datasets.load_diabetes(scaled=False).data
    for image in datasets.load_sample_images().images:  # pixels of 8 bits
        for step in (7, 16, 31):
            yield image[::step, ::step].reshape(-1, 3)
            patches = image[: 8 * (image.shape[0] // 8), :640]
            patches = patches.reshape(-1, 8, 80, 8, 3).swapaxes(1, 2)[..., 0].reshape(-1, 64)
            yield patches[::step]


@pytest.mark.parametrize("alone", [False, True])
def test_measured_numbers_are_not_doubted(alone):
    columns = doubts = 0
    for rows in measured():
        rows = np.asarray(rows, np.float32)
        for start in range(0, rows.shape[1], 1 if alone else rows.shape[1]):
            part = rows[:, start : start + 1] if alone else rows
            beside = np.full((len(rows), 3), 0.5, np.float32)
            whole = np.concatenate([part, beside], axis=1)
            told = [*doubted(whole.T, [f"x{i}" for i in range(whole.shape[1])])]
            columns += part.shape[1]
            doubts += len(told)
    assert columns > 500
    assert doubts <= columns / 500


@pytest.mark.parametrize(
    "make",
    [
        lambda draw: draw.poisson(4, ROWS),
        lambda draw: draw.poisson(2000, ROWS),
        lambda draw: draw.integers(18, 95, ROWS),
        lambda draw: np.round(draw.normal(120, 20, ROWS)),
        lambda draw: np.round(np.exp(draw.normal(10, 1, ROWS))),
        lambda draw: np.round(draw.normal(40_000, 12_000, ROWS), -2),
    ],
    ids=["visits", "cells", "ages", "pressure", "income", "rounded"],
)
def test_counts_of_many_sizes_are_not_doubted(make):
    told = 0
    for seed in range(100):
        draw = np.random.default_rng(seed)
        public = table(draw).assign(a=make(draw))
        told += bool([*doubted(public.to_numpy(np.float32).T, [*public])])
    assert not told


def workdays(draw, years):
    days = draw.integers(0, 365 * years, 3 * ROWS)
    return days[days % 7 < 5][:ROWS]


def seasons(draw, years):
    days = draw.integers(0, 365 * years, 6 * ROWS)
    kept = draw.random(len(days)) < 0.6 + 0.4 * np.cos(2 * np.pi * days / 365)
    return days[kept][:ROWS]


@pytest.mark.parametrize(
    "make",
    [
        lambda draw, years: draw.integers(0, 365 * years, ROWS),
        lambda draw, years: np.sort(draw.integers(0, 365 * years, ROWS)),
        workdays,
        lambda draw, years: np.sort(workdays(draw, years)),
        seasons,
        lambda draw, years: 10 * draw.integers(0, 365 * years, ROWS),
    ],
    ids=["any", "in order", "workdays", "workdays in order", "seasons", "steps of ten"],
)
def test_days_since_a_date_repeat_by_chance(make):
    """Of days that are evenly spread, about 2% are doubted; of each other kind, fewer."""
    told = 0
    for seed in range(25):
        for years in (1, 3, 10):
            draw = np.random.default_rng(seed)
            public = table(draw).assign(a=make(draw, years))
            told += bool([*doubted(public.to_numpy(np.float32).T, [*public])])
    assert told <= 5, f"{told} of 75 were told"


@pytest.mark.parametrize("name", ["days_since_2010", "admissionDate", "hour", "Week of stay"])
def test_columns_that_are_named_like_times_are_no_ids(name):
    draw = np.random.default_rng(0)
    repeated = draw.permutation(np.repeat(np.arange(300), 2))
    for days, rows in ((repeated, ROWS), (draw.choice(900, 30, replace=False), 30)):
        public = table(draw, rows).assign(**{name: days}).to_numpy(np.float32).T
        names = ["x0", "x1", "x2", "x3"]
        assert not [*doubted(public, [*names, name])]
        assert not find_ids(public, [*names, name])
        assert [*doubted(public, [*names, "code"])] or find_ids(public, [*names, "code"])


@pytest.mark.long
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_every_door_tells_of_an_id_with_the_remedy(rknn, tmp_path, form):
    draw = np.random.default_rng(0)
    ids = draw.permutation(np.repeat(np.arange(300), 2))
    public = table(draw).assign(a=ids)
    private = frame(PRIVATE).assign(a=np.arange(90) // 2, labels=LABELS)
    if form == "parquet":  # integers among floats are refused
        public, private = (one.astype({"a": np.float64}) for one in (public, private))
    for name, one in (("P", public), ("R", private)):
        path = tmp_path / f"{name}.{form}"
        if form == "jsonl":
            one.to_json(path, orient="records", lines=True)
        else:
            write(one, path)
    sides = {"public": f"P.{form}", "private": f"R.{form}"}
    words = "['a'] repeats whole numbers that are evenly spread"
    doors = {
        "label": arguments(**sides, dry_run=True),
        "check": ["check", f"R.{form}", "--public", f"P.{form}", "--classes", 3],
        "serve": [
            *("serve", "--public", f"P.{form}", "--classes", 3, "--epsilon", 1, "--clients", 3),
            *("--queries", 4, "--out", "round", "--dry-run"),
        ],
        "embed": ["embed", "--table", f"P.{form}", "--out", "E.parquet"],
    }
    for name, door in doors.items():
        done = rknn(*door)
        told = " ".join((done.err + done.out).split())
        assert done.status == 0, (name, told)
        assert words in told, name
        assert "leave it out with --drop" in told, name
        if name == "embed":
            continue
        done = rknn(*door, "--drop", "a")
        assert words not in " ".join((done.err + done.out).split()), name
    named = [*doors["label"], "--embedding", *public.columns]
    assert words not in " ".join(rknn(*named).err.split())


def test_the_estimator_warns_of_an_id(tmp_path):
    draw = np.random.default_rng(0)
    public = table(draw).assign(a=draw.permutation(np.repeat(np.arange(300), 2)))
    with pytest.warns(UserWarning, match=r"'a'\] repeats whole numbers .* leave it out of X"):
        ReverseKNNLabeler().fit(public)
    pd.testing.assert_index_equal(pd.Index(["x0", "x1", "x2", "x3", "a"]), public.columns)


@pytest.mark.parametrize("value", [-1.0, -999.0, 9999.0])
def test_a_number_that_stands_for_a_missing_one_is_told(value):
    draw = np.random.default_rng(0)
    public = table(draw).assign(a=draw.integers(18, 90, ROWS), b=draw.random(ROWS))
    public.loc[::50, "a"] = value * (1 if value != -1 else 200)
    (told,) = doubted(public.to_numpy(np.float32).T, [*public])
    assert told.startswith("['a'] is ")
    assert "12 of 600 rows, far from all other values (18 to 89)" in told


@pytest.mark.parametrize(
    ("value", "words"),
    [(12, "if these are codes such as 0012 that lost their zeros, read them as text"), (-1e5, "")],
)
def test_codes_that_lost_their_zeros_are_told_beside_missing_numbers(value, words):
    draw = np.random.default_rng(0)
    codes = draw.choice(np.arange(8000, 9000, 25), ROWS)
    codes[::50] = value
    told = stand_in(codes.astype(np.float64), 20)
    assert f"is {value:g} in 12 of 600 rows" in told
    assert told.endswith("leave such fields empty on both sides") if not words else words in told


@pytest.mark.long
def test_a_release_tells_of_a_stand_in_before_its_charge(rknn, tmp_path):
    rows = frame(PRIVATE[:60]).assign(age=np.tile(np.arange(20, 50), 2))
    rows.loc[:3, "age"] = -999
    rows.to_csv("P.csv", index=False)
    frame(PRIVATE).assign(age=30, labels=LABELS).to_csv("R.csv", index=False)
    given = arguments(public="P.csv", private="R.csv")
    done = rknn(*given, "--dry-run")
    assert "['age'] is -999 in 4 of 60 rows" in " ".join(done.err.split())
