"""Faults of the audit."""

from benchmarks._faults._known import Known

FAULTS = (
    Known(
        "audit",
        "intervals of frequencies have one end",
        "rknn_jax/audit/bounds.py",
        "tail = error / 4",
        "tail = error",
        ("tests/test_audit.py",),
    ),
    Known(
        "audit",
        "a mechanism is broken if all numbers of guesses say so",
        "rknn_jax/audit/one_run.py",
        "        any(broken),\n",
        "        all(broken),\n",
        ("tests/test_one_run.py",),
    ),
)
