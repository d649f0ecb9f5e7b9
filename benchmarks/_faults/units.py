"""Faults of the unit of privacy: persons, shards of records, and votes of a record."""

from benchmarks._faults._known import CENTRAL, CLIENT, PERSONS, SHARDS, Known

FAULTS = (
    Known(
        "persons",
        "records of a person weigh 1 each",
        "rknn_jax/privacy/contributions.py",
        "units = grid // records + (_place_within(person) < grid % records)",
        "units = grid + 0 * records",
        PERSONS,
    ),
    Known(
        "persons",
        "shares of a person are rounded up",
        "rknn_jax/privacy/contributions.py",
        "(_place_within(person) < grid % records)",
        "(grid % records > 0)",
        PERSONS,
    ),
    Known(
        "persons",
        "a person's clipped votes are rounded up",
        "rknn_jax/privacy/contributions.py",
        "np.floor(grid * counts * scale * (1 - 1e-12))",
        "np.ceil(grid * counts * scale)",
        PERSONS,
    ),
    Known(
        "persons",
        "one record more of each person is drawn",
        "rknn_jax/privacy/contributions.py",
        "_place_within(person[order]) < most",
        "_place_within(person[order]) <= most",
        PERSONS,
    ),
    Known(
        "persons",
        "a person is another one in each shard",
        "rknn_jax/release/counting.py",
        "    distinct, number = np.unique(persons.ravel(), return_inverse=True)\n",
        "    distinct, number = np.unique(persons.ravel(), return_inverse=True)\n"
        "    sizes = [len(_present(one.parts)) for one in counts]\n"
        "    shard = np.repeat(np.arange(len(counts)), sizes)\n"
        "    number = number + len(distinct) * shard\n",
        SHARDS,
    ),
    Known(
        "shards",
        "a shard may be counted twice",
        "rknn_jax/release/counting.py",
        "if sorted(told) != sorted(names) or len(set(names)) < len(names):",
        "if set(told) != set(names):",
        SHARDS,
    ),
    Known(
        "shards",
        "a shard may be missing",
        "rknn_jax/release/counting.py",
        "if sorted(told) != sorted(names) or len(set(names)) < len(names):",
        "if not set(told) <= set(names):",
        SHARDS,
    ),
    Known(
        "shards",
        "sums that voters cannot have are added",
        "rknn_jax/release/counting.py",
        "sound = counter.tally.fits(one.totals, one.voters)",
        "sound = True",
        SHARDS,
    ),
    Known(
        "shards",
        "the last blocks of a shard are not counted",
        "rknn_jax/release/counting.py",
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
        "rknn_jax/labelers/_vote_shares.py",
        "entropy.subset(len(every), count, 1)[0]",
        "entropy.subset(len(every), len(every), 1)[0]",
        CLIENT,
    ),
)
