"""Modules in which `benchmarks.mutants` plants faults, and the tests that run for each.

The modules are those that a guarantee depends on. `tests/test_benchmarks.py` asserts that every
file exists, and that no module of `FOLDERS` is missing. `question.py` has no place for Cosmic Ray's
operators: `benchmarks._faults` plants faults in it by hand.
"""

CONTRACTS = ("tests/contracts/test_mechanisms.py", "tests/contracts/test_local.py")
LEDGER = ("tests/test_ledger.py", "tests/test_ledger_damage.py", "tests/test_ledger_summary.py")
ACCOUNTING = (
    "tests/test_events.py",
    "tests/test_accounting.py",
    "tests/test_filters.py",
    "tests/test_sampled_accounting.py",
    "tests/test_binomial.py",
)
RELEASE = (
    "tests/test_release_folder.py",
    "tests/test_budget.py",
    "tests/test_measured.py",
    "tests/test_statement.py",
    "tests/test_cli.py",
)
STATEMENT = ("tests/test_statement_schema.py", "tests/test_statement.py")
SUMS = ("tests/test_prototypes.py", "tests/test_least_squares.py", "tests/test_payers.py")
FEDERATION = ("tests/test_federation.py", "tests/test_federation_sums.py", "tests/test_payers.py")
SECURE_SUM = ("tests/test_secure_sum.py",)
SAMPLES = ("tests/test_subsampling.py", "tests/test_private_knn.py")

FOLDERS = ("rknn_jax/privacy", "rknn_jax/mechanisms")
"""Folders of which every module is in the table."""


def _mechanism(name: str, *tests: str) -> dict[str, tuple[str, ...]]:
    """Return the entry of a mechanism: its own tests, and its cases of the contracts."""
    words = "".join(part.capitalize() for part in name.split("_"))
    own = [test.removeprefix("tests/").removesuffix(".py") for test in tests]
    chosen = " or ".join((words, *own))
    return {f"rknn_jax/mechanisms/{name}.py": (*tests, *CONTRACTS, "-k", chosen)}


TESTS: dict[str, tuple[str, ...]] = {
    "rknn_jax/privacy/clipping.py": ("tests/test_prototypes.py", "tests/test_dp_pca.py"),
    "rknn_jax/privacy/interchange.py": ("tests/test_privacy_interchange.py",),
    "rknn_jax/privacy/filters.py": ("tests/test_filters.py",),
    "rknn_jax/privacy/exact_noise.py": ("tests/test_release.py",),
    "rknn_jax/privacy/gaussian_shares.py": ("tests/test_federation_sums.py",),
    "rknn_jax/privacy/contributions.py": ("tests/test_persons.py",),
    "rknn_jax/privacy/parameters.py": ("tests/test_privacy_parameters.py", "tests/test_numbers.py"),
    "rknn_jax/privacy/disjoint.py": ("tests/test_disjoint.py",),
    "rknn_jax/privacy/entropy.py": ("tests/test_entropy.py", "tests/test_binomial.py"),
    "rknn_jax/privacy/guarantee.py": (
        "tests/test_guarantee.py",
        "tests/test_accounting.py",
        "tests/test_ledger.py",
    ),
    "rknn_jax/privacy/roles.py": ("tests/test_checkers.py", "tests/test_measured.py"),
    "rknn_jax/privacy/ledger.py": (
        *LEDGER,
        "tests/test_ledger_persons.py",
        "tests/test_disjoint.py",
    ),
    "rknn_jax/privacy/ledger_file.py": LEDGER,
    "rknn_jax/privacy/charges.py": (*LEDGER, "tests/test_filters.py", "tests/test_session.py"),
    "rknn_jax/privacy/fingerprints.py": ("tests/test_ledger.py", "tests/test_shards.py"),
    "rknn_jax/privacy/ledger_lines.py": LEDGER,
    "rknn_jax/privacy/ledger_summary.py": LEDGER,
    "rknn_jax/privacy/ledger_index.py": ("tests/test_budget.py", "tests/test_one_budget.py"),
    "rknn_jax/privacy/source_names.py": (
        "tests/test_one_budget.py",
        "tests/test_linked_folders.py",
    ),
    "rknn_jax/privacy/events.py": ACCOUNTING,
    "rknn_jax/privacy/loss_distributions.py": ACCOUNTING,
    "rknn_jax/privacy/renyi.py": ACCOUNTING,
    "rknn_jax/privacy/renyi_curves.py": ACCOUNTING,
    "rknn_jax/privacy/accounting.py": ACCOUNTING,
    "rknn_jax/privacy/calibration.py": (*ACCOUNTING, "tests/test_rknn.py"),
    "rknn_jax/privacy/analytic_gaussian.py": ("tests/test_accounting.py",),
    "rknn_jax/privacy/sampled_gaussian.py": ("tests/test_sampled_accounting.py",),
    "rknn_jax/privacy/amplification.py": ("tests/test_amplification.py",),
    "rknn_jax/privacy/flooding.py": ("tests/test_multi_message.py", "tests/test_amplification.py"),
    "rknn_jax/privacy/pate.py": ("tests/test_pate_accounting.py", "tests/test_pate.py"),
    "rknn_jax/privacy/smooth_sensitivity.py": ("tests/test_smooth_sensitivity.py",),
    "rknn_jax/privacy/profile.py": STATEMENT,
    "rknn_jax/privacy/checklists.py": STATEMENT,
    "rknn_jax/settings.py": (
        "tests/test_budget.py",
        "tests/test_one_budget.py",
        "tests/test_check.py",
    ),
    "rknn_jax/privacy/responsible.py": (
        "tests/test_statement.py",
        "tests/test_statement_schema.py",
    ),
    "rknn_jax/privacy/statement.py": STATEMENT,
    "rknn_jax/mechanisms/__init__.py": (
        "tests/test_mechanisms.py",
        "tests/test_local.py",
        "tests/test_rknn.py",
        CONTRACTS[0],
    ),
    "rknn_jax/mechanisms/base.py": (
        "tests/test_payers.py",
        "tests/test_mechanisms.py",
        "tests/test_release.py",
        "tests/test_audit.py",
        CONTRACTS[0],
    ),
    "rknn_jax/mechanisms/local.py": (
        "tests/test_local.py",
        *CONTRACTS,
        "tests/test_entropy.py",
        "tests/test_amplification.py",
        "tests/test_native.py",
        "tests/test_simulate.py",
    ),
    "rknn_jax/mechanisms/_distributed.py": ("tests/test_distributed.py",),
    "rknn_jax/mechanisms/concatenation_as_published.py": ("tests/test_separation.py", *CONTRACTS),
    **_mechanism("binomial", "tests/test_binomial.py"),
    **_mechanism("discrete_laplace", "tests/test_mechanisms.py", "tests/test_persons.py"),
    **_mechanism("gaussian", "tests/test_mechanisms.py", "tests/test_persons.py"),
    **_mechanism("laplace", "tests/test_mechanisms.py"),
    **_mechanism("permute_and_flip", "tests/test_mechanisms.py", "tests/test_persons.py"),
    **_mechanism("one_to_one", "tests/test_mechanisms.py", "tests/test_release.py"),
    **_mechanism(
        "collision",
        "tests/test_local.py",
        "tests/test_entropy.py",
        "tests/test_simulate.py",
        "tests/test_native.py",
    ),
    **_mechanism(
        "generalized_randomized_response",
        "tests/test_local.py",
        "tests/test_entropy.py",
        "tests/test_simulate.py",
    ),
    **_mechanism(
        "hadamard_response",
        "tests/test_local.py",
        "tests/test_entropy.py",
        "tests/test_simulate.py",
    ),
    **_mechanism(
        "local_hashing", "tests/test_local.py", "tests/test_simulate.py", "tests/test_separation.py"
    ),
    **_mechanism(
        "optimized_unary_encoding",
        "tests/test_local.py",
        "tests/test_entropy.py",
        "tests/test_simulate.py",
    ),
    **_mechanism(
        "randomized_response",
        "tests/test_local.py",
        "tests/test_entropy.py",
        "tests/test_simulate.py",
        "tests/test_native.py",
    ),
    **_mechanism("separation", "tests/test_separation.py", "tests/test_simulate.py"),
    **_mechanism(
        "subset_selection",
        "tests/test_local.py",
        "tests/test_entropy.py",
        "tests/test_simulate.py",
    ),
    **_mechanism(
        "wheel",
        "tests/test_local.py",
        "tests/test_simulate.py",
        "tests/test_amplification.py",
        "tests/test_native.py",
    ),
    **_mechanism("multi_message", "tests/test_multi_message.py"),
    "rknn_jax/bsvs.py": (
        "tests/test_bsvs.py",
        "tests/test_error_bounds.py",
        "tests/test_preview.py",
    ),
    "rknn_jax/algorithm.py": ("tests/test_algorithm.py",),
    "rknn_jax/labelers/_one_sum.py": (*SUMS, "tests/test_federation_sums.py"),
    "rknn_jax/labelers/_tally.py": SUMS,
    "rknn_jax/labelers/_class_sums.py": (*SUMS, "tests/test_federation_sums.py"),
    "rknn_jax/labelers/_public_ball.py": SUMS,
    "rknn_jax/labelers/_cosines.py": SUMS,
    "rknn_jax/labelers/public_prototypes.py": (*SUMS, "tests/test_federation_sums.py"),
    "rknn_jax/labelers/_persons.py": ("tests/contracts/test_persons.py", "tests/test_persons.py"),
    "rknn_jax/labelers/rknn.py": (
        "tests/test_privacy_parameters.py",
        "tests/test_rknn.py",
        "tests/test_gaussian_mixture.py",
        "tests/contracts/test_persons.py",
        "tests/test_cli.py",
    ),
    "rknn_jax/mechanisms/_repeated.py": (
        "tests/test_repeated_noise.py",
        "tests/contracts/test_trust.py",
    ),
    "rknn_jax/labelers/_vote_mechanism.py": (
        "tests/test_rknn.py",
        "tests/contracts/test_trust.py",
        "tests/test_persons.py",
    ),
    "rknn_jax/labelers/_sampled_neighbors.py": SAMPLES,
    "rknn_jax/release/counting.py": (
        "tests/test_shards.py",
        "tests/test_release_labelers.py",
        "tests/test_persons.py",
    ),
    "rknn_jax/release/encoding.py": ("tests/test_encoding.py",),
    "rknn_jax/release/label.py": (*RELEASE, "tests/test_many_classes.py"),
    "rknn_jax/release/release_folder.py": (
        "tests/test_release_folder.py",
        "tests/test_engines.py",
    ),
    "rknn_jax/release/session.py": ("tests/test_session.py",),
    "rknn_jax/release/class_selection.py": ("tests/test_classes.py", "tests/test_payers.py"),
    "rknn_jax/release/adoption.py": ("tests/test_budget.py",),
    **dict.fromkeys(
        ("rknn_jax/federation/client.py", "rknn_jax/federation/client_payments.py"),
        (
            *FEDERATION,
            "tests/test_federation_notes.py",
            "tests/test_federation_check.py",
            "tests/test_federation_late.py",
        ),
    ),
    "rknn_jax/federation/participation.py": (
        "tests/test_federation_late.py",
        "tests/test_federation_http.py",
    ),
    "rknn_jax/federation/collector.py": (
        "tests/test_federation.py",
        "tests/test_federation_check.py",
    ),
    "rknn_jax/federation/answer_frames.py": ("tests/test_federation.py",),
    "rknn_jax/labelers/_sum_shares.py": ("tests/test_federation_sums.py",),
    "rknn_jax/labelers/_vote_shares.py": ("tests/test_binomial.py", "tests/test_federation.py"),
    "rknn_jax/federation/notes.py": ("tests/test_federation_notes.py", "tests/test_federation.py"),
    "rknn_jax/federation/agreement.py": ("tests/test_federation.py", *SECURE_SUM),
    "rknn_jax/federation/secure_sum.py": SECURE_SUM,
    "rknn_jax/federation/secure_sum_keys.py": SECURE_SUM,
    "rknn_jax/federation/secure_sum_layout.py": SECURE_SUM,
    "rknn_jax/federation/secure_sum_server.py": SECURE_SUM,
    "rknn_jax/audit/bounds.py": ("tests/test_audit.py",),
}
"""Tests that run for a module, in this order: the module's own, and those of its contract."""
