"""Faults that a careful programmer could make, each of which breaks a guarantee.

`benchmarks.planted_faults` plants each in a copy of the project, and runs the tests that should
find it. `tests/test_benchmarks.py` asserts that each still fits the source.
"""

from typing import NamedTuple


class Known(NamedTuple):
    """A fault.

    Attributes:
      kind: Kind of fault.
      words: The fault.
      path: File.
      before: Text of the file, which occurs once.
      after: Text in its place.
      tests: Words that choose pytest's tests.
    """

    kind: str
    words: str
    path: str
    before: str
    after: str
    tests: tuple[str, ...]


P = "rknn_jax/privacy/"
M = "rknn_jax/mechanisms/"
L = "rknn_jax/labelers/"
R = "rknn_jax/release/"
F = "rknn_jax/federation/"
SUMS = ("tests/test_prototypes.py",)
PAID = ("tests/test_payers.py",)
MASKS = ("tests/test_secure_sum.py",)
SHARDS = ("tests/test_shards.py", "tests/test_release_labelers.py")
LEDGER = ("tests/test_ledger.py",)
CLIENT = ("tests/test_federation.py", "tests/test_federation_sums.py", "tests/test_binomial.py")
PERSONS = ("tests/test_persons.py", "tests/contracts/test_persons.py")
CENTRAL = ("tests/test_mechanisms.py", "tests/contracts/test_mechanisms.py")

FAULTS = (
    Known(
        "noise",
        "the discrete Gaussian's noise is half",
        P + "exact_noise.py",
        'domain, metrics.l2_distance(T="f64"), scale=float(stddev)',
        'domain, metrics.l2_distance(T="f64"), scale=float(stddev) / 2',
        ("tests/test_release.py",),
    ),
    Known(
        "noise",
        "noise of one draw serves all cells",
        P + "exact_noise.py",
        "return np.array(release(counts.ravel()), np.int64).reshape(counts.shape)",
        "flat = counts.ravel()\n"
        "    return counts + int((np.array(release(flat)) - flat)[:1].sum())",
        ("tests/test_release.py",),
    ),
    Known(
        "noise",
        "an empty count gets no noise",
        P + "exact_noise.py",
        "return np.array(release(counts.ravel()), np.int64).reshape(counts.shape)",
        "drawn = np.array(release(counts.ravel()), np.int64).reshape(counts.shape)\n"
        "    return np.where(counts == 0, 0, drawn)",
        ("tests/test_release.py",),
    ),
    Known(
        "noise",
        "the two sides of the noise are one draw",
        M + "discrete_laplace.py",
        "jax.random.exponential(key, (2, *self.shape), jnp.float32)",
        "jnp.stack([jax.random.exponential(key, self.shape, jnp.float32), jnp.zeros(self.shape)])",
        CENTRAL,
    ),
    Known(
        "noise",
        "a client leaves out its noise",
        P + "gaussian_shares.py",
        "return exact_noise.discrete_gaussian(np.zeros(shape, np.int64), self.share_stddev)",
        "return np.zeros(shape, np.int64)",
        CLIENT,
    ),
    Known(
        "noise",
        "noise is shared by the number of clients, not by its root",
        P + "gaussian_shares.py",
        "self.multiplier * self.sensitivity / math.sqrt(self.shares)",
        "self.multiplier * self.sensitivity / self.shares",
        CLIENT,
    ),
    Known(
        "noise",
        "coins beyond a word are left out",
        M + "binomial.py",
        "words = -(-coins // WORD)",
        "words = max(1, coins // WORD)",
        ("tests/test_binomial.py",),
    ),
    Known(
        "noise",
        "the selection of classes draws no noise",
        R + "class_selection.py",
        "exact_noise.discrete_laplace(exact, scale) if names else exact",
        "exact",
        (*PAID, "tests/test_classes.py"),
    ),
    Known(
        "sensitivity",
        "a replaced record changes as many cells as an added one",
        M + "base.py",
        '(2 if self.relation == "replace-one" else 1)',
        "1",
        CENTRAL,
    ),
    Known(
        "sensitivity",
        "labels of a record are not counted",
        M + "base.py",
        "return self.num_neighbors * self.labels_per_record",
        "return self.num_neighbors",
        CENTRAL,
    ),
    Known(
        "sensitivity",
        "a replaced record moves sums by one radius",
        L + "_class_sums.py",
        'math.hypot(radius, self.count_units) if self.relation == "add-remove" else 2 * radius',
        'math.hypot(radius, self.count_units) if self.relation == "add-remove" else radius',
        SUMS,
    ),
    Known(
        "sensitivity",
        "counts are free in L1 norm",
        L + "_class_sums.py",
        "moved = radius + self.count_units",
        "moved = radius",
        SUMS,
    ),
    Known(
        "sensitivity",
        "a utility falls and rises for one price",
        L + "public_prototypes.py",
        '(2 if self.relation == "replace-one" else 1)',
        "1",
        SUMS,
    ),
    Known(
        "sensitivity",
        "a class that is replaced changes one count",
        R + "class_selection.py",
        '_CHANGED = {"replace-one": 2, "add-remove": 1}',
        '_CHANGED = {"replace-one": 1, "add-remove": 1}',
        ("tests/test_classes.py",),
    ),
    Known(
        "sensitivity",
        "moments of replaced rows move by 1",
        "rknn_jax/queries/_dp_pca.py",
        '"replace-one": math.sqrt(2)',
        '"replace-one": 1.0',
        ("tests/test_dp_pca.py",),
    ),
    Known(
        "sensitivity",
        "a sum of utilities moves by one number",
        L + "public_prototypes.py",
        "GRID * self.grid * math.sqrt(tally.shape[1])",
        "GRID * self.grid",
        CLIENT,
    ),
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
        M + "base.py",
        "jax.vmap(lambda client: jax.random.fold_in(key, client))(clients)",
        "jax.vmap(lambda client: jax.random.fold_in(key, 0 * client))(clients)",
        CENTRAL,
    ),
    Known(
        "keys",
        "keys begin anew in each block of clients",
        M + "base.py",
        "clients = first_client + start + jnp.arange(size)",
        "clients = first_client + jnp.arange(size)",
        CENTRAL,
    ),
    Known(
        "keys",
        "a stream of entropy repeats its draws",
        P + "entropy.py",
        "        self._draws += 1\n",
        "",
        ("tests/test_entropy.py", "tests/test_binomial.py"),
    ),
    Known(
        "seeds",
        "fresh entropy has a fixed seed",
        P + "entropy.py",
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
        ("tests/test_distill.py", "tests/test_cli.py"),
    ),
    Known(
        "seeds",
        "a client's seed is the round's",
        F + "client.py",
        "seed = secrets.token_bytes(SEED_BYTES)",
        "seed = bytes.fromhex(round.id)[:SEED_BYTES]",
        CLIENT,
    ),
    Known(
        "roles",
        "a client adds itself to a sum twice",
        F + "client.py",
        "            if self.client._path(self.round, NOTED).exists() or "
        "self.client._spent(self.round):",
        "            if False:",
        CLIENT,
    ),
    Known(
        "roles",
        "a client opens a sum that it is not in",
        F + "secure_sum.py",
        "if not inside <= self._shares.keys() or self._number not in inside:",
        "if not inside <= self._shares.keys():",
        MASKS,
    ),
    Known(
        "roles",
        "a client opens a sum of few",
        F + "secure_sum.py",
        "        if len(inside) < self._threshold:",
        "        if not inside:",
        MASKS,
    ),
    Known(
        "roles",
        "the share of the other secret is opened",
        F + "secure_sum.py",
        "self._shares[number][number in inside]",
        "self._shares[number][number not in inside]",
        MASKS,
    ),
    Known(
        "roles",
        "a client accepts any threshold",
        F + "secure_sum.py",
        "        if self._threshold < least:",
        "        if self._threshold < 1:",
        MASKS,
    ),
    Known(
        "roles",
        "a server may list keys of its own for a client",
        F + "secure_sum.py",
        "        if own != (self._keys.channel, self._keys.mask):",
        "        if own is None:",
        MASKS,
    ),
    Known(
        "sharing",
        "shares need one client fewer",
        F + "secure_sum_keys.py",
        "for _ in range(threshold - 1)]",
        "for _ in range(threshold - 2)]",
        MASKS,
    ),
    Known(
        "sharing",
        "coefficients of shares are small",
        F + "secure_sum_keys.py",
        "secrets.randbelow(PRIME) for _",
        "secrets.randbelow(2) for _",
        MASKS,
    ),
    Known(
        "sharing",
        "masks are the same in every sum of two clients",
        F + "secure_sum_keys.py",
        'return NAME + b" " + purpose + transcript + struct.pack("<QQ", first, second)',
        'return NAME + b" " + purpose + struct.pack("<QQ", first, second)',
        MASKS,
    ),
    Known(
        "sharing",
        "a client has no mask of its own",
        F + "secure_sum.py",
        "mask = own_mask(self._seed, self._transcript, self._number, self._length)",
        "mask = np.zeros(self._length, np.uint64)",
        MASKS,
    ),
    Known(
        "order of charge",
        "the ledger is charged after a labeler's draw",
        L + "_one_sum.py",
        "        ledger.charge(noise.guarantee, purpose)\n"
        "        return self._answered(noise, contribution, queries)",
        "        answers = self._answered(noise, contribution, queries)\n"
        "        ledger.charge(noise.guarantee, purpose)\n        return answers",
        PAID,
    ),
    Known(
        "order of charge",
        "classes are drawn before the charge",
        R + "class_selection.py",
        "    ledger.charge(guarantee, PURPOSE)\n"
        "    names = sorted(found.counts, key=_order(found))\n"
        "    exact = np.array([found.counts[name] for name in names], np.int64)\n"
        "    noisy = exact_noise.discrete_laplace(exact, scale) if names else exact\n",
        "    names = sorted(found.counts, key=_order(found))\n"
        "    exact = np.array([found.counts[name] for name in names], np.int64)\n"
        "    noisy = exact_noise.discrete_laplace(exact, scale) if names else exact\n"
        "    ledger.charge(guarantee, PURPOSE)\n",
        PAID,
    ),
    Known(
        "order of charge",
        "a sum's release is charged after the draw",
        R + "sum_survey.py",
        "        payer.charge(noise.guarantee, purpose)\n"
        "        return np.asarray(noise.draw(np.asarray(counted.counts)), np.int64)",
        "        drawn = np.asarray(noise.draw(np.asarray(counted.counts)), np.int64)\n"
        "        payer.charge(noise.guarantee, purpose)\n        return drawn",
        (*PAID, "tests/test_release_labelers.py"),
    ),
    Known(
        "order of charge",
        "a charge is not written through to the disk",
        P + "ledger.py",
        "            text = text[file.write(text) :]\n        os.fsync(file.fileno())",
        "            text = text[file.write(text) :]",
        LEDGER,
    ),
    Known(
        "budget",
        "deltas are free in a sum",
        P + "filters.py",
        "return spent.epsilon <= budget.epsilon and spent.delta <= budget.delta",
        "return spent.epsilon <= budget.epsilon",
        ("tests/test_filters.py",),
    ),
    Known(
        "budget",
        "a cost without a divergence is free",
        P + "filters.py",
        "sum(known, Fraction()) if len(known) == len(divergences) else None",
        "sum(known, Fraction())",
        ("tests/test_filters.py",),
    ),
    Known(
        "budget",
        "a ledger of persons takes releases of records",
        P + "ledger.py",
        '            for name in ("relation", "unit"):',
        '            for name in ("relation",):',
        LEDGER,
    ),
    Known(
        "clipping",
        "rows are checked before the division alone",
        P + "clipping.py",
        "    usable = np.isfinite(lengths)\n",
        "    usable = np.isfinite(np.asarray(features, np.float64)).all(axis=1, keepdims=True)\n",
        SUMS,
    ),
    Known(
        "clipping",
        "short rows are made longer",
        P + "clipping.py",
        "np.maximum(np.where(usable, lengths, 0), 1)",
        "np.where(usable & (lengths > 0), lengths, 1)",
        SUMS,
    ),
    Known(
        "clipping",
        "the norm of a sum is that of another noise",
        L + "_class_sums.py",
        '"gaussian": 2, "laplace": 1}',
        '"gaussian": 2, "laplace": 2}',
        SUMS,
    ),
    Known(
        "clipping",
        "a sum takes any term",
        L + "_one_sum.py",
        "if terms.dtype != np.int64 or not self.bounds(terms).all():",
        "if terms.dtype != np.int64:",
        SUMS,
    ),
    Known(
        "rounding",
        "coordinates are rounded to the nearest",
        L + "_class_sums.py",
        "np.trunc(self.ball.clip(points) * GRID)",
        "np.ceil(self.ball.clip(points) * GRID)",
        SUMS,
    ),
    Known(
        "rounding",
        "a client's vector is rounded up",
        F + "polls.py",
        "np.trunc(scaled).astype(np.int64)",
        "np.ceil(scaled).astype(np.int64)",
        CLIENT,
    ),
    Known(
        "rounding",
        "divergences are rounded down",
        P + "filters.py",
        "Fraction(math.ceil(Fraction(value) / STEP))",
        "Fraction(math.floor(Fraction(value) / STEP))",
        ("tests/test_filters.py",),
    ),
    Known(
        "rounding",
        "the scale is the quotient as it is rounded",
        P + "exact_noise.py",
        "    while Fraction(_epsilon(scale, sensitivity)) > charged:",
        "    while False:",
        ("tests/test_release.py",),
    ),
    Known(
        "rounding",
        "probabilities of telling the truth are rounded up",
        P + "entropy.py",
        "math.floor(probability * (1 - ROUNDING) * SURE)",
        "math.ceil(probability * (1 + ROUNDING) * SURE)",
        ("tests/test_entropy.py",),
    ),
    Known(
        "persons",
        "records of a person weigh 1 each",
        P + "contributions.py",
        "units = grid // records + (_place_within(person) < grid % records)",
        "units = grid + 0 * records",
        PERSONS,
    ),
    Known(
        "persons",
        "shares of a person are rounded up",
        P + "contributions.py",
        "(_place_within(person) < grid % records)",
        "(grid % records > 0)",
        PERSONS,
    ),
    Known(
        "persons",
        "a person's clipped votes are rounded up",
        P + "contributions.py",
        "np.floor(grid * counts * scale * (1 - 1e-12))",
        "np.ceil(grid * counts * scale)",
        PERSONS,
    ),
    Known(
        "persons",
        "one record more of each person is drawn",
        P + "contributions.py",
        "_place_within(person[order]) < most",
        "_place_within(person[order]) <= most",
        PERSONS,
    ),
    Known(
        "persons",
        "persons of equal second names are one",
        R + "counting.py",
        "np.unique(persons.ravel(), return_inverse=True)",
        'np.unique(persons["b"].ravel(), return_inverse=True)',
        SHARDS,
    ),
    Known(
        "shards",
        "a shard may be counted twice",
        R + "counting.py",
        "if sorted(told) != sorted(names) or len(set(names)) < len(names):",
        "if set(told) != set(names):",
        SHARDS,
    ),
    Known(
        "shards",
        "a shard may be missing",
        R + "counting.py",
        "if sorted(told) != sorted(names) or len(set(names)) < len(names):",
        "if not set(told) <= set(names):",
        SHARDS,
    ),
    Known(
        "shards",
        "sums that voters cannot have are added",
        R + "counting.py",
        "sound = question.tally.fits(one.totals, one.voters)",
        "sound = True",
        SHARDS,
    ),
    Known(
        "shards",
        "the last blocks of a shard are not counted",
        R + "counting.py",
        "        for rest in waiting:\n            totals += rest.result()\n",
        "",
        SHARDS,
    ),
    Known(
        "votes",
        "a client's equal votes are all kept",
        "rknn_jax/bsvs.py",
        "return cells if cells.shape[-1] == 1 else _once(cells)",
        "return cells",
        CENTRAL,
    ),
    Known(
        "votes",
        "a client sends as many records as it has",
        F + "polls.py",
        "entropy.subset(len(every), count, 1)[0]",
        "entropy.subset(len(every), len(every), 1)[0]",
        CLIENT,
    ),
    Known(
        "exports",
        "a certificate tells the class with fewer records than the threshold",
        R + "class_selection.py",
        "if count >= threshold",
        "if count >= 0",
        ("tests/test_classes.py",),
    ),
    Known(
        "exports",
        "the noisy counts are not kept before they are used",
        R + "release_folder.py",
        "        disk.write_whole(self.staging / _COUNTS, buffer.getvalue(), disk.OWNER)\n",
        "",
        ("tests/test_release_folder.py",),
    ),
    Known(
        "exports",
        "counts that were drawn and lost are drawn again",
        R + "release_folder.py",
        "        elif _drawn(self.ledger, note) is not None:",
        "        elif False:",
        ("tests/test_release_folder.py",),
    ),
    Known(
        "audit",
        "intervals of frequencies have one end",
        "rknn_jax/audit/bounds.py",
        "tail = error / 4",
        "tail = error",
        ("tests/test_audit.py",),
    ),
)
