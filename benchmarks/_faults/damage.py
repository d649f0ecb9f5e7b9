"""Faults of how a damaged ledger is counted."""

from benchmarks._faults._known import Known

FAULTS = (
    Known(
        "ledger",
        "Gaussian noise behind a raise that is lost counts as pure",
        "rknn_jax/privacy/ledger_lines.py",
        "shown = Amount(max(shown.epsilon, worst), Fraction())",
        "shown = Amount(shown.epsilon, Fraction())",
        ("tests/test_ledger_damage.py",),
    ),
    Known(
        "ledger",
        "whatever stands at the end is a line that was cut, which the next one closes",
        "rknn_jax/privacy/ledger.py",
        "            if chain.may_hide_lines:\n",
        "            if False:\n",
        ("tests/test_ledger_damage.py",),
    ),
    Known(
        "ledger",
        "zeros behind a line that was cut cover no spends",
        "rknn_jax/privacy/ledger_lines.py",
        'begins and _is_unfinished(damage) and not re.search(rb"[^ -~\\n]", damage)',
        "begins and _is_unfinished(damage)",
        ("tests/test_ledger_damage.py",),
    ),
    Known(
        "ledger",
        "a repair that was cut is a line that was cut, whatever was repaired",
        "rknn_jax/privacy/ledger_lines.py",
        'ended = closings[:1] == [b""] and',
        'ended = closings == [b""] and',
        ("tests/test_ledger_damage.py",),
    ),
    Known(
        "ledger",
        "a line that was cut in its hash, and the first byte of the next, is no line that was cut",
        "rknn_jax/privacy/ledger_lines.py",
        "has_end = len(end) >= _HASH if token else",
        "has_end = bool(token) or",
        ("tests/test_ledger_damage.py",),
    ),
    Known(
        "ledger",
        "what a repair that was cut says does not count",
        "rknn_jax/privacy/ledger_lines.py",
        "shown = Amount(*map(max, *closings, NOTHING, NOTHING))",
        "shown = NOTHING",
        ("tests/test_ledger_damage.py",),
    ),
    Known(
        "ledger",
        "a summary is known by its hash, wherever it stands",
        "rknn_jax/privacy/ledger.py",
        "if (start, summary.hash) in self._verified:",
        "if summary.hash in [one for _, one in self._verified]:",
        ("tests/test_ledger_damage.py",),
    ),
)
