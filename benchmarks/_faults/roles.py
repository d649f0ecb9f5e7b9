"""Faults of who checks labels, and of what checks cost."""

from benchmarks._faults._known import Known

CHECKS = ("tests/test_checkers.py", "tests/test_measured.py")

FAULTS = (
    Known(
        "roles",
        "records that check vote too",
        "rknn_jax/release/checking.py",
        "        votes[checks] = MISSING\n",
        "",
        CHECKS,
    ),
    Known(
        "roles",
        "a stopped release draws its roles anew",
        "rknn_jax/release/planning.py",
        "    if not paid:\n        roles = _roles(",
        "    if True:\n        roles = _roles(",
        ("tests/test_release_folder.py",),
    ),
    Known(
        "roles",
        "all shards have the same roles",
        "rknn_jax/privacy/roles.py",
        '        place = shard.to_bytes(8, "little") + block.to_bytes(8, "little")\n',
        '        place = block.to_bytes(8, "little")\n',
        CHECKS,
    ),
    Known(
        "roles",
        "a person's records have roles of their own",
        "rknn_jax/release/checking.py",
        '        if checkers.unit == "record":\n',
        "        if checkers.unit:\n",
        CHECKS,
    ),
    Known(
        "roles",
        "the order of files is not noted with the roles",
        "rknn_jax/release/label.py",
        '{checkers.roles.words()}\\n{counted.order}"',
        '{checkers.roles.words()}\\n"',
        CHECKS,
    ),
    Known(
        "roles",
        "those who choose measure too",
        "rknn_jax/check.py",
        "        mine = (checks.role == RECALL) & counted\n",
        "        mine = (checks.role != MEASURE) & counted\n",
        CHECKS,
    ),
    Known(
        "roles",
        "a measure has half of its noise",
        "rknn_jax/check.py",
        "        agree = agrees(checks, labelings[choice])\n"
        "        scale = exact_noise.safe_scale(self.grid, self.epsilon)\n",
        "        agree = agrees(checks, labelings[choice])\n"
        "        scale = exact_noise.safe_scale(self.grid, 2 * self.epsilon)\n",
        CHECKS,
    ),
    Known(
        "roles",
        "sums of recall have the noise of one sum",
        "rknn_jax/check.py",
        '        return self.grid * (2 if self.relation == "replace-one" else 1)\n',
        "        return self.grid\n",
        CHECKS,
    ),
    Known(
        "roles",
        "the number of records that measure is shown where n is private",
        "rknn_jax/check.py",
        '        return self.relation == "replace-one"\n',
        "        return True\n",
        CHECKS,
    ),
    Known(
        "roles",
        "the role of a record depends on its class",
        "rknn_jax/release/checking.py",
        "        checks = roles != VOTE\n",
        "        checks = (roles != VOTE) & (ids.reshape(len(ids), -1)[:, 0] != 0)\n",
        CHECKS,
    ),
    Known(
        "roles",
        "a Gaussian release is charged for its votes alone, by their curve",
        "rknn_jax/privacy/roles.py",
        "    return whole, min(votes.epsilon, 1 / whole.events[0].parameter)\n",
        "    return whole, votes.epsilon\n",
        CHECKS,
    ),
)
