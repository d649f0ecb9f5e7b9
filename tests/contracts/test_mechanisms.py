"""Every mechanism against its contract: exact counting, unbiased estimates of the stated variance, one trace for all epsilons."""

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rknn_jax import bsvs, mechanisms
from rknn_jax.mechanisms import base
from rknn_jax.mechanisms.collision import Collision
from rknn_jax.mechanisms.discrete_laplace import DiscreteLaplace
from rknn_jax.mechanisms.multi_message import MultiMessage
from rknn_jax.mechanisms.optimized_unary_encoding import OptimizedUnaryEncoding
from rknn_jax.mechanisms.randomized_response import RandomizedResponse
from rknn_jax.mechanisms.subset_selection import SubsetSelection
from rknn_jax.privacy.guarantee import Event, Guarantee
from tests.conftest import modules, thin

EXAMPLES = [example for module in modules(mechanisms, leave_out=mechanisms.CONTRACTS) for example in module.EXAMPLES]
CENTRAL = [example for example in EXAMPLES if isinstance(example, base.CentralMechanism)]
each = thin(EXAMPLES)
each_central = pytest.mark.parametrize("mechanism", CENTRAL, ids=str)
DRAWS = 4000


def some_cells(mechanism, num_records=50, seed=0):
    rng = np.random.default_rng(seed)
    near = np.stack([rng.permutation(mechanism.num_queries)[: mechanism.num_neighbors] for _ in range(num_records)])
    labels = np.stack([rng.permutation(mechanism.num_classes)[: mechanism.labels_per_record] for _ in range(num_records)])
    return bsvs.cells(near, labels, mechanism.num_classes)


def exact_counts(mechanism, cells):
    flat = np.ravel(cells)
    counts = np.bincount(flat[flat >= 0], minlength=mechanism.num_queries * mechanism.num_classes)
    return counts.reshape(mechanism.num_queries, mechanism.num_classes)


@each
def test_shapes_dtypes_and_hashable_structure(mechanism):
    counts = base.estimate_counts(mechanism, jax.random.key(0), some_cells(mechanism))
    chex.assert_shape(counts, (mechanism.num_queries, mechanism.num_classes))
    chex.assert_type(counts, jnp.float32)
    chex.assert_shape(mechanism.stddev(np.asarray(counts), 50), counts.shape)
    assert dataclasses.is_dataclass(mechanism)
    with pytest.raises(dataclasses.FrozenInstanceError):
        mechanism.epsilon = 1.0


@each
def test_estimates_are_unbiased_with_the_stated_variance(mechanism):
    """4,000 runs: no cell's mean beyond 5 standard errors, no cell's variance beyond 20% (over 5 errors of the heaviest-tailed noise).

    Together the false-alarm rate is below 1e-4 at this seed.
    """
    if not mechanism.unbiased:
        pytest.skip("releases labels, not estimates")
    cells = some_cells(mechanism)
    keys = jax.random.split(jax.random.key(1), DRAWS)
    runs = np.asarray(jax.vmap(lambda key: base.estimate_counts(mechanism, key, cells))(keys), np.float64)
    expected, stddev = exact_counts(mechanism, cells), mechanism.stddev(exact_counts(mechanism, cells), len(cells))
    assert np.all(np.abs(runs.mean(0) - expected) < 5 * stddev / math.sqrt(DRAWS))
    np.testing.assert_allclose(runs.var(0), stddev**2, rtol=0.2)


@each_central
def test_without_noise_the_estimate_is_the_count(mechanism):
    noiseless = dataclasses.replace(mechanism, epsilon=math.inf)
    cells = some_cells(mechanism)
    counts = np.asarray(base.estimate_counts(noiseless, jax.random.key(0), cells))
    exact = exact_counts(mechanism, cells)
    np.testing.assert_array_equal(counts if mechanism.unbiased else counts.argmax(1), exact if mechanism.unbiased else exact.argmax(1))
    assert noiseless.guarantee(50).epsilon == math.inf


@thin([DiscreteLaplace(1.0, 3, 2), *(example for example in EXAMPLES if isinstance(example, Collision | RandomizedResponse))])
def test_the_result_does_not_depend_on_the_block_of_clients(mechanism, monkeypatch):
    cells = some_cells(mechanism)
    results = []
    for block in (7, 8192):
        monkeypatch.setattr(base, "CLIENTS_PER_BLOCK", block)
        fresh = jax.jit(lambda cells: base.client_totals.__wrapped__(mechanism, jax.random.key(3), cells))  # traced for this block
        results.append(fresh(cells))
    chex.assert_trees_all_equal(*results)


@each
def test_totals_of_parts_add_up_to_the_total(mechanism):
    cells = some_cells(mechanism)
    keys = jax.random.split(jax.random.key(2), len(cells))
    messages = jax.jit(jax.vmap(mechanism.randomize))(keys, cells)
    aggregate = jax.jit(mechanism.aggregate)
    whole = aggregate(messages)
    assert jnp.issubdtype(whole.dtype, jnp.integer)
    parts = [aggregate(jax.tree.map(lambda x, a=a, b=b: x[a:b], messages)) for a, b in ((0, 20), (20, 50))]
    chex.assert_trees_all_equal(sum(parts), whole)


@pytest.mark.parametrize(
    "mechanism",
    [pytest.param(m, marks=[] if isinstance(m, DiscreteLaplace | Collision | MultiMessage) else pytest.mark.slow) for m in EXAMPLES],
    ids=str,
)
def test_one_trace_serves_a_sweep_over_epsilon_and_vmap_agrees(mechanism):
    cells = some_cells(mechanism)
    sweep = [dataclasses.replace(mechanism, epsilon=epsilon) for epsilon in (0.5, 1.0, 2.0)]
    chex.clear_trace_counter()
    run = jax.jit(chex.assert_max_traces(lambda m: base.estimate_counts(m, jax.random.key(5), cells), n=1))
    one_by_one = [run(m) for m in sweep]
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *sweep)
    together = jax.jit(jax.vmap(lambda m: base.estimate_counts(m, jax.random.key(5), cells)))(stacked)
    chex.assert_trees_all_close(together, jnp.stack(one_by_one), rtol=1e-4, atol=1e-2)


@each
def test_two_keys_differ_and_one_key_repeats(mechanism):
    cells = some_cells(mechanism)
    first, again, other = (np.asarray(base.estimate_counts(mechanism, jax.random.key(k), cells)) for k in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    if mechanism.unbiased:
        assert not np.array_equal(first, other)


@each
def test_the_guarantee_says_everything_and_is_what_the_fields_say(mechanism):
    guarantee = mechanism.guarantee(50)
    assert isinstance(guarantee, Guarantee)
    assert guarantee.epsilon == mechanism.epsilon
    assert guarantee.relation == getattr(mechanism, "relation", "replace-one")
    assert guarantee.sampler == "simulation"
    assert "not a private release" in str(guarantee)
    assert all(isinstance(event, Event) and event.parameter > 0 for event in guarantee.events)


@each
def test_votes_of_another_width_than_the_sensitivity_are_refused(mechanism):
    too_wide = jnp.zeros((5, mechanism.votes_per_record + 1), jnp.int32)
    with pytest.raises(ValueError, match="num_neighbors and labels_per_record"):
        base.estimate_counts(mechanism, jax.random.key(0), too_wide)
    with pytest.raises(ValueError, match="num_records > 0"):
        base.estimate_counts(mechanism, jax.random.key(0), jnp.zeros((0, mechanism.votes_per_record), jnp.int32))


@each
@pytest.mark.parametrize(
    ("field", "value"),
    [("epsilon", 0.0), ("epsilon", -1.0), ("epsilon", math.nan), ("num_classes", 0), ("num_neighbors", 99), ("labels_per_record", 99)],
)
def test_bad_fields_are_named(mechanism, field, value):
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(mechanism, **{field: value})


@each
def test_a_vote_that_is_named_twice_counts_once(mechanism):
    """A second one would move a cell by 2, or its bit be kept twice as often, and epsilon is calibrated for neither."""
    if mechanism.votes_per_record == 1:
        pytest.skip("one vote a record")
    cells = jnp.asarray([[3] * mechanism.votes_per_record, [5, *[-1] * (mechanism.votes_per_record - 1)]] * 10, jnp.int32)
    alone = jnp.where(jnp.arange(mechanism.votes_per_record)[None] == 0, cells, -1)
    runs = [base.estimate_counts(mechanism, jax.random.key(0), votes) for votes in (cells, alone)]
    chex.assert_trees_all_equal(*runs)


@pytest.mark.parametrize(
    "mechanism", [OptimizedUnaryEncoding(2.0, 3, 2, 2), SubsetSelection(2.0, 3, 2, 2), MultiMessage(2.0, 3, 2, 2, num_clients=9)]
)
def test_a_client_that_names_a_vote_twice_sends_what_one_sends_that_names_it_once(mechanism):
    randomize = jax.jit(jax.vmap(mechanism.randomize, in_axes=(0, None)))
    messages = [randomize(jax.random.split(jax.random.key(0), 50), jnp.asarray(votes)) for votes in ([4, 4], [4, -1])]
    chex.assert_trees_all_equal(*messages)


@each_central
def test_an_unknown_relation_is_named(mechanism):
    with pytest.raises(ValueError, match="relation='both'"):
        dataclasses.replace(mechanism, relation="both")
