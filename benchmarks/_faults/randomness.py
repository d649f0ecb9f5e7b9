"""Faults of random keys and seeds."""

from benchmarks._faults._known import CENTRAL, CLIENT, Known

FAULTS = (
    Known(
        "keys",
        "one key samples in all rounds",
        "rknn_jax/algorithm.py",
        "stage_key(keys.noise, Stage.SAMPLING, step)",
        "stage_key(keys.noise, Stage.SAMPLING)",
        ("tests/test_algorithm.py",),
    ),
    Known(
        "keys",
        "sampling and noise have one key",
        "rknn_jax/algorithm.py",
        "stage_key(keys.noise, Stage.NOISE, step)",
        "stage_key(keys.noise, Stage.SAMPLING, step)",
        ("tests/test_algorithm.py",),
    ),
    Known(
        "keys",
        "noise is drawn from the public key",
        "rknn_jax/algorithm.py",
        "stage_key(keys.noise, Stage.NOISE, step)",
        "stage_key(keys.public, Stage.NOISE, step)",
        ("tests/test_algorithm.py",),
    ),
    Known(
        "keys",
        "all clients have one key",
        "rknn_jax/mechanisms/base.py",
        "jax.vmap(lambda client: jax.random.fold_in(key, client))(clients)",
        "jax.vmap(lambda client: jax.random.fold_in(key, 0 * client))(clients)",
        CENTRAL,
    ),
    Known(
        "keys",
        "keys begin anew in each block of clients",
        "rknn_jax/mechanisms/base.py",
        "clients = first_client + start + jnp.arange(size)",
        "clients = first_client + jnp.arange(size)",
        CENTRAL,
    ),
    Known(
        "keys",
        "a stream of entropy repeats its draws",
        "rknn_jax/privacy/entropy.py",
        "        self._draws += 1\n",
        "",
        ("tests/test_entropy.py", "tests/test_binomial.py"),
    ),
    Known(
        "seeds",
        "fresh entropy has a fixed seed",
        "rknn_jax/privacy/entropy.py",
        "return cls(secrets.token_bytes(SEED_BYTES))",
        "return cls(bytes(SEED_BYTES))",
        ("tests/test_entropy.py", "tests/test_binomial.py"),
    ),
    Known(
        "seeds",
        "the key of noise is a constant",
        "rknn_jax/_internal/keys.py",
        "jax.random.fold_in(jax.random.key(secrets.randbits(32)), secrets.randbits(32))",
        "jax.random.key(0)",
        ("tests/test_distill.py",),
    ),
    Known(
        "seeds",
        "a client's seed is the round's",
        "rknn_jax/federation/client_payments.py",
        "seed = secrets.token_bytes(SEED_BYTES)",
        "seed = bytes.fromhex(round.id)[:SEED_BYTES]",
        CLIENT,
    ),
)
