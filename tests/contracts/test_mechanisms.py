"""Every mechanism against its contract: exact counting, unbiased estimates of the stated
variance, one trace for all epsilons.
"""

import dataclasses
import functools
import inspect
import math
from typing import Any, NamedTuple

import chex
import jax
import numpy as np
import pytest

from rknn_jax import mechanisms
from rknn_jax.mechanisms import base
from rknn_jax.mechanisms.collision import Collision
from rknn_jax.mechanisms.discrete_laplace import DiscreteLaplace
from rknn_jax.mechanisms.hadamard_response import HadamardResponse
from rknn_jax.mechanisms.local import LocalRandomizer
from rknn_jax.mechanisms.local_hashing import LocalHashing
from rknn_jax.mechanisms.multi_message import MultiMessage
from rknn_jax.privacy.events import Event
from rknn_jax.privacy.guarantee import Guarantee
from tests.conftest import modules, thin

EXAMPLES = [
    example
    for module in modules(mechanisms, leave_out=mechanisms.CONTRACTS)
    for example in module.EXAMPLES
]
CENTRAL = [example for example in EXAMPLES if isinstance(example, base.CentralMechanism)]
each = thin(EXAMPLES)
each_central = pytest.mark.parametrize("mechanism", CENTRAL, ids=str)
MANY = pytest.param(
    [example for example in EXAMPLES if isinstance(example, MultiMessage)][-1],
    marks=pytest.mark.long,
)
"""A client of this one sends a hundred messages."""
SPEAKS_OF_ONE = HadamardResponse | LocalHashing  # of its votes, chosen at random


def thinner(mechanisms):
    """As `thin`, but in `make test` only that of a mechanism's examples with the most votes a
    record, and in `make long` the one whose clients send a hundred messages each.
    """
    most = {
        type(mechanism): max(m.votes_per_record for m in mechanisms if type(m) is type(mechanism))
        for mechanism in mechanisms
    }

    def easy(mechanism):
        return (
            isinstance(mechanism, base.CalibratedMechanism)
            and mechanism.votes_per_record < most[type(mechanism)]
        )

    def marked(mechanism):
        if easy(mechanism):
            return pytest.param(mechanism, marks=pytest.mark.slow)
        return MANY if mechanism is MANY.values[0] else mechanism

    cases = [marked(each) for each in thin(mechanisms).args[1]]
    return pytest.mark.parametrize("mechanism", cases, ids=str)


def thin_to(*kinds):
    """Parametrize by mechanism: in `make test` the last example of some classes, which has the
    most votes a record.
    """
    hardest = [[example for example in EXAMPLES if type(example) is kind][-1] for kind in kinds]
    marked = [
        pytest.param(example, marks=() if example in hardest else pytest.mark.slow)
        for example in EXAMPLES
        if example is not MANY.values[0]
    ]
    return pytest.mark.parametrize("mechanism", [*marked, MANY], ids=str)


each_run = thinner(EXAMPLES)
each_run_central = thinner(CENTRAL)
each_run_local = thinner([m for m in EXAMPLES if isinstance(m, LocalRandomizer)])
each_driven = thin_to(DiscreteLaplace, Collision)
several_votes = thinner(
    [
        m
        for m in EXAMPLES
        if m.votes_per_record > 1 and not isinstance(m, base.CentralMechanism | SPEAKS_OF_ONE)
    ]
)
DRAWS = 4000
RECORDS = 50
SWEEP = (0.5, 1.0, 2.0)


def some_cells(mechanism, num_records=RECORDS, seed=0):
    rng = np.random.default_rng(seed)
    near = np.stack(
        [
            rng.permutation(mechanism.num_queries)[: mechanism.num_neighbors]
            for _ in range(num_records)
        ]
    )
    labels = np.stack(
        [
            rng.permutation(mechanism.num_classes)[: mechanism.labels_per_record]
            for _ in range(num_records)
        ]
    )
    return np.sort(
        (near[:, :, None] * mechanism.num_classes + labels[:, None]).reshape(num_records, -1)
    ).astype(np.int32)


def exact_counts(mechanism, cells):
    flat = np.ravel(cells)
    counts = np.bincount(flat[flat >= 0], minlength=mechanism.num_queries * mechanism.num_classes)
    return counts.reshape(mechanism.num_queries, mechanism.num_classes)


class Runs(NamedTuple):
    """What many runs of a mechanism send, add up to and estimate; the first axis is of the runs."""

    messages: Any  # [runs, RECORDS, ...]
    totals: np.ndarray
    counts: np.ndarray  # [runs, num_queries, num_classes]


DRAWN = slice(0, DRAWS)  # as it is, with a key each
AGAIN, NOISELESS, TWICE, ONCE = range(
    DRAWS, DRAWS + 4
)  # these have the first key: as it is; without noise; with votes named twice or once
SWEPT = slice(DRAWS + 4, DRAWS + 4 + len(SWEEP))


@jax.jit
def driven(mechanisms, client_keys, noise_keys, cells):
    """The one program of a mechanism: each run has its own epsilon, keys and votes."""

    def one(mechanism, client_keys, noise_key, cells):
        messages = jax.vmap(mechanism.randomize)(client_keys, cells)
        totals = mechanism.aggregate(messages)
        return Runs(messages, totals, mechanism.estimate(noise_key, totals, len(cells)))

    return jax.vmap(one)(mechanisms, client_keys, noise_keys, cells)


@jax.jit
def keys_of_clients(keys):
    """Keys of the clients and of the noise in each run, drawn as `base.estimate_counts` does:
    the same for all mechanisms.
    """

    def one(key):
        client_key, noise_key = jax.random.split(key)
        return jax.vmap(lambda client: jax.random.fold_in(client_key, client))(
            np.arange(RECORDS)
        ), noise_key

    return jax.vmap(one)(keys)


@functools.cache
def run_keys():
    """Key data of each run: `DRAWS` different ones, then the first again."""
    draws = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(1), DRAWS)))
    return np.concatenate([draws, np.repeat(draws[:1], SWEPT.stop - DRAWS, axis=0)])


@functools.cache
def all_keys():
    return [
        np.asarray(jax.random.key_data(keys))
        for keys in keys_of_clients(jax.random.wrap_key_data(run_keys()))
    ]


@functools.cache
def runs(mechanism):
    mechanisms = [mechanism] * SWEPT.stop
    cells = [some_cells(mechanism)] * SWEPT.stop
    if isinstance(mechanism, base.CentralMechanism):
        mechanisms[NOISELESS] = dataclasses.replace(mechanism, epsilon=math.inf)
    mechanisms[SWEPT] = [dataclasses.replace(mechanism, epsilon=epsilon) for epsilon in SWEEP]
    if mechanism.votes_per_record > 1:
        cells[TWICE] = named_twice(mechanism)
        cells[ONCE] = named_once(mechanism)
    stacked = jax.tree.map(lambda *leaves: np.array(leaves), *mechanisms)
    keys = [jax.random.wrap_key_data(keys) for keys in all_keys()]
    return jax.tree.map(np.asarray, driven(stacked, *keys, np.stack(cells)))


def named_twice(mechanism):
    """Votes of which every second client names one several times."""
    cells = np.full((RECORDS, mechanism.votes_per_record), -1, np.int32)
    cells[0::2] = 3
    cells[1::2, 0] = 5
    return cells


def named_once(mechanism):
    cells = named_twice(mechanism)
    cells[:, 1:] = -1
    return cells


@jax.jit
def totals_of_halves(mechanism, messages):
    halves = jax.tree.map(lambda leaf: leaf.reshape(2, RECORDS // 2, *leaf.shape[1:]), messages)
    return jax.vmap(mechanism.aggregate)(halves)


@pytest.mark.long
@each_run
def test_shapes_dtypes_and_hashable_structure(mechanism):
    counts = runs(mechanism).counts[0]
    chex.assert_shape(counts, (mechanism.num_queries, mechanism.num_classes))
    chex.assert_type(counts, np.float32)
    chex.assert_shape(mechanism.stddev(counts, RECORDS), counts.shape)
    assert dataclasses.is_dataclass(mechanism)
    with pytest.raises(dataclasses.FrozenInstanceError):
        mechanism.epsilon = 1.0


@each_run
def test_estimates_are_unbiased_with_the_stated_variance(mechanism):
    """4,000 runs: no cell's mean beyond 5 standard errors, no cell's variance beyond 20% (over 5
    errors of the heaviest-tailed noise).

    Together the false-alarm rate is below 1e-4 at this seed.
    """
    if not mechanism.unbiased:
        pytest.skip("releases labels, not estimates")
    drawn = runs(mechanism).counts[DRAWN].astype(np.float64)
    expected = exact_counts(mechanism, some_cells(mechanism))
    stddev = mechanism.stddev(expected, RECORDS)
    assert np.all(np.abs(drawn.mean(0) - expected) < 5 * stddev / math.sqrt(DRAWS))
    np.testing.assert_allclose(drawn.var(0), stddev**2, rtol=0.2)


@each_run_central
def test_without_noise_the_estimate_is_the_count(mechanism):
    counts = runs(mechanism).counts[NOISELESS]
    exact = exact_counts(mechanism, some_cells(mechanism))
    np.testing.assert_array_equal(
        counts if mechanism.unbiased else counts.argmax(1),
        exact if mechanism.unbiased else mechanism.winners(exact),
    )
    assert dataclasses.replace(mechanism, epsilon=math.inf).guarantee(50).epsilon == math.inf


@each_run
def test_totals_of_parts_add_up_to_the_total(mechanism):
    messages, whole, _ = jax.tree.map(lambda leaf: leaf[0], runs(mechanism))
    assert np.issubdtype(whole.dtype, np.integer)
    np.testing.assert_array_equal(
        np.asarray(totals_of_halves(mechanism, messages)).sum(axis=0), whole
    )


@each_run_local
def test_totals_count_the_messages_that_support_a_cell(mechanism):
    """By the definition, whatever shortcut `aggregate` takes."""
    messages, whole, _ = jax.tree.map(lambda leaf: leaf[0], runs(mechanism))
    masks = jax.vmap(mechanism.support)(messages)
    np.testing.assert_array_equal(np.asarray(masks).sum(axis=0), whole)


@each_run
def test_two_keys_differ_and_one_key_repeats(mechanism):
    counts = runs(mechanism).counts
    np.testing.assert_array_equal(counts[0], counts[AGAIN])
    if mechanism.unbiased:
        assert not np.array_equal(counts[0], counts[1])


@several_votes
def test_a_client_that_names_a_vote_twice_sends_what_one_sends_that_names_it_once(mechanism):
    messages = runs(mechanism).messages
    twice, once = (jax.tree.map(lambda leaf, run=run: leaf[run], messages) for run in (TWICE, ONCE))
    chex.assert_trees_all_equal(twice, once)


@each_driven
def test_one_trace_of_the_driver_serves_a_sweep_over_epsilon_and_vmap_agrees(mechanism):
    """With the keys that each client of the runs above has, so that it is known which these are."""
    programs = base._estimate_counts._cache_size()
    for epsilon, expected in zip(SWEEP, runs(mechanism).counts[SWEPT], strict=True):
        counts = base.estimate_counts(
            dataclasses.replace(mechanism, epsilon=epsilon), first_key(), some_cells(mechanism)
        )
        np.testing.assert_allclose(
            counts, expected, rtol=1e-4, atol=1e-2, err_msg=f"epsilon={epsilon}"
        )
    assert base._estimate_counts._cache_size() <= programs + 1


@each_driven
def test_a_vote_that_is_named_twice_counts_once(mechanism):
    """A second one would move a cell by 2, or its bit be kept twice as often, and epsilon is
    calibrated for neither.
    """
    if mechanism.votes_per_record == 1:
        pytest.skip("one vote a record")
    twice, once = (
        base.estimate_counts(mechanism, first_key(), cells)
        for cells in (named_twice(mechanism), named_once(mechanism))
    )
    np.testing.assert_array_equal(twice, once)


@pytest.mark.long
@thin_to(Collision)
def test_the_result_does_not_depend_on_the_block_of_clients(mechanism, monkeypatch):
    """Seven blocks of 7 clients and a rest of one, and two blocks and a rest, against one block."""
    for block in (7, 20):
        monkeypatch.setattr(base, "CLIENTS_PER_BLOCK", block)
        fresh = jax.jit(
            lambda *arguments: base.client_totals.__wrapped__(*arguments)
        )  # traced for this block
        totals = fresh(mechanism, jax.random.split(first_key())[0], some_cells(mechanism))
        np.testing.assert_array_equal(
            totals, runs(mechanism).totals[0], err_msg=f"blocks of {block}"
        )


def first_key():
    return jax.random.wrap_key_data(run_keys()[0])


@each
def test_the_guarantee_says_everything_and_is_what_the_fields_say(mechanism):
    guarantee = mechanism.guarantee(50)
    assert isinstance(guarantee, Guarantee)
    assert guarantee.epsilon == mechanism.epsilon
    assert guarantee.relation == getattr(mechanism, "relation", "replace-one")
    assert guarantee.sampler == "simulation"
    assert "not a private release" in str(guarantee)
    assert all(isinstance(event, Event) and event.parameter > 0 for event in guarantee.events)
    if guarantee.delta == 0 and guarantee.events:
        assert sum(event.pure_epsilon for event in guarantee.events) == pytest.approx(
            guarantee.epsilon
        ), "the events cost what is claimed, whatever the number of neighbors"


@each
def test_votes_of_another_width_than_the_sensitivity_are_refused(mechanism):
    too_wide = np.zeros((5, mechanism.votes_per_record + 1), np.int32)
    with pytest.raises(ValueError, match="num_neighbors and labels_per_record"):
        base.estimate_counts(mechanism, jax.random.key(0), too_wide)
    nobody = np.zeros((0, mechanism.votes_per_record), np.int32)
    if getattr(mechanism, "relation", None) == "add-remove":  # whether there is a record is private
        counts = base.estimate_counts(mechanism, jax.random.key(0), nobody)
        chex.assert_tree_all_finite(counts)
    else:
        with pytest.raises(ValueError, match="num_records >= 1"):
            base.estimate_counts(mechanism, jax.random.key(0), nobody)


@each
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon", 0.0),
        ("epsilon", -1.0),
        ("epsilon", math.nan),
        ("num_classes", 0),
        ("num_neighbors", 99),
        ("labels_per_record", 99),
    ],
)
def test_bad_fields_are_named(mechanism, field, value):
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(mechanism, **{field: value})


@each_central
def test_an_unknown_relation_is_named(mechanism):
    with pytest.raises(ValueError, match="relation='both'"):
        dataclasses.replace(mechanism, relation="both")


@each_central
def test_the_unit_and_the_units_of_a_vote_are_named_and_never_given_by_place(mechanism):
    """A number in a wrong place would make the noise as many times too small."""
    fields = inspect.signature(type(mechanism)).parameters
    assert {fields[name].kind for name in ("unit", "grid")} == {inspect.Parameter.KEYWORD_ONLY}
    assert mechanism.unit == "record"
    assert mechanism.grid == 1
