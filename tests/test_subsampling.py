"""Poisson samples, and the nearest neighbors in them."""

import jax
import numpy as np
import pytest
from scipy import stats

from rknn_jax.kernels import native
from rknn_jax.labelers import _sampled_neighbors
from rknn_jax.labelers._sampled_neighbors import nearest_in_samples

RNG = np.random.default_rng(0)
REFERENCES = RNG.normal(size=(500, 6)).astype(np.float32)
POINTS = RNG.normal(size=(37, 6)).astype(np.float32)


def distances():
    return ((POINTS[:, None].astype(np.float64) - REFERENCES[None]) ** 2).sum(-1)


def sampled(points=POINTS, references=REFERENCES):
    """Return the 5 nearest in two samples of a tenth: one program, as long as shapes are these."""
    return nearest_in_samples(jax.random.key(3), points, references, 5, 0.1, 2)


def test_without_sampling_they_are_the_nearest_of_all():
    found = nearest_in_samples(jax.random.key(0), POINTS, REFERENCES, 9, 1.0)
    np.testing.assert_array_equal(found[:, 0], np.argsort(distances(), axis=1)[:, :9])


@pytest.mark.long
def test_they_are_the_nearest_of_the_sample_that_was_drawn():
    """The same keys give the samples themselves, which a float64 search over them confirms."""
    found = sampled()
    room = _sampled_neighbors.sample_room(500, 0.1, 5)
    exact = distances()
    for point in range(len(POINTS)):
        for step, key in enumerate(
            jax.random.split(jax.random.fold_in(jax.random.key(3), point), 2)
        ):
            sample = np.asarray(_sampled_neighbors.poisson_sample(key, 500, 0.1, room))
            sample = sample[sample < 500]
            np.testing.assert_array_equal(
                found[point, step], sample[np.argsort(exact[point, sample])[:5]]
            )


@pytest.mark.long
def test_blocks_and_room_change_nothing(monkeypatch):
    whole = sampled()
    monkeypatch.setattr(_sampled_neighbors, "LARGEST_BLOCK", 5)
    np.testing.assert_array_equal(sampled(), whole)


def test_every_record_takes_part_independently_with_the_same_probability():
    """20,000 samples of 40 records: 40 inclusion counts, the sizes and 39 neighboring pairs;
    false alarms 1e-4 in all.
    """
    draws = 20_000
    n = 40
    g = 0.3
    keys = jax.random.split(jax.random.key(0), draws)
    drawn = np.asarray(jax.vmap(lambda key: _sampled_neighbors.poisson_sample(key, n, g, n))(keys))
    member = np.zeros((draws, n + 1), bool)
    member[np.arange(draws)[:, None], drawn] = True
    member = member[:, :n]
    limit = stats.norm.isf(1e-4 / 2 / 80)
    assert np.abs(member.sum(0) - draws * g).max() < limit * np.sqrt(draws * g * (1 - g))
    together = (member[:, 1:] & member[:, :-1]).sum(0)
    assert np.abs(together - draws * g**2).max() < limit * np.sqrt(draws * g**2 * (1 - g**2))
    assert abs(member.sum(1).var() - n * g * (1 - g)) < limit * n * g * (1 - g) * np.sqrt(
        2.2 / draws
    )


@pytest.mark.parametrize(
    ("sampling_prob", "coins"), [(0.5, True), pytest.param(0.12, False, marks=pytest.mark.long)]
)
def test_ranks_of_the_neighbours_are_those_of_independent_coins(sampling_prob, coins):
    """The rank among all references of the first neighbor is geometric and that of the k-th
    negative binomial, by either way to draw.

    4,000 points, of which each looks at two samples; false alarms 1e-3 for each of four chi-square
    tests.
    """
    k = 3
    n = 400
    assert (
        _sampled_neighbors.coin_reach(n, sampling_prob, k)
        <= _sampled_neighbors.sample_room(n, sampling_prob, k)
    ) == coins
    references = np.linspace(0, 1, n, dtype=np.float32)[
        :, None
    ]  # the rank of reference i is i for a point at 0
    found = nearest_in_samples(
        jax.random.key(5), np.zeros((4000, 1), np.float32), references, k, sampling_prob, 2
    ).reshape(8000, k)
    assert (np.diff(found, axis=1) > 0).all()
    for which in (0, k - 1):
        law = stats.nbinom(which + 1, sampling_prob)  # failures before success number which + 1
        edges = np.unique(law.ppf(np.linspace(0, 1, 12)[1:-1])).astype(int)
        expected = np.diff(np.concatenate([[0], law.cdf(edges - which), [1]])) * 8000
        observed = np.bincount(np.searchsorted(edges, found[:, which]), minlength=len(edges) + 1)
        assert stats.chisquare(observed[expected > 0], expected[expected > 0]).pvalue > 1e-3
    pairs = found.reshape(4000, 2, k)
    assert abs(np.corrcoef(pairs[:, 0, 0], pairs[:, 1, 0])[0, 1]) < 4 / np.sqrt(4000), (
        "the two samples are independent"
    )


def test_samples_of_different_points_and_steps_differ():
    found = sampled(points=np.repeat(POINTS[:1], 37, 0)).reshape(74, 5)
    assert len({tuple(row) for row in found.tolist()}) == 74


@pytest.mark.long
def test_a_sample_that_is_too_small_leaves_places_empty():
    """Sizes are Bin(500, 0.01): 4 of 10 hold fewer than 5."""
    given = (jax.random.key(0), POINTS, REFERENCES, 5, 0.01)
    found = nearest_in_samples(*given)[:, 0]
    persons = nearest_in_samples(*given, person=np.arange(500))[:, 0]
    np.testing.assert_array_equal(persons, found)
    held = (found >= 0).sum(1)
    assert 0.1 < np.mean(held < 5) < 0.8
    for row, size in zip(found, held, strict=True):
        assert (row[:size] >= 0).all(), "empty places come last"
        assert len(set(row[:size])) == size, "no record votes twice"
    assert (
        nearest_in_samples(jax.random.key(0), POINTS, REFERENCES[:3], 5, 1.0)[:, 0, 3:] == -1
    ).all()


def test_where_all_are_sampled_each_person_is_found_the_first_too():
    given = (jax.random.key(0), POINTS, REFERENCES[:3], 5, 1.0)
    found = nearest_in_samples(*given, person=np.arange(3))
    np.testing.assert_array_equal(found, nearest_in_samples(*given))
    assert (np.sort(found[..., :3], axis=2) == np.arange(3)).all()


FORMS = ["xla", pytest.param("native", marks=pytest.mark.skipif(not native.load(), reason="no"))]


@pytest.mark.long
@pytest.mark.skipif(not native.load(), reason="no C++ compiler")
@pytest.mark.parametrize("sampling_prob", [0.4, 1.0])
def test_coins_fall_alike_on_what_either_implementation_finds(sampling_prob):
    assert _sampled_neighbors.coin_reach(500, 0.4, 5) <= _sampled_neighbors.sample_room(500, 0.4, 5)
    xla, own = (
        nearest_in_samples(
            jax.random.key(1), POINTS, REFERENCES, 5, sampling_prob, 2, implementation=form
        )
        for form in ("xla", "native")
    )
    np.testing.assert_array_equal(own, xla)
    assert (own >= 0).all()


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_another_record_rounds_no_distance_anew(form):
    """Black and white pictures, whose distances are whole numbers and tie by the hundred: a
    record that changes swaps one neighbor, also if it is far away from everything.
    """
    rng = np.random.default_rng(0)
    records = rng.integers(0, 2, (400, 30)).astype(np.float32)
    points = rng.integers(0, 2, (40, 30)).astype(np.float32) * np.float32(0.3)
    for k in (7, 100):

        def found(records, k=k):
            own = nearest_in_samples(
                jax.random.key(0), points, records, k, 1.0, implementation=form
            )
            return own[:, 0]

        before = found(records)
        for changed in (rng.integers(0, 2, 30), *np.outer([0, 1e7, 1e30, 3e38], np.ones(30))):
            others = records.copy()
            others[17] = changed
            after = found(others)
            swaps = [
                len(set(a) - set(b)) for a, b in zip(before.tolist(), after.tolist(), strict=True)
            ]
            assert max(swaps) <= 1, f"k = {k}"


def test_the_smallest_of_many_are_those_of_a_sort():
    """Also where half of them are equal: a tie that another value could decide would be a second
    change of the neighbors.
    """
    smallest = jax.jit(jax.vmap(lambda row: _sampled_neighbors._smallest(row, 9)))
    for values in (2, 50, 10**6):
        drawn = np.random.default_rng(values).integers(0, values, (20, 1003)).astype(np.float32)
        assert drawn.shape[1] >= _sampled_neighbors.FEWEST_RUNS * _sampled_neighbors.RUN * 9
        expected = np.argsort(drawn, axis=1, kind="stable")[:, :9]
        np.testing.assert_array_equal(smallest(drawn), expected, err_msg=f"{values} values")


def test_ties_go_to_the_lowest_index():
    same = np.zeros_like(REFERENCES)
    assert (np.diff(sampled(references=same), axis=2) > 0).all()
    found = nearest_in_samples(jax.random.key(0), POINTS, same, 9, 1.0)[:, 0]
    np.testing.assert_array_equal(found, np.tile(np.arange(9), (37, 1)))


def test_no_references_are_nobodys_neighbors():
    """Under add-remove, whether there is one is private, so this is no error."""
    nobody = sampled(references=np.zeros((0, POINTS.shape[1]), np.float32))
    np.testing.assert_array_equal(nobody, np.full((len(POINTS), 2, 5), -1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sampling_prob": 0.0}, "sampling_prob=0.0"),
        ({"sampling_prob": 1.1}, "sampling_prob=1.1"),
        ({"num_neighbors": 0}, "num_neighbors"),
        ({"references": np.zeros((5, 0), np.float32)}, "references"),
        ({"references": np.zeros((5, 4), np.float32)}, "shapes"),
        ({"references": np.zeros(6, np.float32)}, "shapes"),
        ({"points": np.full((2, 6), np.nan, np.float32)}, "finite"),
    ],
)
def test_bad_input_is_named(change, words):
    given = {
        "points": POINTS,
        "references": REFERENCES,
        "num_neighbors": 2,
        "sampling_prob": 0.5,
    } | change
    with pytest.raises(ValueError, match=words):
        nearest_in_samples(jax.random.key(0), **given)


@pytest.mark.long
@pytest.mark.parametrize(
    "num_references",
    [
        pytest.param(1, marks=pytest.mark.slow),
        pytest.param(1023, marks=pytest.mark.slow),
        1024,
        pytest.param(5000, marks=pytest.mark.slow),
    ],
)
def test_one_reference_more_takes_one_place_and_changes_no_other_distance(num_references):
    """Nearly all distances are alike but for rounding, which a product of another shape would do in
    another way.

    One product of all references lost 88 to 172 of 300 neighbors where a record far from
    everything came to 20,000 of 784 features.
    """
    vector = RNG.normal(size=785).astype(np.float32)
    references = np.stack([RNG.permutation(vector) for _ in range(num_references)])
    points = np.repeat(np.linspace(0.3, 3, 5, dtype=np.float32)[:, None], len(vector), axis=1)
    k = min(300, num_references)
    before = nearest_in_samples(jax.random.key(0), points, references, k, 1.0)[:, 0]
    after = nearest_in_samples(
        jax.random.key(0), points, np.concatenate([references, 100 + references[:1]]), k, 1.0
    )[:, 0]
    np.testing.assert_array_equal(before, after)
