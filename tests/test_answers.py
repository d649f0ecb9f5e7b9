"""The decoder of noisy counts: against dense Gaussian processes, drawn counts and known truths."""

import itertools

import jax
import numpy as np
import pytest
import scipy.stats
from sklearn.datasets import load_digits, load_wine

from rknn_jax import answers
from rknn_jax.answers import calibration, cholesky, covariance, matching, process, radial, ratios
from rknn_jax.neighbor_graph import self_graph
from rknn_jax.neighbors import nearest
from rknn_jax.queries import kmeans
from rknn_jax.types import Queries


@pytest.fixture(scope="module")
def digits():
    """Public rows, their labels, queries, kernels and votes of other digits, without noise."""
    rows, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(rows))
    public, private = order[:500], order[500:]
    features = rows.astype(np.float32)
    queries = kmeans.select(jax.random.key(0), features[public], 33)
    near = np.asarray(nearest(features[private], queries.features, 1))[:, 0]
    votes = np.zeros((33, 10))
    np.add.at(votes, (near, labels[private]), 1)
    kernels = answers.kernels(queries, features[public], self_graph(features[public]))
    return features[public], labels[public], queries, kernels, votes


def small():
    """Return a few rows in a line, their queries and features."""
    features = np.linspace(0, 5, 12, dtype=np.float32)[:, None] + np.zeros((1, 2), np.float32)
    cluster = np.arange(12) // 3
    centers = np.stack([features[cluster == q].mean(axis=0) for q in range(4)])
    return Queries(centers, np.arange(4) * 3, cluster, np.full(4, 3)), features


def dense(features, kind):
    """Return the covariance of all rows, written out, in float64."""
    rows = features.astype(np.float64) - features.mean(axis=0)
    if kind == "linear":
        return rows @ rows.T
    apart = ((rows[:, None] - rows) ** 2).sum(axis=2)
    return np.exp(-apart / (radial.WIDTHS[1] * np.median(apart)))


@pytest.mark.parametrize("kind", ["linear", "radial"])
def test_the_posterior_is_that_of_the_rows_as_a_gaussian_process(kind):
    """Row by row, with all covariances written out, in float64."""
    queries, features = small()
    mean = np.kron(np.eye(4), np.full((1, 3), 1 / 3))
    whole = dense(features, kind)
    flat = np.eye(12) - 1 / 12
    whole = flat @ whole @ flat
    whole = whole / np.mean(np.diag(mean @ whole @ mean.T)) + 0.05
    public = answers.kernels(queries, features)
    kernel = public.linear if kind == "linear" else public.local[1]
    mixture = process.Mixture(((1.0, kernel),), 0.05)
    counts = np.array([[9.0, 1, 0], [6, 4, 1], [2, 5, 2], [0, 3, 8]])
    seen = process.standardized(counts, np.full((4, 3), 0.7), np.full(4, 3.0), np.ones(3))
    noise = seen.noise[:, 0] + seen.chance[:, 0]
    gain = whole @ mean.T @ np.linalg.inv(mean @ whole @ mean.T + np.diag(noise))
    found = process.posterior(seen, mixture.between)
    rows = mixture.rows(slice(0, 12)) @ found.solved
    assert rows == pytest.approx(gain @ seen.residual, abs=1e-4)
    left = np.diag(mean @ (whole - gain @ mean @ whole) @ mean.T)
    assert found.variance == pytest.approx(left[:, None] * seen.spread**2, abs=1e-4)


def test_covariances_that_rounding_left_indefinite_are_lifted():
    """Of rows whose distances are mostly rounding; the decode failed after the charge."""
    rng = np.random.default_rng(0)
    between = rng.normal(size=(12, 12))
    between = 0.5 * (between + between.T)
    np.fill_diagonal(between, 1)
    assert np.linalg.eigvalsh(between).min() < -1
    counts = rng.uniform(1, 9, (12, 2))
    seen = process.standardized(counts, np.full((12, 2), 1e-3), np.full(12, 1e4), np.ones(2))
    assert np.isfinite(process.log_likelihood(seen, between))
    for found in process.posterior(seen, between):
        assert np.isfinite(found).all()
    assert np.isfinite(process.redrawn(seen, between, 3, rng)).all()
    with pytest.raises(np.linalg.LinAlgError, match="not finite"):
        cholesky.positive(between * np.nan)


def test_the_likelihood_is_that_of_the_counts():
    """Of normal counts, by scipy; classes of equal noise share a factorization, others do not."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 5))
    counts = rng.uniform(0, 30, (5, 3))
    for ratio in (np.ones(3), np.array([0.5, 1.0, 2.0])):
        seen = process.standardized(counts, np.full((5, 3), 2.0), np.full(5, 4.0), ratio)
        total = 0.0
        for c in range(3):
            scale = np.diag(seen.votes * seen.spread[c] / ratio[c])
            noise = np.diag(seen.noise[:, c] + seen.chance[:, c] + 1e-9)
            normal = scipy.stats.multivariate_normal(
                seen.votes * seen.prior[c] / ratio[c], scale @ (root @ root.T + noise) @ scale
            )
            total += normal.logpdf(counts[:, c])
        assert process.log_likelihood(seen, root @ root.T) == pytest.approx(total, rel=1e-9)


def test_a_query_that_nobody_voted_for_says_nothing():
    """Which covariance is likelier depends on it by less than half a nat, and once by 10."""
    rng = np.random.default_rng(0)
    size = np.r_[rng.integers(50, 200, 20), np.ones(10)].astype(float)
    counts = np.round(6 * size[:, None] * rng.dirichlet(np.full(6, 0.3), 30))
    counts[20:] = 0
    seen = process.standardized(counts, np.full(counts.shape, 0.5), size, np.ones(6))
    names = ("residual", "noise", "chance", "votes")
    heard = seen._replace(**{name: getattr(seen, name)[:20] for name in names})
    said = []
    for _ in range(9):
        root = rng.normal(size=(30, 8))
        between = root @ root.T * rng.uniform(0.03, 0.3) + 0.1 * np.eye(30)
        whole = process.log_likelihood(seen, between)
        said.append(whole - process.log_likelihood(heard, between[:20, :20]))
    assert np.ptp(said) < 0.5


def test_redrawn_counts_are_those_of_the_posterior():
    """Mean and variance of the coefficients of 20,000 draws; false alarms below 1e-4."""
    rng = np.random.default_rng(3)
    root = rng.normal(size=(4, 4))
    between = root @ root.T
    counts = rng.uniform(0, 30, (4, 2))
    seen = process.standardized(counts, np.full((4, 2), 3.0), np.full(4, 5.0), np.ones(2))
    drawn = process.redrawn(seen, between, 20_000, rng)
    solved = process.posterior(seen, between).solved
    error = drawn.std(axis=0) / np.sqrt(20_000)
    assert np.all(np.abs(drawn.mean(axis=0) - solved) < 5 * error)
    clear = between + np.diag(seen.chance[:, 0] + 1e-9)
    noisy = np.linalg.inv(clear + np.diag(seen.noise[:, 0]))
    expected = np.linalg.inv(clear) - noisy
    assert np.cov(drawn[:, :, 0].T) == pytest.approx(expected, rel=0.1, abs=0.01)


def test_kernels_are_sound_and_without_their_mean(digits):
    features, _, _, kernels, _ = digits
    weight = kernels.size / kernels.size.sum()
    for kernel in (*kernels.local, kernels.linear, kernels.own):
        assert np.linalg.eigvalsh(kernel.between)[0] > -1e-6
        assert np.mean(np.diag(kernel.between)) == pytest.approx(1)
        assert np.abs(kernel.between @ weight).max() < 1e-6
        across = kernel.rows(slice(0, len(features)))
        means = np.stack([across[kernels.cluster == q].mean(axis=0) for q in range(33)])
        assert means == pytest.approx(kernel.between, abs=0.02), "queries are means of rows"


def test_rows_are_the_same_in_blocks_and_with_few_landmarks(digits, monkeypatch):
    features, _, queries, kernels, votes = digits
    stddev = np.full(votes.shape, 5.0)
    whole = answers.decode(votes, stddev, kernels)
    labels_alone = answers.decode(votes, stddev, kernels, redraws=0)
    np.testing.assert_array_equal(labels_alone.probabilities, whole.probabilities)
    assert np.isnan(labels_alone.stability).all()
    monkeypatch.setattr(covariance, "ROWS_AT_ONCE", 33 * 70)
    in_blocks = answers.decode(votes, stddev, kernels)
    assert in_blocks.probabilities == pytest.approx(whole.probabilities, abs=1e-5)
    monkeypatch.setattr(radial, "BLOCK", 1)
    monkeypatch.setattr(radial, "MOST_LANDMARKS", 200)
    fewer = answers.decode(votes, stddev, answers.kernels(queries, features), redraws=0)
    assert np.mean(fewer.labels == whole.labels) > 0.9


def noisy(votes, epsilon, rng):
    """Return counts with discrete Laplace noise, and its standard deviations."""
    keep = 1 - np.exp(-epsilon / 2)
    noise = rng.geometric(keep, votes.shape) - rng.geometric(keep, votes.shape)
    return votes + noise, np.full(votes.shape, np.sqrt(2) * 2 / epsilon)


@pytest.mark.parametrize(("epsilon", "gain"), [(0.2, 0.08), (1.0, 0.03)])
def test_more_labels_are_right_than_by_the_arg_max(digits, epsilon, gain):
    """Fixed noise: 0.85 against 0.72 at epsilon = 0.2, 0.96 against 0.91 at 1."""
    _, truth, queries, kernels, votes = digits
    rng = np.random.default_rng(1)
    right = np.zeros((6, 2))
    for one in right:
        counts, stddev = noisy(votes, epsilon, rng)
        found = answers.decode(counts, stddev, kernels)
        plain = counts.argmax(axis=1)[queries.cluster]
        one[:] = np.mean(found.labels == truth), np.mean(plain == truth)
        assert found.probabilities.sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert right[:, 0].mean() > right[:, 1].mean() + gain


@pytest.mark.long
def test_what_is_said_of_labels_is_near_the_truth_and_falls_with_noise(digits):
    """Stability within 0.1 of the share of labels that noise left, where there are votes."""
    _, truth, _, kernels, votes = digits
    rng = np.random.default_rng(2)
    exact = answers.decode(votes, np.zeros(votes.shape), kernels)
    assert exact.stability.min() > 0.9, "without noise nothing changes"
    told = []
    for epsilon in (1.0, 0.2, 0.002):
        releases = []
        for _ in range(4):
            found = answers.decode(*noisy(votes, epsilon, rng), kernels)
            stays = np.mean(found.labels == exact.labels)
            said = found.stability.mean(), stays, found.expected_accuracy, found.agreement
            releases.append(said)
        told.append(np.mean(releases, axis=0))
    assert abs(told[0][0] - told[0][1]) < 0.1
    assert told[0][0] > told[1][0] > told[2][0]
    assert told[2][0] < 0.3, "counts that tell nothing leave nothing to be sure of"
    assert told[0][2] > told[1][2] > told[2][2]
    assert told[0][3] > told[2][3]


def test_labels_without_counts_are_read_as_the_votes_of_their_queries(digits):
    """Noise-free labels: rows between two queries no longer follow the nearer one alone."""
    _, truth, queries, kernels, votes = digits
    labels = votes.argmax(axis=1)
    found = answers.decode_labels(labels, 10, kernels)
    assert found.sum(axis=1) == pytest.approx(1, abs=1e-5)
    plain = np.mean(labels[queries.cluster] == truth)
    assert np.mean(found.argmax(axis=1) == truth) > plain + 0.02
    assert np.mean(found.argmax(axis=1) == labels[queries.cluster]) > 0.85


def test_classes_that_are_rare_among_private_records_are_found(digits):
    """Private records of odd digits are thinned to a tenth; fixed noise."""
    features, truth, queries, kernels, votes = digits
    rng = np.random.default_rng(4)
    thinned = rng.binomial(votes.astype(int), np.where(np.arange(10) % 2, 0.1, 1.0))
    counts, stddev = noisy(thinned.astype(float), 5.0, rng)
    found = answers.decode(counts, stddev, kernels)
    rare = found.ratio[1::2].mean() / found.ratio[::2].mean()
    assert 4 < rare < 25, "public rows have ten times as many"
    alike = answers.decode(*noisy(votes, 5.0, rng), kernels)
    assert alike.ratio == pytest.approx(np.ones(10), abs=0.2), "noise alone makes none rare"
    assert np.mean(found.labels == truth) > 0.8


def test_ratios_have_the_gradient_of_their_loss():
    rng = np.random.default_rng(5)
    votes = rng.uniform(0, 20, (12, 4))
    problem = ratios.Problem(votes, rng.uniform(0, 5, (12, 4)), votes @ [1.0, 2.0, 0.5, 1.0])
    share = votes.sum(axis=0) / votes.sum()
    logs = rng.normal(size=4)
    gradient = ratios._loss(logs, share, problem)[1]
    for c, step in enumerate(1e-6 * np.eye(4)):
        after, before = (ratios._loss(logs + sign * step, share, problem)[0] for sign in (1, -1))
        assert gradient[c] == pytest.approx((after - before) / 2e-6, rel=1e-4, abs=1e-6)


def test_junk_among_public_rows_makes_no_class_rare():
    rng = np.random.default_rng(6)
    votes = rng.dirichlet(np.full(5, 0.2), 40) * 100
    size = votes.sum(axis=1)
    size[:8] *= 6
    problem = ratios.Problem(votes, np.full(votes.shape, 4.0), size)
    assert ratios.fit(problem) == pytest.approx(np.ones(5), abs=0.35)


def permanents(likely):
    """Return the permanent, and the probability that row q takes column c, by enumeration."""
    count = len(likely)
    chances = np.zeros((count, count))
    total = 0.0
    for order in itertools.permutations(range(count)):
        product = np.prod(likely[np.arange(count), order])
        total += product
        chances[np.arange(count), order] += product
    return total, chances / total


def test_matching_is_near_the_sum_over_all_permutations():
    """The bound on the permanent is below it, and the classes' chances are near the exact ones."""
    rng = np.random.default_rng(7)
    counts = 40 * np.eye(5)[rng.permutation(5)] + rng.normal(0, 25, (5, 5))
    expected = np.full(5, 40.0)
    for purity in (0.7, 0.95):
        stddev = np.full((5, 5), 25.0)
        likely = matching._log_likely(counts, stddev, expected, purity)
        total, chances = permanents(np.exp(likely - likely.max()))
        exact = np.log(total) + 5 * likely.max() - np.log(120)
        score, found = matching._of_purity(counts, stddev, expected, purity)
        assert exact - 2 < score <= exact + 1e-6
        assert np.abs(found - chances).max() < 0.25


@pytest.mark.long
def test_a_query_for_each_class_is_recognized_by_the_counts():
    """Wine's three clusters are three classes: noise is read jointly. Fixed noise, 15 releases."""
    rows, labels = load_wine(return_X_y=True)
    rows = ((rows - rows.mean(axis=0)) / rows.std(axis=0)).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(rows))
    public, private = order[:60], order[60:]
    queries = kmeans.select(jax.random.key(0), rows[public], 3)
    near = np.asarray(nearest(rows[private], queries.features, 1))[:, 0]
    votes = np.zeros((3, 3))
    np.add.at(votes, (near, labels[private]), 1)
    kernels = answers.kernels(queries, rows[public], self_graph(rows[public]))
    rng = np.random.default_rng(8)
    right = []
    for _ in range(15):
        counts, stddev = noisy(votes, 0.2, rng)
        plain = counts.argmax(axis=1)[queries.cluster]
        found = answers.decode(counts, stddev, kernels, redraws=0).labels
        right.append((np.mean(found == labels[public]), np.mean(plain == labels[public])))
    jointly, alone = np.mean(right, axis=0)
    assert jointly > alone + 0.01


def test_one_class_and_counts_without_votes_are_no_error():
    queries, features = small()
    kernels = answers.kernels(queries, features)
    for counts in (np.zeros((4, 3)), np.eye(4, 3) * 50, np.full((4, 1), 3.0), -np.ones((4, 4))):
        found = answers.decode(counts, np.zeros(counts.shape), kernels)
        assert np.isfinite(found.probabilities).all()
        assert np.isfinite(found.stability).all()
    found = answers.decode(np.eye(4, 3) * 50, np.zeros((4, 3)), kernels)
    assert found.labels[:9].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_counts_whose_sum_noise_made_small_or_negative_are_not_sure():
    """Shares of a sum near 0 are huge: labels seemed certain, and were noise."""
    queries, features = small()
    kernels = answers.kernels(queries, features)
    counts = np.random.default_rng(0).normal(size=(4, 3)) * 30
    for total in (-40.0, 0.0, 1.0):
        found = answers.decode(counts - counts.mean() + total / 12, np.full((4, 3), 30.0), kernels)
        assert found.expected_accuracy < 0.75
        assert found.stability.mean() < 0.75


def test_more_queries_than_can_be_read_together_are_left_to_the_arg_max(monkeypatch, caplog):
    queries, features = small()
    monkeypatch.setattr(covariance, "MOST_QUERIES", 3)
    assert answers.kernels(queries, features) is None
    assert "4 queries" in caplog.text


def test_ratios_of_very_many_classes_are_not_fitted(monkeypatch):
    """The fit takes the cube of their number, and there are more of them than sizes of clusters."""
    monkeypatch.setattr(ratios, "_loss", lambda *_: pytest.fail("fitted"))
    votes = np.random.default_rng(0).uniform(size=(3, ratios.MOST_CLASSES + 1))
    problem = ratios.Problem(votes, 0.1 * votes, np.array([10.0, 20.0, 5.0]))
    np.testing.assert_array_equal(ratios.fit(problem), 1)


def shifted_votes(rng, shift, shares, num_public=1500, num_private=6000):
    """Return the fits of noisy votes for eight overlapping clusters, and the true classes."""
    centers = 4 * rng.normal(size=(8, 32)) / np.sqrt(32)
    truth = rng.integers(0, 8, num_public)
    public = (centers[truth] + rng.normal(size=(num_public, 32))).astype(np.float32)
    labels = rng.choice(8, num_private, p=shares)
    private = centers[labels] + rng.normal(size=(num_private, 32)) + shift
    queries = kmeans.select(jax.random.key(0), public, 100)
    near = np.asarray(nearest(private.astype(np.float32), queries.features, 1))[:, 0]
    votes = np.zeros((100, 8))
    np.add.at(votes, (near, labels), 1)
    noisy = votes + np.round(rng.laplace(scale=2, size=votes.shape))
    kernels = answers.kernels(queries, public, None)
    return answers.fits(noisy, np.full(votes.shape, 2.83), kernels), truth


@pytest.mark.long
def test_a_shift_of_features_is_not_taken_for_other_shares_of_the_classes():
    rng = np.random.default_rng(0)
    moved, truth = shifted_votes(rng, 0.7 * rng.normal(size=32), np.full(8, 1 / 8))
    assert not moved.supported
    labels = [moved.read(one, redraws=0).labels for one in (moved.usual, moved.corrected)]
    assert np.mean(labels[0] == truth) >= np.mean(labels[1] == truth)
    few, truth = shifted_votes(rng, 0.0, rng.dirichlet(np.full(8, 0.7)))
    assert few.supported
    labels = [few.read(one, redraws=0).labels for one in (few.usual, few.equal)]
    assert np.mean(labels[0] == truth) > np.mean(labels[1] == truth)


def test_no_released_probability_is_0_or_1_and_the_label_stays():
    sharp = np.eye(4, dtype=np.float32)[[0, 2, 3]]
    found = calibration.doubted(sharp)
    assert found.min() > 0
    assert found.max() < 1
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)
    assert found.argmax(axis=1).tolist() == [0, 2, 3]


@pytest.mark.parametrize("share", [0.6, 0.75, 0.9])
@pytest.mark.parametrize("num_classes", [2, 7])
def test_probabilities_are_as_sure_as_was_measured(share, num_classes):
    rng = np.random.default_rng(num_classes)
    given = rng.dirichlet(np.full(num_classes, 0.5), 500).astype(np.float32)
    found = calibration.measured(given, share)
    assert found.max(axis=1).mean() == pytest.approx(share, abs=0.01)
    assert found.sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert np.array_equal(found.argmax(axis=1), given.argmax(axis=1))
    if num_classes == 2:
        order = np.argsort(given[:, 0], kind="stable")
        assert (np.diff(found[order, 0]) >= 0).all()


def test_no_measured_share_makes_probabilities_more_than_their_powers_do():
    given = np.array([[0.5, 0.5], [0.9, 0.1]], np.float32)
    assert calibration.measured(given, 1.0)[0].tolist() == [0.5, 0.5]
    assert (calibration.measured(given, 0.0) > 0.3).all()
    sharp = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    assert np.isfinite(calibration.measured(sharp, 0.5)).all()


def test_the_expected_recall_is_that_of_classes_drawn_by_the_probabilities():
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet([3.0, 1.0, 0.3], 100_000).astype(np.float32)
    drawn = (rng.random((len(probabilities), 1)) > probabilities.cumsum(axis=1)).sum(axis=1)
    labels = probabilities.argmax(axis=1)
    recall = [np.mean(labels[drawn == one] == one) for one in range(3)]
    # The rarest class has some 7,000 rows: five standard deviations are .03.
    assert calibration.expected_recall(probabilities) == pytest.approx(recall, abs=0.03)
    half = calibration.expected_recall(probabilities, np.array([0.0, 0.0, np.mean(drawn == 2) * 2]))
    assert half[:2].tolist() == calibration.expected_recall(probabilities)[:2].tolist()
    assert half[2] == pytest.approx(recall[2] / 2, abs=0.03)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5])
def test_no_measure_changes_a_label_whose_classes_are_almost_equally_probable(share):
    half = np.float32(0.5)
    close = [np.nextafter(half, np.float32(0)), np.nextafter(half, np.float32(1))]
    given = np.tile(np.float32(close), (9, 1))
    found = calibration.measured(given, share)
    assert (found.argmax(axis=1) == 1).all()
    assert (calibration.doubted(found).argmax(axis=1) == 1).all()
    assert found.sum(axis=1) == pytest.approx(1, abs=1e-5)
