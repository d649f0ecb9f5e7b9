"""Faults of the noise: left out, too small, or drawn once for many numbers."""

from benchmarks._faults._known import CENTRAL, CLIENT, PAID, Known

FAULTS = (
    Known(
        "noise",
        "the discrete Gaussian's noise is half",
        "rknn_jax/privacy/exact_noise.py",
        'domain, metrics.l2_distance(T="f64"), scale=float(stddev)',
        'domain, metrics.l2_distance(T="f64"), scale=float(stddev) / 2',
        ("tests/test_release.py",),
    ),
    Known(
        "noise",
        "noise of one draw serves all cells",
        "rknn_jax/privacy/exact_noise.py",
        "return np.array(release(counts.ravel()), np.int64).reshape(counts.shape)",
        "flat = counts.ravel()\n"
        "    return counts + int((np.array(release(flat)) - flat)[:1].sum())",
        ("tests/test_release.py",),
    ),
    Known(
        "noise",
        "an empty count gets no noise",
        "rknn_jax/privacy/exact_noise.py",
        "return np.array(release(counts.ravel()), np.int64).reshape(counts.shape)",
        "drawn = np.array(release(counts.ravel()), np.int64).reshape(counts.shape)\n"
        "    return np.where(counts == 0, 0, drawn)",
        ("tests/test_release.py",),
    ),
    Known(
        "noise",
        "the two sides of the noise are one draw",
        "rknn_jax/mechanisms/discrete_laplace.py",
        "jax.random.exponential(key, (2, *self.shape), jnp.float32)",
        "jnp.stack([jax.random.exponential(key, self.shape, jnp.float32), jnp.zeros(self.shape)])",
        CENTRAL,
    ),
    Known(
        "noise",
        "a client leaves out its noise",
        "rknn_jax/privacy/gaussian_shares.py",
        "return exact_noise.discrete_gaussian(np.zeros(shape, np.int64), self.share_stddev)",
        "return np.zeros(shape, np.int64)",
        CLIENT,
    ),
    Known(
        "noise",
        "noise is shared by the number of clients, not by its root",
        "rknn_jax/privacy/gaussian_shares.py",
        "self.multiplier * self.sensitivity / math.sqrt(self.shares)",
        "self.multiplier * self.sensitivity / self.shares",
        CLIENT,
    ),
    Known(
        "noise",
        "coins beyond a word are left out",
        "rknn_jax/mechanisms/binomial.py",
        "words = -(-coins // WORD)",
        "words = max(1, coins // WORD)",
        ("tests/test_binomial.py",),
    ),
    Known(
        "noise",
        "the selection of classes draws no noise",
        "rknn_jax/release/class_selection.py",
        "exact_noise.discrete_laplace(exact, scale) if names else exact",
        "exact",
        (*PAID, "tests/test_classes.py"),
    ),
)
