import dataclasses

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_wine
from sklearn.preprocessing import scale

from rknn_jax import answers, bsvs, mechanisms
from rknn_jax.mechanisms.gaussian import Gaussian
from rknn_jax.mechanisms.permute_and_flip import PermuteAndFlip
from rknn_jax.records.classes import Classes
from rknn_jax.release import inputs, planning, preview
from rknn_jax.release.preview import required_gap
from rknn_jax.release.rehearsal import _sample
from rknn_jax.release.rehearsal import rehearsal as rehearsed
from rknn_jax.release.settings import Settings
from rknn_jax.types import Queries
from tests.options import named_settings

KINDS = ("discrete_laplace", "permute_and_flip", "gaussian")


def make(kind, epsilon=0.5, num_queries=4, num_classes=5, **fields):
    return mechanisms.make(
        kind, epsilon=epsilon, num_queries=num_queries, num_classes=num_classes, **fields
    )


def drawn_flips(mechanism, gap, runs):
    """Share of runs in which a row that leads all rivals by `gap` loses or ties, with the noise
    drawn by NumPy.
    """
    generator = np.random.default_rng(0)
    scale = mechanism.noise_scale
    shape = (runs, mechanism.num_classes)
    if isinstance(mechanism, Gaussian):
        noise = np.round(
            generator.normal(size=shape) * scale
        )  # rounding is the discrete Gaussian to within 1e-6 at this scale
    elif isinstance(mechanism, PermuteAndFlip):
        noise = generator.exponential(scale, shape)
    else:
        tail = np.exp(-1 / scale)
        noise = generator.geometric(1 - tail, shape) - generator.geometric(1 - tail, shape)
    noise[:, 0] += gap
    return np.mean(noise[:, 0] <= noise[:, 1:].max(axis=1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gap", [1, 6, 15])
def test_flip_prob_is_the_law_of_each_mechanism(kind, gap):
    runs = 100_000
    expected = make(kind).flip_prob(gap)
    spread = np.sqrt(expected * (1 - expected) / runs)
    assert (
        abs(drawn_flips(make(kind), gap, runs) - expected) < 4.5 * spread
    )  # false alarm below 1e-5 a case


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epsilon", [1e6, 5.0, 0.3])
@pytest.mark.parametrize("failure_prob", preview.FLIPS)
def test_the_required_gap_is_the_least(kind, epsilon, failure_prob):
    mechanism = make(kind, epsilon)
    gap = required_gap(mechanism, failure_prob)
    assert mechanism.flip_prob(gap) <= failure_prob
    assert gap == 0 or mechanism.flip_prob(gap - 1) > failure_prob


def test_laplace_gaps_are_those_of_bsvs():
    mechanism = make("discrete_laplace", 0.1)
    assert [required_gap(mechanism, p) for p in preview.FLIPS] == [
        bsvs.required_gap(20.0, 5, p) for p in preview.FLIPS
    ]


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.long) if kind == "gaussian" else kind for kind in KINDS],
)
def test_tiny_epsilon_needs_proportionally_large_gaps(kind):
    ratio = required_gap(make(kind, 1e-9), 0.01) / required_gap(make(kind, 1e-3), 0.01)
    scale = make(kind, 1e-9).noise_scale / make(kind, 1e-3).noise_scale
    assert ratio == pytest.approx(scale, rel=2e-3)


def test_permute_and_flip_needs_smaller_gaps_than_laplace_noise():
    assert all(
        required_gap(make("permute_and_flip"), p) < required_gap(make("discrete_laplace"), p)
        for p in preview.FLIPS
    )


def test_votes_follow_the_public_clusters():
    sizes = np.array([10, 20, 30, 40])
    found = preview.preview(make("discrete_laplace", num_neighbors=2), sizes, 1000)
    assert found.expected_votes == (200, 500)
    assert found.expected is None, "nothing is simulated without the public rows"


def test_records_needed_are_just_enough_for_the_median_query():
    sizes = np.array([10, 10, 10])
    mechanism = make("discrete_laplace", num_queries=3)
    found = preview.preview(mechanism, sizes, None)
    gap = found.required_gaps[0.05]
    # Of 90% agreement, 80% of the votes are the lead.
    assert 0.8 * found.records_needed / 3 >= gap > 0.8 * (found.records_needed - 1) / 3


@pytest.mark.parametrize(
    ("num_queries", "num_records", "words"),
    [
        (80, 1000, "fewer queries"),
        (5, 60, "raise epsilon"),
        (5, 100_000, "try more queries"),
        (30, 1300, "suits"),
    ],
)
def test_advice_follows_the_numbers(num_queries, num_records, words):
    mechanism = make("discrete_laplace", num_queries=num_queries)
    assert words in preview.preview(mechanism, np.full(num_queries, 20), num_records).advice


def test_private_n_leaves_no_trace_in_the_preview():
    found = preview.preview(make("discrete_laplace", relation="add-remove"), np.full(4, 25), None)
    assert (found.expected_votes, found.expected, found.suggested_queries) == (None, None, None)


def planned(rows, labels, num_public, tmp_path, **settings):
    """Return a plan with arrays, as a dry run and a release make it."""
    order = np.random.default_rng(0).permutation(len(rows))
    public, private = order[:num_public], order[num_public:]
    classes = Classes(int(labels.max()) + 1)
    data = inputs.data_of(
        rows[public].astype(np.float32),
        rows[private].astype(np.float32),
        labels[private].astype(np.int32),
        classes,
    )
    given = named_settings(Settings, "P", "R", ledger=tmp_path / "ledger", **settings)
    return planning.plan(given, data)


def blobs(num_rows=400, num_classes=4):
    rng = np.random.default_rng(0)
    labels = np.arange(num_rows) % num_classes
    return 8 * np.eye(num_classes)[labels] + rng.normal(size=(num_rows, num_classes)), labels


@pytest.mark.long
def test_the_simulated_accuracy_is_the_agreement_if_there_is_no_noise(tmp_path):
    settings = {"epsilon": 1e6, "allow_large_epsilon": True, "queries": 8}
    expected = planning.expect(planned(*blobs(), 100, tmp_path, **settings)).expected
    assert expected == pytest.approx({1.0: 1, 0.9: 0.9, 0.7: 0.7}, abs=0.01)


@pytest.mark.long
def test_the_simulated_accuracy_is_chance_if_there_is_noise_alone(tmp_path):
    for mechanism in ("discrete_laplace", "permute_and_flip"):
        plan = planned(*blobs(), 100, tmp_path, epsilon=1e-6, queries=8, mechanism=mechanism)
        assert planning.expect(plan).expected[0.9] == pytest.approx(0.25, abs=0.15)


@pytest.mark.long
def test_a_dry_run_reads_no_label(tmp_path):
    rows, labels = blobs()
    settings = {"epsilon": 0.5, "queries": 8, "dry_run": True}
    first, second = (
        planning.expect(planned(rows, given, 100, tmp_path, **settings))
        for given in (labels, labels[::-1].copy())
    )
    assert first == second


@pytest.mark.long
def test_a_dry_run_at_a_small_epsilon_leaves_out_what_nobody_can_release(tmp_path):
    """Binomial noise, of which more coins than any has time for."""
    settings = {"epsilon": 1e-4, "delta": 1e-6, "mechanism": "gaussian", "queries": 8}
    found = planning.expect(planned(*blobs(), 100, tmp_path, **settings))
    others = " ".join(found.alternatives)
    assert found.expected
    assert "permute_and_flip" in others
    assert "binomial" not in others


def test_many_public_rows_are_sampled_in_proportion():
    cluster = np.repeat(np.arange(5), [1, 9, 5_990, 4_000, 10_000])
    queries = Queries(np.zeros((5, 2)), np.zeros(5, int), cluster, np.bincount(cluster))
    rows = _sample(queries)
    assert len(np.unique(rows)) == len(rows)
    np.testing.assert_array_equal(np.bincount(cluster[rows]), [1, 2, 1198, 800, 2000])


@pytest.mark.long
@pytest.mark.parametrize("epsilon", [0.5, 1.0])
def test_a_release_says_what_the_dry_run_said(tmp_path, epsilon):
    plan = planned(*load_digits(return_X_y=True), 600, tmp_path, epsilon=epsilon)
    public = plan.data.public
    mechanism = plan.question.noise.mechanism
    rehearsal = rehearsed(plan.settings, public, plan.question.queries, mechanism)
    votes = plan.num_records * plan.question.queries.size[:, None] / 600
    # A mixture would find the groups again that the dry run takes for classes.
    kernels = dataclasses.replace(plan.question.public.side.kernels, components=())
    for agreement in (0.7, 0.9):
        shares = preview.class_shares(rehearsal, agreement)
        truth = shares[rehearsal.cluster]
        told = preview.simulated_accuracy(rehearsal, plan.num_records, truth).mean()
        rng = np.random.default_rng(1)
        stddev = np.full(shares.shape, plan.question.noise.mechanism.noise_stddev)
        noisy = rng.poisson(votes * shares) + rng.normal(scale=stddev)
        decoded = answers.decode(noisy, stddev, kernels, redraws=0)
        assert decoded.expected_accuracy == pytest.approx(told, abs=0.1)


def test_made_up_shares_agree_as_far_as_asked(tmp_path):
    plan = planned(*blobs(), 100, tmp_path, epsilon=1.0, queries=8)
    rehearsal = rehearsed(
        plan.settings, plan.data.public, plan.question.queries, plan.question.noise.mechanism
    )
    for agreement in (0.4, 0.7, 0.9, 1.0):
        shares = preview.class_shares(rehearsal, agreement)
        np.testing.assert_allclose(shares.sum(axis=1), 1)
        found = plan.question.queries.size @ shares.max(axis=1) / plan.question.queries.size.sum()
        assert found == pytest.approx(agreement, abs=1e-3)


@pytest.mark.long
def test_little_data_is_advised_labels_without_counts(tmp_path):
    rows, labels = load_wine(return_X_y=True)
    settings = {"epsilon": 0.05, "queries": 3}
    found = planning.expect(planned(scale(rows), labels, 59, tmp_path, **settings))
    words = "mechanism one_to_one is expected to give"
    assert found.advice.startswith(words)
    better = found.alternatives["mechanism one_to_one"]
    assert better > found.expected[0.9] + preview.BETTER
    assert f"{better:.0%} at 90% agreement, where this gives {found.expected[0.9]:.0%}" in (
        found.advice
    )


@pytest.mark.long
def test_other_settings_are_those_that_a_release_takes(tmp_path):
    rows, labels = blobs()
    names = ("least_squares", "prototypes", "public_prototypes")
    labelers = {f"labeler {name}" for name in names}
    flags = {"queries 4", "queries 16"}
    pure = planning.expect(planned(rows, labels, 100, tmp_path, epsilon=1.0, queries=8))
    assert set(pure.alternatives) == flags | labelers | {"mechanism permute_and_flip"}
    settings = {"epsilon": 1.0, "queries": 8, "mechanism": "gaussian", "delta": 1e-5}
    found = planning.expect(planned(rows, labels, 100, tmp_path / "other", **settings))
    assert set(found.alternatives) >= flags | {
        "mechanism discrete_laplace without delta",
        "mechanism permute_and_flip without delta",
        "labeler prototypes",
        "labeler public_prototypes without delta",
    }


@pytest.mark.long
def test_concerns_of_public_data_are_told_before_a_release(tmp_path):
    rows, labels = blobs()
    plan = planned(rows * [1, 1, 1, 500], labels, 100, tmp_path, epsilon=0.01, queries=3)
    kinds = {one.kind for one in planning.expect(plan).concerns}
    assert kinds == {"unscaled_columns", "few_queries", "thin_votes"}
