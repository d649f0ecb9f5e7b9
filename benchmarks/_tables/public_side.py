"""The decoder's public side, beside the code before."""

from typing import Any

from benchmarks._tables._format import load, table


def decoder_public_side() -> str:
    """CPU time of kernels and decoding by rows and queries."""
    rows = []
    for row in load("public_side")["results"]:
        before, after = row["before"], row["after"]
        stages = [
            f"{after['kernels'][name]:.2f} s" if name in after["kernels"] else "–"
            for name in ("radial", "walks", "mixture")
        ]
        decodes = [sum(one["cpu_seconds"] for one in each["decode"]) for each in (before, after)]
        rows.append(
            [
                f"{row['rows']:,}",
                f"{row['queries']:,}",
                *(f"{row['same'][name]:.1f} s" for name in ("clustering", "graph")),
                *stages,
                _beside(before["kernels"]["cpu_seconds"], after["kernels"]["cpu_seconds"]),
                _beside(*decodes),
                f"{_peak(after):.0f} MB, {_peak(before):.0f}",
                f"{min(row['equal_labels']):.2%}",
            ]
        )
    header = ["public rows", "queries", "clustering", "graph", "radial", "walks", "mixtures"]
    header += ["kernels in all", "two decodes", "memory", "labels alike"]
    return table(header, rows, "public_side")


def _beside(before: float, after: float) -> str:
    return f"{after:.2f} s, {before:.1f} ({before / after:.1f}×)"


def _peak(found: dict[str, Any]) -> float:
    """Return the most memory of a step, in megabytes."""
    steps = [found["kernels"], *found["decode"]]
    return max(float(one["bytes"]) for one in steps) / 1e6
