"""Faults of what is paid: before the draw, within the budget, once for each release and round."""

from benchmarks._faults._known import LEDGER, PAID, Known

ONE_BUDGET = ("tests/test_one_budget.py",)
MERGE = ("tests/test_federation_merge.py",)

FAULTS = (
    Known(
        "order of charge",
        "the ledger is charged after a labeler's draw",
        "rknn_jax/labelers/_one_sum.py",
        "        ledger.charge(noise.guarantee, purpose)\n"
        "        return self._answered(noise, contribution, queries)",
        "        answers = self._answered(noise, contribution, queries)\n"
        "        ledger.charge(noise.guarantee, purpose)\n        return answers",
        PAID,
    ),
    Known(
        "order of charge",
        "classes are drawn before the charge",
        "rknn_jax/release/class_selection.py",
        "    ledger.charge(guarantee, PURPOSE)\n"
        "    names = sorted(found.counts)\n"
        "    exact = np.array([found.counts[name] for name in names], np.int64)\n"
        "    noisy = exact_noise.discrete_laplace(exact, scale) if names else exact\n",
        "    names = sorted(found.counts)\n"
        "    exact = np.array([found.counts[name] for name in names], np.int64)\n"
        "    noisy = exact_noise.discrete_laplace(exact, scale) if names else exact\n"
        "    ledger.charge(guarantee, PURPOSE)\n",
        PAID,
    ),
    Known(
        "order of charge",
        "a sum's release is charged after the draw",
        "rknn_jax/question.py",
        "    payer.charge(guarantee, purpose)\n    return noise.draw(totals)",
        "    drawn = noise.draw(totals)\n    payer.charge(guarantee, purpose)\n    return drawn",
        (*PAID, "tests/test_release_labelers.py"),
    ),
    Known(
        "order of charge",
        "a sum is drawn without a charge",
        "rknn_jax/question.py",
        "    payer.charge(guarantee, purpose)\n    return noise.draw(totals)",
        "    return noise.draw(totals)",
        (*PAID, "tests/test_release_labelers.py"),
    ),
    Known(
        "order of charge",
        "a sum that so many records cannot have is charged and drawn",
        "rknn_jax/question.py",
        "    noise.check(totals, num_units)\n",
        "",
        ("tests/test_release_folder.py",),
    ),
    Known(
        "order of charge",
        "a note that was not paid for makes a second message",
        "rknn_jax/federation/client_payments.py",
        "        self._check_named(round, note_name(note))\n",
        "",
        ("tests/test_federation_check.py",),
    ),
    Known(
        "order of charge",
        "a charge is not written through to the disk",
        "rknn_jax/privacy/ledger_file.py",
        "            text = text[file.write(text) :]\n        os.fsync(file.fileno())",
        "            text = text[file.write(text) :]",
        LEDGER,
    ),
    Known(
        "budget",
        "deltas are free in a sum",
        "rknn_jax/privacy/filters.py",
        "return spent.epsilon <= budget.epsilon and spent.delta <= budget.delta",
        "return spent.epsilon <= budget.epsilon",
        ("tests/test_filters.py",),
    ),
    Known(
        "budget",
        "a cost without a divergence is free",
        "rknn_jax/privacy/filters.py",
        "sum(known, Fraction()) if len(known) == len(divergences) else None",
        "sum(known, Fraction())",
        ("tests/test_filters.py",),
    ),
    Known(
        "budget",
        "a ledger of persons takes releases of records",
        "rknn_jax/privacy/ledger.py",
        '    for name in ("relation", "unit"):',
        '    for name in ("relation",):',
        LEDGER,
    ),
    Known(
        "classes",
        "names of classes are released, however few records they have",
        "rknn_jax/release/class_selection.py",
        "if count >= threshold",
        "if count >= 0",
        ("tests/test_classes.py",),
    ),
    Known(
        "release",
        "the noisy counts are not kept before they are used",
        "rknn_jax/release/release_folder.py",
        "        disk.write_whole(self.staging / _COUNTS, _saved(counts), disk.OWNER)\n",
        "",
        ("tests/test_release_folder.py",),
    ),
    Known(
        "release",
        "counts that were drawn and lost are drawn again",
        "rknn_jax/release/release_folder.py",
        "        if _drawn(self.ledger, note) is not None:",
        "        if False:",
        ("tests/test_release_folder.py",),
    ),
    Known(
        "release",
        "nothing is released if nobody checks",
        "rknn_jax/check.py",
        "ids = checks.ids if checks.ids.ndim == 1 else checks.ids[:, 0]",
        "ids = checks.ids.reshape(len(checks.ids), -1)[:, 0]",
        ("tests/test_few_units.py",),
    ),
    Known(
        "release",
        "a warning of a broken private record stops a command where warnings are errors",
        "rknn_jax/cli/main.py",
        "            warnings.resetwarnings()\n",
        "            pass\n",
        ("tests/test_csv_records.py", "tests/test_after_the_charge.py"),
    ),
    Known(
        "ledger",
        "a line of the ledger can be guessed from the line before",
        "rknn_jax/privacy/ledger_lines.py",
        '        "salt": secrets.token_hex(16),',
        '        "salt": hashlib.sha256(kind.encode()).hexdigest()[:32],',
        LEDGER,
    ),
    Known(
        "ledger",
        "a client opens a second budget for records that have one",
        "rknn_jax/federation/joining.py",
        "    ledger_index.check(path, data.prints)\n"
        "    with ledger_index.held(path, data.prints, [str(settings.private)]):\n",
        "    with ledger_index.held(path, data.prints[:1]):\n",
        ONE_BUDGET,
    ),
    Known(
        "ledger",
        "a selection of classes is not noted for the releases that follow",
        "rknn_jax/cli/classes.py",
        "    with ledger_index.held(path, data.prints, _listed(settings.private), files):\n",
        "    with ledger_index.held(path, [], []):\n",
        ONE_BUDGET,
    ),
    Known(
        "ledger",
        "an adoption is not noted for the releases that follow",
        "rknn_jax/cli/budget.py",
        "with ledger_index.held(settings.ledger, data.prints, private, files, adopts=adopts):",
        "with ledger_index.held(settings.ledger, []):",
        ONE_BUDGET,
    ),
    Known(
        "ledger",
        "a ledger adopts a changed file of another one",
        "rknn_jax/privacy/ledger_index.py",
        "if exists and (not adopts or os.path.realpath(path) in known):",
        "if exists:",
        ONE_BUDGET,
    ),
    Known(
        "rounds",
        "a server publishes a shuffled round that another one asks too",
        "rknn_jax/federation/shared_rounds.py",
        "    if not collects and (source or (folder / SHARED).exists()):\n",
        "    if not collects and source:\n",
        MERGE,
    ),
    Known(
        "rounds",
        "a second server asks a shuffled round whose results are published",
        "rknn_jax/federation/shared_rounds.py",
        "    if not (source / SHARED).exists() or ended or is_sealed(source):\n",
        "    if not (source / SHARED).exists():\n",
        MERGE,
    ),
    Known(
        "rounds",
        "some folders of a shuffled round are merged, and then others",
        "rknn_jax/federation/shared_rounds.py",
        "    if not all(marks) or len(origins) != 1 or len(parts) != 1 + len(origins[0]):\n",
        "    if not all(marks) or len(origins) != 1:\n",
        MERGE,
    ),
)
