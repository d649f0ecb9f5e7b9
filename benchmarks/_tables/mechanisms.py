"""Mechanisms without a curator, and shuffling."""

import math

from benchmarks._tables._format import load, percent, table


def mechanisms() -> str:
    """Local mechanisms."""
    rows = []
    for row in load("mechanisms")["results"]:
        if "variance" in row:
            speed = [
                f"{value:,.0f}" if value else "none" for value in row["clients_per_second"].values()
            ]
            variance = [f"{value:.4g}" for value in row["variance"].values()]
            rows.append(
                [row["problem"], f"`{row['name']}`", *variance, str(row["message_bits"]), *speed]
            )
    header = [
        "problem",
        "mechanism",
        "variance, ε = 0.4",
        "ε = 1",
        "ε = 4",
        "message, bits",
        "clients/s, messages",
        "clients/s, counts",
    ]
    return table(header, rows, "mechanisms")


def local() -> str:
    """Labels without a curator."""
    found = load("local")["results"]
    epsilons = sorted({row["epsilon"] for row in found})
    kinds = list(dict.fromkeys((row["trust"], row["mechanism"]) for row in found))
    rows = [
        [
            trust,
            f"`{mechanism}`",
            *(
                percent(row["label_accuracy"])
                for row in found
                if (row["trust"], row["mechanism"]) == (trust, mechanism)
            ),
        ]
        for trust, mechanism in kinds
    ]
    return table(
        ["trust", "mechanism", *(f"ε = {epsilon:g}" for epsilon in epsilons)], rows, "local"
    )


def shuffling() -> str:
    """Messages and noise by the two bounds for shuffling, at a given ε."""
    rows = []
    for row in load("shuffling")["results"]["calibrated"]:
        general = row["general"]
        tighter = row["variation ratio"]
        # The most that is allowed, so that a number of the table may be used.
        local = [
            f"{math.floor(100 * found['local_epsilon']) / 100:.2f}" for found in (general, tighter)
        ]
        noise = [f"{found['stddev']:.1f}" for found in (general, tighter)]
        rows.append([f"`{row['mechanism']}`", f"{row['epsilon']:g}", *local, *noise])
    kinds = ("general", "variation ratio")
    header = [
        "mechanism",
        "ε",
        *(f"ε₀, {kind}" for kind in kinds),
        *(f"noise in votes, {kind}" for kind in kinds),
    ]
    return table(header, rows, "shuffling")
