"""DPDFD: the loss, what one teacher can do to what is released, what it costs, and that a
student learns from nothing but that.
"""

import dataclasses
import functools
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax
from sklearn.datasets import load_digits

from rknn_jax.labelers import _distillation, pate
from rknn_jax.labelers.dpdfd import DPDFD, SMALL, teachers, training
from rknn_jax.labelers.dpdfd.calibration import calibrate, theorem_3_as_published
from rknn_jax.labelers.dpdfd.networks import drawn_painter, student_of
from rknn_jax.labelers.dpdfd.steps import State, first_state, release_targets, train_student
from rknn_jax.labelers.dpdfd.teachers import Votes
from rknn_jax.privacy import accounting, analytic_gaussian
from rknn_jax.privacy.events import Gaussian
from rknn_jax.students import fit
from rknn_jax.students import generator as generators
from rknn_jax.students.models import datalens
from rknn_jax.types import Queries, Records

CLASSES = 3
SHAPE = (6, 6, 1)
QUICK = dataclasses.replace(SMALL, epsilon=math.inf)


def quarters(n, seed=0):
    """Three classes, each a bright quarter of the image."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n).astype(np.int32)
    images = rng.integers(0, 60, (n, *SHAPE)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[3 * (label // 2) : 3 * (label // 2) + 3, 3 * (label % 2) : 3 * (label % 2) + 3] += 180
    return images, labels


IMAGES, LABELS = quarters(300)
ASKED, TRUTH = quarters(40, seed=1)
NUMBERS = np.arange(40, dtype=np.int32)
QUERIES = Queries(np.zeros((40, 1), np.float32), NUMBERS, NUMBERS, np.ones(40, int), ASKED)


dkd = jax.jit(
    _distillation.dkd
)  # the weights are arguments here, so that cases differ in nothing that is compiled
release = functools.partial(jax.jit, static_argnames=("clip", "bound", "whole_batch"))(
    _distillation.release
)
bounded = functools.partial(jax.jit, static_argnames=("clip", "bound"))(_distillation.bounded)


def voted(config, images=IMAGES, labels=LABELS):
    return config.contribute(
        jax.random.key(0), Records(images, labels), lambda x: x, QUERIES, CLASSES
    )


@functools.cache
def quick_votes():
    """The teachers of most runs here."""
    return voted(QUICK)


@pytest.mark.long
def test_nobody_learns_from_a_record_whose_label_no_class_has():
    weights = []
    for label, image in ((-1, 0), (CLASSES, 255)):
        images = IMAGES.copy()
        labels = LABELS.copy()
        images[7] = image
        labels[7] = label
        weights.append(voted(QUICK, images, labels).weights)
    np.testing.assert_array_equal(*weights)


def told(config, votes):
    return config.release(jax.random.key(0), votes, QUERIES, CLASSES)


def same(first, second):
    return all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    )


# The loss.


def reference_dkd(student, teacher, target_weight, other_weight, temperature):
    """In float64 and by its definition: softmax of the logits, of which the target's are left
    out for the second part.
    """
    total = []
    for s, t in zip(
        np.float64(student) / temperature, np.float64(teacher) / temperature, strict=True
    ):
        target = t.argmax()
        (p, q) = (np.exp(log_softmax(t)), np.exp(log_softmax(s)))
        mine = np.array([p[target], p.sum() - p[target]])
        his = np.array([q[target], q.sum() - q[target]])
        others_t = log_softmax(np.delete(t, target))
        others_s = log_softmax(np.delete(s, target))
        parts = np.sum(mine * np.log(mine / his)), np.sum(np.exp(others_t) * (others_t - others_s))
        total.append(temperature**2 * (target_weight * parts[0] + other_weight * parts[1]))
    return np.array(total)


@pytest.mark.parametrize(
    ("num_classes", "weights"),
    [(2, (1, 8, 4)), (10, (1, 8, 4)), (10, (2, 0, 1)), (10, (0, 1, 0.5))],
)
def test_the_loss_is_decoupled_distillation(num_classes, weights):
    rng = np.random.default_rng(0)
    student, teacher = (rng.normal(0, 3, (20, num_classes)).astype(np.float32) for _ in range(2))
    found = dkd(student, teacher, *np.float32(weights))
    np.testing.assert_allclose(
        found, reference_dkd(student, teacher, *weights), rtol=2e-4, atol=1e-5
    )


def test_with_the_teachers_own_weights_the_loss_is_its_divergence():
    """KL = TCKD + (1 - p_t) NCKD; and its gradient is the student's probabilities less the
    teacher's, where a teacher has no doubt too.
    """
    rng = np.random.default_rng(1)
    student, teacher = (rng.normal(0, 2, (20, 10)).astype(np.float32) for _ in range(2))
    p = np.exp(log_softmax(np.float64(teacher), axis=1))
    log_p = log_softmax(teacher, axis=1)
    log_q = log_softmax(student, axis=1)
    target_part, other_part = (
        np.asarray(dkd(student, teacher, *np.float32(weights)))
        for weights in ((1, 0, 1), (0, 1, 1))
    )
    np.testing.assert_allclose(
        target_part + (1 - p.max(1)) * other_part, np.sum(p * (log_p - log_q), axis=1), rtol=1e-4
    )
    sure = 40 * np.eye(10, dtype=np.float32)[:5]
    [gradient] = np.asarray(_distillation.logit_gradients(student[:5], sure[None], 1.0, 0.0, 1.0))
    np.testing.assert_allclose(gradient, np.exp(log_q[:5]) - np.eye(10)[:5], atol=1e-5)


# What one teacher can do.


@pytest.mark.parametrize("bound", ["normalise", "clip"])
@given(
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([1e-30, 1e-6, 1.0, 1e6, 1e18]),
    clip=st.sampled_from([1e-4, 0.3, 1.0, 50.0]),
)
def test_no_bounded_gradient_is_longer_than_the_bound(bound, seed, scale, clip):
    """In float64, of the float32 vectors as they are: the slack is taken off beforehand, so none
    is left.
    """
    gradients = (scale * np.random.default_rng(seed).normal(size=(64, 10))).astype(np.float32)
    gradients[0] = 0
    found = np.asarray(bounded(gradients, clip, bound), np.float64)
    lengths = np.linalg.norm(found, axis=1)
    before = np.linalg.norm(np.float64(gradients), axis=1)
    assert lengths.max() <= np.float32(clip)
    if bound == "normalise" and scale >= 1e-6:
        np.testing.assert_allclose(lengths[1:], clip, rtol=1e-5)
    if bound == "clip":
        np.testing.assert_allclose(lengths, np.minimum(before, clip), rtol=1e-5)


@pytest.mark.parametrize("bound", ["normalise", "clip"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_teacher_whose_gradient_is_not_finite_moves_no_more_than_others(bound, value):
    gradients = np.random.default_rng(0).normal(size=(5, 2, 4)).astype(np.float32)
    gradients[3, 1, 2] = value
    key, noise = jax.random.key(0), np.float32(0)
    found = 5 * np.asarray(release(key, gradients, noise, 0.5, bound, whole_batch=False))
    others = np.delete(gradients, 3, axis=0)
    rest = 4 * np.asarray(release(key, others, noise, 0.5, bound, whole_batch=False))
    assert np.linalg.norm(found - rest, axis=-1).max() <= 0.5 * (1 + 1e-6)


def sums(student, teachers, config):
    """What would be released without noise, times n."""
    gradients = _distillation.logit_gradients(student, teachers, 1.0, 1.0, 1.0)
    mean = release(
        jax.random.key(0), gradients, np.float32(0), config.clip, config.bound, whole_batch=False
    )
    return len(teachers) * np.asarray(mean)


EXTREME = st.sampled_from([-1e4, -30.0, -1.0, 0.0, 1.0, 30.0, 1e4])


@pytest.mark.parametrize("bound", ["normalise", "clip"])
@given(
    st.lists(EXTREME, min_size=4, max_size=4),
    st.lists(EXTREME, min_size=4, max_size=4),
    st.lists(EXTREME, min_size=4, max_size=4),
)
def test_a_teacher_that_changes_altogether_moves_the_sum_by_twice_the_bound(
    bound, student, before, after
):
    config = DPDFD(bound=bound, clip=0.5)
    others = np.random.default_rng(0).normal(size=(6, 1, 4)).astype(np.float32)
    first, second = (
        np.concatenate([others, np.float32(mine)[None, None]]) for mine in (before, after)
    )
    logits = np.float32(student)[None]
    change = np.float64(sums(logits, first, config)) - np.float64(sums(logits, second, config))
    assert np.isfinite(change).all()
    assert np.linalg.norm(change) <= 2 * 0.5 * (1 + 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("bound", ["normalise", "clip"])
def test_that_much_is_reached_and_by_no_image_more(bound):
    """All pairs of what a teacher can say, of those sure of one class, of all but one, or of
    nothing, on several images at once.
    """
    classes = np.eye(4, dtype=np.float32)
    sayings = np.concatenate([20 * classes, -20 * classes, 0 * classes[:1]])
    student = np.random.default_rng(0).normal(0, 0.1, (3, 4)).astype(np.float32)
    config = DPDFD(bound=bound, clip=0.5)
    each = np.stack([sums(student, np.tile(said, (1, 3, 1)), config) for said in sayings]).astype(
        np.float64
    )
    changes = np.linalg.norm(each[:, None] - each[None], axis=-1)
    assert changes.shape == (9, 9, 3)
    assert changes.max() <= 2 * 0.5 * (1 + 1e-5)
    assert (changes.max((0, 1)) > 0.92 * 2 * 0.5).all(), "so none that is much smaller would do"
    gradients = [
        _distillation.logit_gradients(student, np.tile(said, (1, 3, 1)), 1.0, 1.0, 1.0)
        for said in sayings
    ]
    whole = [
        release(jax.random.key(0), each, np.float32(0), 0.5, bound, whole_batch=True)
        for each in gradients
    ]
    moved = np.linalg.norm(
        3 * (np.float64(whole)[:, None] - np.float64(whole)[None]), axis=-1
    ).max()
    assert 0.9 * 2 * 3 * 0.5 < moved <= 2 * 3 * 0.5 * (1 + 1e-5), (
        "a batch's sum moves by B times as much"
    )


def test_a_record_reaches_its_own_teacher_alone():
    part = pate.parts_of(jax.random.key(0), Records(IMAGES, LABELS), pate.PATE(num_teachers=20))
    images = IMAGES.copy()
    labels = LABELS.copy()
    images[7] = 255 - images[7]
    labels[7] = (labels[7] + 1) % CLASSES
    before = quick_votes().weights
    after = voted(QUICK, images, labels).weights
    moved = np.abs(np.asarray(before) - np.asarray(after)).max((1, 2)) > 0
    assert moved.tolist() == [teacher == part[7] for teacher in range(20)]


@pytest.mark.parametrize(("each", "more"), [(2, 17), (8, 38), (2, 300)])
def test_a_person_with_more_records_changes_no_bit_of_other_teachers(each, more):
    """All had the length of the largest part, so that sums were of another order."""
    digits = (15 * load_digits().images[:2]).astype(np.uint8)[..., None]
    count = 30 * each
    images = np.repeat(digits, [count, more], axis=0)
    labels = np.append(np.arange(count) % 2, np.full(more, 2))
    part = np.append(np.arange(count) // each, np.zeros(more, int))
    config = DPDFD(epsilon=1.0, delta=1e-5, unit="person", num_teachers=30)
    before, after = (
        np.asarray(teachers._regressions(images[:n], labels[:n], part[:n], 10, config))
        for n in (count, count + more)
    )
    np.testing.assert_array_equal(before[1:], after[1:])
    assert np.any(before[0] != after[0])


def test_no_teacher_learns_from_a_record_of_no_class():
    """Whatever its image is, all teachers are the same; it is not one of the first class."""
    changed = IMAGES.copy()
    changed[7] = 255 - changed[7]
    labels = LABELS.copy()
    labels[7] = -1
    before, after = (voted(QUICK, images, labels).weights for images in (IMAGES, changed))
    np.testing.assert_array_equal(before, after)
    assert np.any(before != quick_votes().weights)


def test_a_person_reaches_one_teacher_alone():
    config = dataclasses.replace(QUICK, unit="person")
    person = np.arange(300, dtype=np.int32) % 20
    labels = np.where(person == 3, (LABELS + 1) % CLASSES, LABELS)
    before, after = (
        config.contribute(
            jax.random.key(0), Records(IMAGES, known, person), np.asarray, QUERIES, CLASSES
        ).weights
        for known in (LABELS, labels)
    )
    assert np.any(before != after, axis=(1, 2)).sum() == 1


# The noise and its price.


def test_the_noise_is_fresh_for_every_image_and_step_and_as_strong_as_it_says():
    """8,000 draws: the standard deviation is right to 4%, five standard errors."""
    teachers = np.zeros((5, 200, 4), np.float32)
    drawn = [
        np.asarray(
            release(jax.random.key(seed), teachers, np.float32(30), 0.5, "clip", whole_batch=False)
        )
        for seed in range(10)
    ]
    noise = 5 * np.stack(drawn)
    assert noise.std() == pytest.approx(30 * 0.5, rel=0.04)
    assert noise.mean() == pytest.approx(0, abs=5 * 15 / math.sqrt(8000))
    assert len(np.unique(noise)) > 0.99 * noise.size
    rows = noise.reshape(2000, 4)
    assert np.abs(np.corrcoef(rows[:-1, 0], rows[1:, 0])[0, 1]) < 0.12
    shared = release(jax.random.key(0), teachers, np.float32(30), 0.5, "clip", whole_batch=True)
    assert shared.shape == (1, 4)


def test_two_steps_of_a_run_have_noise_of_their_own():
    """Of direct training on one image: its targets differ by noise alone.

    64 pairs of normal numbers correlate by 0.6 or more for less than one key in a million.
    """
    config = dataclasses.replace(
        QUICK, epsilon=1.0, as_published="direct_training", student="linear"
    ).traced()
    image = np.zeros((1, *SHAPE), np.uint8)
    votes = Votes(None, jnp.asarray(image), jnp.zeros(1, jnp.int32))
    slots = 2 * config.batch_size
    state = State(
        *jnp.zeros(2, jnp.int32),
        generator=None,
        generator_optimizer=None,
        student=fit.drawn(student_of(config, CLASSES), jax.random.key(3), image),
        student_optimizer=None,
        average=None,
        images=jnp.zeros((slots, *SHAPE), jnp.uint8),
        targets=jnp.zeros((slots, CLASSES)),
    )
    for _ in range(2):
        state = release_targets(config, jax.random.key(0), votes, jnp.float32(0.4), state)
    log = np.log(np.asarray(state.targets))
    first, second = (log[:, 0] - log[:, 1]).reshape(2, config.batch_size)
    assert np.std(first) > 1
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.6


def test_the_noise_covers_what_a_teacher_moves_the_rounding_of_a_sum_of_many_by():
    key, noise = jax.random.key(0), np.float32(1)
    few, many = (
        n * release(key, np.zeros((n, 2, 4), np.float32), noise, 0.5, "clip", whole_batch=False)
        for n in (5, 2**18)
    )
    assert (many / few >= 1 + (2**18 - 5) * _distillation.SUMMED - 1e-6).all()


@pytest.mark.slow  # the contract of labelers draws under two keys
def test_a_run_draws_other_noise_in_every_step_and_for_every_key():
    """Noise of 10 in the logits, and teachers without an opinion, whose bounded gradients are 5
    long at most.
    """
    static = QUICK.traced()
    multiplier = jnp.float32(10 * 20 / QUICK.gamma)
    votes = Votes(jnp.zeros_like(quick_votes().weights))
    found = []
    for key in (jax.random.key(0), jax.random.key(1)):
        state = first_state(jax.random.key(3), SHAPE, CLASSES, static)
        for _ in range(2):
            state = release_targets(static, key, votes, multiplier, state)
        log = np.log(np.asarray(state.targets[:128]))
        found += list((log[:, 0] - log[:, 1]).reshape(2, 64))
    assert np.isfinite(found).all()
    assert len(np.unique(found)) == 4 * 64
    assert np.abs(np.corrcoef(found) - np.eye(4)).max() < 0.5, "five standard errors, and more"
    assert np.std(found) / math.sqrt(2) == pytest.approx(10, rel=0.3)


TABLE = [
    (1e-3, 1, 256, 1000, 100, 0.0312, 13880, 97.80),
    pytest.param(1e-3, 1, 64, 100, 100, 0.0040, 141.2, 8.193, marks=pytest.mark.long),
    pytest.param(1e-2, 10, 256, 1000, 100, 1.325, 13880, 97.80, marks=pytest.mark.long),
    pytest.param(1e-4, 10, 256, 10000, 100, 0.0312, 1.3e5, 662.6, marks=pytest.mark.long),
    (1, 1, 1, 100, 100, 0.794, 0.794, 0.794),
]


@pytest.mark.parametrize(
    ("clip", "num_teachers", "batch", "steps", "sigma", "printed", "shared", "each"), TABLE
)
def test_theorem_3_and_what_it_costs(
    clip, num_teachers, batch, steps, sigma, printed, shared, each
):
    """Numbers that were worked out by hand elsewhere; the forms agree where there is one image,
    one teacher and C = 1, and nowhere else.
    """
    found = theorem_3_as_published(sigma, clip, num_teachers, batch, steps, 1e-5)
    assert found == pytest.approx(printed, rel=0.02)
    for count, parameter, expected in (
        (steps, sigma / (2 * batch), shared),
        (batch * steps, sigma / 2, each),
    ):
        costs = accounting.epsilons([Gaussian(parameter, count)], 1e-5)
        assert costs["RDP"] == pytest.approx(expected, rel=5e-3 if expected < 1e5 else 0.03)
        assert 0.85 * costs["RDP"] < costs["analytic Gaussian"] < costs["RDP"]
    for form, epsilon in (("single_teacher", shared), ("single_teacher_per_sample", each)):
        config = DPDFD(epsilon=found, clip=clip, batch_size=batch, steps=steps, as_published=form)
        if num_teachers == 1:
            made = calibrate(config)
            assert made.multiplier == pytest.approx(sigma, rel=1e-6)
            assert made.as_published == pytest.approx(found, rel=1e-6)
            assert 0.85 * epsilon < made.guarantee.epsilon < 1.03 * epsilon
            assert made.guarantee.sampler == "simulation"


def test_epsilon_asks_for_the_noise_that_it_costs():
    """By two accountants; sigma for two runs of the paper's size, worked out elsewhere."""
    for batch, steps, sigmas in ((64, 100, (597, 80)), (256, 1000, (3775, 506))):
        for epsilon, sigma in zip((1.0, 10.0), sigmas, strict=True):
            config = DPDFD(epsilon=epsilon, batch_size=batch, steps=steps)
            made = calibrate(config)
            assert made.multiplier == pytest.approx(sigma, abs=0.6)
            costs = accounting.epsilons(made.guarantee.events, 1e-5)
            assert costs["analytic Gaussian"] == pytest.approx(epsilon, rel=1e-9)
            assert epsilon <= costs["RDP"] <= 1.15 * epsilon
            mu = 2 * math.sqrt(batch * steps) / made.multiplier
            assert analytic_gaussian.gaussian_epsilon(1 / mu, 1e-5) == pytest.approx(
                epsilon, rel=1e-9
            )


@pytest.mark.long
def test_epsilon_does_not_depend_on_the_bound():
    """Noise grows with C as the gradients do; Theorem 3 would have a C of a tenth cost a
    hundredth.
    """
    made = [calibrate(DPDFD(clip=clip)) for clip in (1e-4, 1.0, 1e3)]
    assert len({(noise.multiplier, noise.guarantee) for noise in made}) == 1
    printed = [theorem_3_as_published(100.0, clip, 1, 64, 100, 1e-5) for clip in (1.0, 0.1)]
    assert printed[0] > 10 * printed[1]
    gradients = np.random.default_rng(0).normal(size=(4, 8, 3)).astype(np.float32)
    small, large = (
        np.asarray(
            release(
                jax.random.key(1), gradients, np.float32(2), clip, "normalise", whole_batch=False
            )
        )
        for clip in (1.0, 1024.0)
    )
    np.testing.assert_allclose(1024 * small, large, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["single_teacher", "direct_training"])
def test_what_is_as_published_tells_both_numbers(form):
    config = dataclasses.replace(
        QUICK, epsilon=1.0, as_published=form, steps=2, updates=1, clip=1e-2
    )
    votes = voted(config)
    with pytest.warns(
        UserWarning,
        match=r"Theorem 3 prints epsilon = 1, and the true one is (inf|\d+\.?\d*)"
        r".*cannot be released",
    ):
        answers = told(config, votes=votes)
    numbers = config.not_covered(jax.random.key(0), votes, answers)
    assert numbers["epsilon_as_published"] == pytest.approx(1.0)
    assert numbers["epsilon"] == answers.guarantee.epsilon > 100
    assert answers.guarantee.sampler == "simulation"
    assert (form == "direct_training") == math.isinf(numbers["epsilon"])
    assert (votes.images is not None) == (form == "direct_training")


# The run.


@pytest.mark.slow  # beside its contract
def test_a_student_learns_from_made_up_images_alone():
    answers = told(QUICK, votes=quick_votes())
    assert np.mean(answers.labels == TRUTH) > 0.9
    assert answers.answered.all()
    np.testing.assert_array_equal(answers.counts.argmax(1), answers.labels)
    np.testing.assert_array_equal(answers.model.predict_proba(ASKED), answers.probabilities)
    assert answers.model.features(ASKED).shape == (40, 64)


@pytest.mark.slow  # the labelers' contract trains with teachers that know something
def test_without_teachers_that_know_nothing_is_learned():
    """So that what is learned comes from them: the same run with teachers of no opinion."""
    votes = quick_votes()
    answers = told(QUICK, votes=votes._replace(weights=jnp.zeros_like(votes.weights)))
    assert np.mean(answers.labels == TRUTH) < 0.7


@pytest.mark.long
def test_a_step_stays_on_the_device():
    votes = quick_votes()
    static = QUICK.traced()
    state = first_state(jax.random.key(0), SHAPE, CLASSES, static)
    key = jax.device_put(jax.random.key(4))
    multiplier = jnp.float32(1)
    with jax.transfer_guard("disallow"):
        state = release_targets(static, key, votes, multiplier, state)
        state = train_student(static, key, state)
    assert int(state.step) == int(state.update) == 1


@pytest.mark.slow  # a killed training of noisy SGD goes on in the fast tier
def test_a_killed_run_goes_on_bit_for_bit(tmp_path, monkeypatch):
    """Killed in step 33, after 30 were saved; with the same key it ends as if nothing had been,
    and saves no key.
    """
    config = dataclasses.replace(QUICK, epsilon=5.0, folder=tmp_path)
    votes = quick_votes()
    whole, generator = training.distil(
        jax.random.key(0), votes, SHAPE, CLASSES, dataclasses.replace(config, folder=None)
    )
    steps = []

    def counted(*args, **named):
        steps.append(1)
        if len(steps) == 33:
            raise KeyboardInterrupt
        return release_targets(*args, **named)

    monkeypatch.setattr(training, "SAVE_STEPS", 30)
    monkeypatch.setattr(training, "release_targets", counted)
    with pytest.raises(KeyboardInterrupt):
        training.distil(jax.random.key(0), votes, SHAPE, CLASSES, config)
    again, other = training.distil(jax.random.key(0), votes, SHAPE, CLASSES, config)
    assert len(steps) == 33 + 90
    assert same(whole.params, again.params)
    assert same(generator.params, other.params)
    place = training.folder_of(config, SHAPE, CLASSES)
    assert same(fit.load(place / "student").params, whole.params)
    loaded = generators.load(place / "generator")
    images = loaded(jax.random.key(1), 5)
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(images, generator(jax.random.key(1), 5))
    words = " ".join(str(path) for path in place.rglob("*")) + json.dumps(
        [str(path) for path in place.iterdir()]
    )
    assert "key" not in words


@pytest.mark.long
@pytest.mark.parametrize(
    ("height", "width", "channels", "margin"),
    [pytest.param(28, 28, 1, 4, marks=pytest.mark.slow), (7, 9, 3, 1)],
)
def test_the_generator_makes_images_of_any_size(height, width, channels, margin):
    painter = generators.Painter((height, width, channels), 4, margin, 0.3, 0.3)
    generator = generators.Generator(
        drawn_painter(painter, jax.random.key(0), jnp.zeros((1, 7))), painter, 7
    )
    images = generator(jax.random.key(1), 3)
    assert images.shape == (3, height, width, channels)
    assert images.dtype == np.uint8
    assert not np.array_equal(images[0], images[1])
    inside = np.zeros((height, width), bool)
    inside[margin : height - margin, margin : width - margin] = True
    assert not images[:, ~inside].any()
    assert images[:, inside].std() > 20


def test_the_students_network_is_that_of_datalens():
    """Keras tells 526,410 parameters at 28x28 and ten classes: 320 + 18,496 + 495,680 + 650 are
    515,146; and 13x13 less 2 is 11x11.
    """
    shapes = jax.eval_shape(
        lambda: datalens.Model(10).init(jax.random.key(0), jnp.zeros((1, 28, 28, 1)), train=False)
    )
    assert (
        sum(leaf.size for leaf in jax.tree.leaves(shapes))
        == 320 + 18496 + (11 * 11 * 64 + 1) * 64 + 650
    )
    tiny = jax.eval_shape(
        lambda: datalens.Model(4).init_with_output(
            jax.random.key(0), jnp.zeros((2, 1, 1, 3)), train=False
        )
    )[0]
    assert tiny.shape == (2, 4)


# What is refused.


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"clip": 0.0}, "clip > 0, got clip=0.0"),
        ({"clip": math.inf}, "finite clip"),
        ({"epsilon": 0.0}, "epsilon > 0, got epsilon=0.0; infinity"),
        ({"epsilon": math.nan}, "epsilon > 0"),
        ({"delta": 0.0}, "0 < delta < 1, got delta=0.0"),
        ({"relation": "zero-out"}, "relation to be one of"),
        ({"bound": "trim"}, "bound to be one of normalise, clip"),
        ({"student": "m9"}, "student to be one of"),
        ({"num_teachers": 0}, "num_teachers >= 1"),
        ({"batch_size": 0}, "batch_size >= 1"),
        ({"steps": 0}, "steps >= 1"),
        ({"width": 1}, "width >= 2"),
        ({"redraw": -1}, "redraw >= 0"),
        ({"temperature": 0.0}, "temperature > 0"),
        ({"gamma": -1.0}, "gamma > 0"),
        ({"target_weight": 0.0, "other_weight": 0.0}, "target_weight or other_weight"),
        ({"information": math.nan}, "finite information"),
        ({"ema_decay": 1.0}, "ema_decay < 1"),
        ({"as_published": "yes"}, "as_published to be one of"),
        (
            {"as_published": "single_teacher", "epsilon": math.inf},
            "finite epsilon with as_published=single_teacher",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_mean_nothing_are_refused(changed, words):
    with pytest.raises(ValueError, match=words):
        DPDFD(**changed)


NETWORKS = dataclasses.replace(
    QUICK, teacher="linear", num_teachers=3, teacher_steps=20, teacher_weight_decay=0.0
)
"""Few teachers, which are networks on pixels."""


@pytest.mark.long
def test_a_record_reaches_one_network_alone():
    labels = LABELS.copy()
    labels[5] = (labels[5] + 1) % CLASSES
    before = jax.tree.leaves(voted(NETWORKS).weights)
    after = jax.tree.leaves(voted(NETWORKS, labels=labels).weights)
    differs = [
        np.any(a != b, axis=tuple(range(1, a.ndim))) for a, b in zip(before, after, strict=True)
    ]
    assert np.any(differs, axis=0).sum() == 1


@pytest.mark.long
def test_networks_answer_as_each_of_them_alone_and_teach_a_student():
    votes = voted(NETWORKS)
    logits = np.asarray(teachers.answers(votes, jnp.asarray(ASKED), CLASSES, NETWORKS))
    for number, mine in enumerate(logits):
        head = jax.tree.map(lambda leaf, at=number: np.asarray(leaf[at]), votes.weights)["params"][
            "Dense_0"
        ]
        own = ASKED.reshape(len(ASKED), -1) / 255 @ head["kernel"] + head["bias"]
        np.testing.assert_allclose(mine, own, rtol=1e-4, atol=1e-4)
        assert np.mean(mine.argmax(axis=1) == TRUTH) > 0.8
    found = NETWORKS.release(jax.random.key(0), votes, QUERIES, CLASSES)
    assert (
        found.guarantee
        == QUICK.release(jax.random.key(0), quick_votes(), QUERIES, CLASSES).guarantee
    )
    with pytest.raises(ValueError, match="teacher=linear"):
        NETWORKS.release(jax.random.key(0), quick_votes(), QUERIES, CLASSES)


def test_a_network_without_records_answers_too():
    """Under add-remove, a part may be empty."""
    config = dataclasses.replace(NETWORKS, relation="add-remove", num_teachers=4)
    votes = voted(config, IMAGES[:2], LABELS[:2])
    assert all(len(leaf) == 4 for leaf in jax.tree.leaves(votes.weights))


@pytest.mark.parametrize("count", [0, 1, 12])
def test_pictures_that_are_too_small_for_a_network_are_refused_however_many_there_are(count):
    """Another error for few records told that a part had less than two."""
    few = dataclasses.replace(QUICK, relation="add-remove", teacher="m5")
    private = Records(IMAGES[:count], LABELS[:count])
    with pytest.raises(ValueError, match="21x21 pixels or more for model='m5'"):
        few.contribute(jax.random.key(0), private, np.asarray, QUERIES, CLASSES)


@pytest.mark.long
def test_teachers_and_queries_that_do_not_fit_are_refused():
    votes = quick_votes()
    with pytest.raises(
        ValueError, match="num_classes=4 .* for images .* got weights .*; train them"
    ):
        QUICK.release(jax.random.key(0), votes, QUERIES, 4)
    with pytest.raises(ValueError, match=r"num_teachers=7,.*shape \(20, "):
        dataclasses.replace(QUICK, num_teachers=7).release(
            jax.random.key(0), votes, QUERIES, CLASSES
        )
    larger = dataclasses.replace(QUERIES, images=np.zeros((40, 12, 12, 1), np.uint8))
    with pytest.raises(ValueError, match="8x8 pixels or more with margin=3, got .*smaller margin"):
        dataclasses.replace(QUICK, margin=3).release(jax.random.key(0), votes, QUERIES, CLASSES)
    with pytest.raises(ValueError, match=r"images \(12, 12, 1\)"):
        QUICK.release(jax.random.key(0), votes, larger, CLASSES)
    with pytest.raises(ValueError, match=r"images=None; set Queries.images"):
        QUICK.release(jax.random.key(0), votes, dataclasses.replace(QUERIES, images=None), CLASSES)
    direct = dataclasses.replace(QUICK, epsilon=1.0, as_published="direct_training")
    alone = voted(dataclasses.replace(QUICK, num_teachers=1))
    with pytest.raises(ValueError, match="private images with as_published=direct_training"):
        direct.release(jax.random.key(0), alone, QUERIES, CLASSES)
    with pytest.raises(ValueError, match="num_teachers=301 with 300 private records"):
        voted(dataclasses.replace(QUICK, num_teachers=301))
    with pytest.raises(ValueError, match="folder of a saved generator"):
        generators.load(Path("nowhere"))


def test_a_removed_record_turns_the_gradient_of_its_teacher_around_too():
    """It moves a gradient from C to -C, as another content does."""
    made = [calibrate(DPDFD(relation=one)) for one in ("replace-one", "add-remove")]
    assert made[0].multiplier == made[1].multiplier
    assert made[0].guarantee.events == made[1].guarantee.events


@pytest.mark.parametrize(("num_units", "teachers"), [(60_000, 4000), (1000, 66), (7, 1)])
def test_the_default_number_of_teachers_follows_the_number_of_records_where_it_is_public(
    num_units, teachers
):
    assert DPDFD().for_units(num_units).teachers == teachers
    assert DPDFD(relation="add-remove").for_units(num_units).teachers == 4000
    assert DPDFD(num_teachers=5000).for_units(num_units).teachers == 5000


@pytest.mark.parametrize("more", [0, 60])
def test_a_default_number_of_teachers_follows_persons_where_these_are_protected(more):
    """One person's records would deal all others anew."""
    config = dataclasses.replace(QUICK, num_teachers=None, unit="person", steps=2)
    person = np.concatenate([np.arange(240) % 30, np.zeros(more, int)]).astype(np.int32)
    private = Records(IMAGES[: 240 + more], LABELS[: 240 + more], person)
    found = config.contribute(jax.random.key(0), private, np.asarray, QUERIES, CLASSES)
    assert len(found.weights) == 30 // 15


@pytest.mark.long
def test_a_default_number_of_teachers_labels_few_records():
    config = dataclasses.replace(QUICK, num_teachers=None, steps=2)
    contribution = voted(config)
    assert len(contribution.weights) == 300 // 15
    answers = config.release(jax.random.key(0), contribution, QUERIES, CLASSES)
    assert len(answers.probabilities) == len(QUERIES.images)
