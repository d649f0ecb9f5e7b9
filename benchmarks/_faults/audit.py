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
)
