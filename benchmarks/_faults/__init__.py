"""Faults that a careful programmer could make, each of which breaks a promise.

`benchmarks.planted_faults` plants each in a copy of the project, and runs the tests that should
find it. `tests/test_benchmarks.py` asserts that each still fits the source.
"""

from benchmarks._faults import (
    audit,
    corners,
    courses,
    damage,
    doors,
    names,
    noise,
    randomness,
    rare,
    remembered,
    roles,
    secure_sums,
    spending,
    statements,
    sums,
    told,
    training,
    units,
    values,
)
from benchmarks._faults._known import Known as Known

FAULTS = (
    *noise.FAULTS,
    *sums.FAULTS,
    *randomness.FAULTS,
    *secure_sums.FAULTS,
    *spending.FAULTS,
    *remembered.FAULTS,
    *units.FAULTS,
    *audit.FAULTS,
    *roles.FAULTS,
    *corners.FAULTS,
    *courses.FAULTS,
    *doors.FAULTS,
    *damage.FAULTS,
    *rare.FAULTS,
    *values.FAULTS,
    *training.FAULTS,
    *told.FAULTS,
    *statements.FAULTS,
    *names.FAULTS,
)
