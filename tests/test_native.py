"""Native kernels: each library that runs here gives what XLA gives, bit for bit."""

import ctypes
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rknn_jax.kernels import native
from rknn_jax.kernels.native import public_side
from rknn_jax.mechanisms import _distributed, base, collision, local, randomized_response, wheel
from rknn_jax.mechanisms.optimized_unary_encoding import OptimizedUnaryEncoding
from rknn_jax.mechanisms.subset_selection import SubsetSelection, uniform_set


@functools.cache
def libraries():
    """The libraries that were compiled and that this processor runs."""
    folder = Path(native.__file__).parent
    paths = [folder / f"{name}.so" for name in native.PROCESSORS]
    found = [ctypes.CDLL(str(path)) for path in paths if path.exists()]
    return [library for library in found if library.rknn_supported()]


pytestmark = pytest.mark.skipif(not libraries(), reason="no native library was compiled")


def assert_native_is_xla(monkeypatch, run):
    """Compare `run(implementation)` of each library with that of XLA."""
    expected = run("xla")
    for library in libraries():
        monkeypatch.setattr(native, "load", lambda library=library: library)
        np.testing.assert_array_equal(run("native"), expected)


@pytest.mark.parametrize("module", [collision, local, randomized_response])
def test_a_kernel_passes_its_own_comparison(module):
    assert module._native_agrees()


def words(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).integers(0, 2**32, shape, np.uint32))


@pytest.mark.long
@pytest.mark.parametrize(
    ("n", "num_cells", "whole"),
    [(0, 5, False), (1, 1, False), (2049, 333, False), (2049, 333, True), (3, 70, True)],
)
def test_messages_in_intervals_are_counted(monkeypatch, n, num_cells, whole):
    """Whole intervals, as those of the wheel, have a faster form."""
    first, width = words(0, n), words(1, n)
    if whole:
        first, width = (word >> 16 << 16 for word in (first, width))
    width = width.at[: n // 4].set(0)

    def run(form):
        return collision.count_held(words(2, n, 2), first, width, num_cells, implementation=form)

    assert_native_is_xla(monkeypatch, run)


@pytest.mark.long
@pytest.mark.parametrize(
    ("n", "num_cells"), [(0, 5), (1, 1), (1100, 600), (17, 97), (2047, 32), (35, 160)]
)
def test_set_bits_are_counted(monkeypatch, n, num_cells):
    messages = words(0, n, -(-num_cells // 32)).at[: n // 3].set(2**32 - 1)

    def run(form):
        return local.count_bits(messages, num_cells, implementation=form)

    assert_native_is_xla(monkeypatch, run)


@pytest.mark.long
@pytest.mark.parametrize(
    ("num_clients", "count", "digits"), [(1, 1, 24), (6, 31, 3), (67, 200, 24), (3, 20_011, 13)]
)
def test_random_bits_are_those_of_xla(monkeypatch, num_clients, count, digits):
    """All thresholds of interest: none, all, one in the middle, others at random."""
    highest = 2**digits - 1
    thresholds = (
        (words(0, num_clients) & highest)
        .at[:3]
        .set(jnp.asarray([highest // 2 + 1, highest, 0][:num_clients], jnp.uint32))
    )

    def run(form):
        draw = functools.partial(
            randomized_response.bits_below, count=count, digits=digits, implementation=form
        )
        return jax.vmap(draw)(words(1, num_clients, 2), thresholds)

    assert_native_is_xla(monkeypatch, run)


@pytest.mark.long
@pytest.mark.parametrize("num_symbols", [2, 65, 1000])
def test_random_sets_are_those_of_xla(monkeypatch, num_symbols):
    """Sets of all sizes, small and large, of free symbols that differ between clients."""
    bits = np.random.default_rng(0).random((70, num_symbols)) < 0.9
    sizes = (np.linspace(0, 1, 70) * bits.sum(axis=1)).round().astype(np.int32)
    keys = jax.random.split(jax.random.key(0), 70)
    free = jnp.asarray(local.packed(bits))

    def run(form):
        draw = functools.partial(uniform_set, implementation=form)
        return jax.vmap(draw, in_axes=(0, 0, None, 0))(keys, free, num_symbols, sizes)

    assert_native_is_xla(monkeypatch, run)


def test_maps_and_loops_take_kernels():
    """A mapped axis in front is a batch of problems."""
    seeds, first, width = words(0, 3, 40, 2), words(1, 3, 40), words(2, 3, 40)

    def counts(form):
        count = functools.partial(collision.count_held, num_cells=70, implementation=form)
        return jax.jit(jax.vmap(count))(seeds, first, width)

    np.testing.assert_array_equal(counts("native"), counts("xla"))


MECHANISMS = (
    collision.Collision(1.0, 7, 5),
    wheel.Wheel(1.0, 7, 5, num_neighbors=2),
    OptimizedUnaryEncoding(1.0, 7, 5),
    SubsetSelection(1.0, 7, 5),
)


@pytest.mark.long
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: type(mechanism).__name__)
def test_totals_of_clients_are_those_of_xla_on_all_devices(monkeypatch, mechanism):
    votes = np.random.default_rng(0).integers(-1, 35, (80, mechanism.votes_per_record))
    cells = jnp.asarray(votes, jnp.int32)
    called = []
    call = native.call
    monkeypatch.setattr(native, "call", lambda *args, **kw: called.append(1) or call(*args, **kw))

    def totals(*, have_library):
        if not have_library:
            monkeypatch.setattr(native, "load", lambda: None)
        for function in (base.client_totals, _distributed.client_totals):
            function.clear_cache()
        called.clear()
        mesh = _distributed.all_devices()
        found = _distributed.client_totals(mechanism, jax.random.key(3), cells, 5, mesh=mesh)
        assert bool(called) == have_library
        return found

    np.testing.assert_array_equal(totals(have_library=True), totals(have_library=False))


def test_the_public_side_is_that_of_numpy(monkeypatch):
    """Up to rounding, of each library; one that gives something else is not used."""
    for library in libraries():
        monkeypatch.setattr(native, "load", lambda library=library: library)
        assert public_side._agrees()
    monkeypatch.setattr(public_side, "_agrees", lambda: False)
    public_side.runs.cache_clear()
    with pytest.warns(RuntimeWarning, match="not used"):
        assert not public_side.runs()
    public_side.runs.cache_clear()


def test_exponentials_are_near_those_of_double_precision(monkeypatch):
    """A relative error of 3e-7 down to e^-80; what is less is as good as 0."""
    apart = -np.concatenate([np.linspace(0, 80, 4000), [100, 1e4, 1e30, 0, 0, 1e-9, 3e-8, 1]])
    minus = apart.astype(np.float32).reshape(1, -1)[:, : apart.size // 16 * 16]
    expected = np.exp(minus.astype(np.float64))
    for library in libraries():
        monkeypatch.setattr(native, "load", lambda library=library: library)
        found = public_side.radial_means(minus, np.zeros(1), np.array([0, 1]), 1.0)
        np.testing.assert_allclose(found[2], expected, rtol=3e-7, atol=1e-37)
        np.testing.assert_allclose(found[1], expected, rtol=3e-7, atol=1e-37)
        np.testing.assert_allclose(found[0], expected**3, rtol=1e-6, atol=1e-37)
