"""Systems that the papers compare with, and several labels a record."""

from benchmarks._tables._format import GOALS, load, percent, table


def accountants() -> str:
    """Cost of stated parameters."""
    rows = []
    for row in load("accountants")["results"]["stated"]:
        other = f"{row['PLD, replace-one']:.3g}" if "PLD, replace-one" in row else "the same"
        numbers = [f"{row[name]:.3g}" for name in ("claimed", "RDP, as published", "RDP", "PLD")]
        rows.append([row["name"], f"{row['delta']:g}", *numbers, other])
    header = [
        "system and data set",
        "δ",
        "claimed",
        "RDP, as published",
        "RDP",
        "PLD",
        "PLD where a record is replaced",
    ]
    return table(header, rows, "accountants")


def noisy_sgd_persons() -> str:
    """Points that a clip loses where persons are protected."""
    found = load("noisy_sgd_persons")["results"]
    rows = [
        [clip, f"{100 * lost['mean']:.1f}", f"{100 * lost['worst']:.1f}"]
        for clip, lost in found["below"].items()
    ]
    header = ["C", "points below the best C of a cell, mean", "worst cell"]
    return table(header, rows, "noisy_sgd_persons")


def papers() -> str:
    """Private-kNN and PATE with the noise that their papers state."""
    rows = [
        [
            row["name"],
            f"{row['epsilon']:.3g}",
            *(percent(row[what]) for what in GOALS[:2]),
            str(len(row["seeds"])),
        ]
        for row in load("papers")["results"]
    ]
    return table(
        ["MNIST, noise as stated", "ε", "public labels right", "student on the test set", "seeds"],
        rows,
        "papers",
    )


def noisy_sgd() -> str:
    """Networks trained on the private records."""
    rows = [
        [
            row["name"],
            f"{row['epsilon']:.3g}",
            row["relation"],
            percent(row["model_test_accuracy"]),
            str(len(row["seeds"])),
        ]
        for row in load("noisy_sgd")["results"]["accuracy"]
    ]
    return table(
        ["MNIST, what is trained", "ε", "neighbors", "the network on the test set", "seeds"],
        rows,
        "noisy_sgd",
    )


def noisy_sgd_defaults() -> str:
    """Settings that noisy SGD chooses, beside the best of a grid of each cell."""
    header = ["data set", "n", "f", "classes", "ε", "chosen", "best of the grid", "its settings"]
    rows = [
        [
            cell["case"],
            f"{cell['num_records']:,}",
            str(cell["num_features"]),
            str(cell["num_classes"]),
            f"{cell['epsilon']:g}",
            f"{cell['chosen']:.1%}",
            f"{cell['best']:.1%}",
            cell["best_setting"],
        ]
        for cell in load("noisy_sgd_defaults")["results"]["cells"]
    ]
    return table(header, rows, "noisy_sgd_defaults")


def per_example() -> str:
    """Cost of per-example gradients."""
    rows = [
        [
            f"`{row['model']}`",
            str(row["batch_size"]),
            *(f"{row['times_as_long'][name]:.1f}" for name in ("step", "optax", "jax-privacy")),
        ]
        for row in load("per_example")["results"]
    ]
    header = [
        "network",
        "batch",
        "noisy step / usual step",
        "clipped by optax / usual gradient",
        "clipped by jax-privacy / usual gradient",
    ]
    return table(header, rows, "per_example")


def buying() -> str:
    """Accuracy by number of bought labels, and in a polluted pool."""
    found = load("buying")["results"]
    rows = []
    for select in ("random", "entropy", "difference", "diverse_public", "near_private"):
        bought = {row["labels"]: row for row in found["labels"] if row["select"] == select}
        polluted = {row["polluted"]: row for row in found["pollution"] if row["select"] == select}
        in_pieces = next(row for row in found["quarters"] if row["select"] == select)
        cells = [percent(bought[number]["test_accuracy"]) for number in sorted(bought)]
        cells += [f"{polluted[share]['test_accuracy']['mean']:.2%}" for share in (0.25, 0.5)]
        cells += [f"{in_pieces['test_accuracy']['mean']:.2%}"]
        rows.append([f"`{select}`", f"{bought[1000]['epsilon']:.3g}", *cells])
    numbers = sorted({row["labels"] for row in found["labels"]})
    header = [
        "chosen by",
        "ε",
        *(f"{number:,} labels" for number in numbers),
        "1,000, a quarter glued",
        "half glued",
        "half in pieces",
    ]
    return table(header, rows, "buying")


def checkpoints() -> str:
    """Accuracy with 1,000 bought labels, by the epsilon of the network."""
    found = load("buying")["results"]
    mine = found["checkpoint"]
    selectors = list(dict.fromkeys(row["select"] for row in mine))
    rows = []
    for epsilon, alone in found["networks"].items():
        here = {row["select"]: row for row in mine if row["checkpoint"] == float(epsilon)}
        rows.append(
            [
                f"{float(epsilon):g}",
                percent(alone),
                *(percent(here[select]["test_accuracy"]) for select in selectors),
                f"{here['near_private']['epsilon']:.3g}",
            ]
        )
    chosen = [f"`{select}`" for select in selectors]
    header = ["ε of the network", "nothing bought", *chosen, "ε with `near_private`"]
    return table(header, rows, "buying")


def dpdfd() -> str:
    """Students distilled without data."""
    found = load("dpdfd")["results"]
    rows = []
    for name in ("No noise", "Table 4", "Table 5", "Table 6", "Figure 2"):
        for row in found[name]:
            cells = [_epsilon(row[kind]) for kind in ("epsilon_as_published", "epsilon")]
            rows.append([name, row["name"], *cells, f"{row['test_accuracy']:.2%}"])
    return table(
        ["study", "form", "ε that Theorem 3 prints", "ε", "student on the test set"], rows, "dpdfd"
    )


def _epsilon(value: float | str) -> str:
    return "∞" if isinstance(value, str) else f"{value:.3g}"


def relations() -> str:
    """Cost of replacing a record in noisy SGD."""
    rows = [
        [
            f"{row['noise_multiplier']:g}",
            f"{row['sampling_prob']:.2g}",
            f"{row['steps']:,}",
            *(
                f"{row[name]:.3g}"
                for name in ("add_remove", "replace_one", "twice_the_sensitivity")
            ),
            f"{row['replace_one'] / row['add_remove']:.2f}",
            f"{row['twice_the_sensitivity'] / row['add_remove']:.2f}",
        ]
        for row in load("relations")["results"]
    ]
    header = [
        "σ",
        "q",
        "steps",
        "ε, add-remove",
        "ε, replace-one",
        "ε by twice the sensitivity",
        "replace-one times",
        "twice the sensitivity times",
    ]
    return table(header, rows, "relations")


def attributes() -> str:
    """Several attributes of each digit."""
    found = load("attributes")["results"]
    names = list(found[0]["right"])
    rows = [
        [
            f"`{row['representation']}`",
            f"{row['epsilon']:g}",
            f"{row['clip']:g}",
            *(percent(row["right"][name]) for name in names),
        ]
        for row in found
        if row["clip"] in (2, 4) and row["epsilon"] in (0.2, 1)
    ]
    return table(["features", "ε", "τ", *names], rows, "attributes")


def text_models() -> str:
    """Labels of docstrings on embeddings of several models."""
    rows = [
        [
            f"`{row['model']['name']}`",
            str(row["model"]["width"]),
            str(row["max_length"] or "all"),
            f"{row['epsilon']:g}",
            f"{row['labels']['mean']:.1%}",
            f"{row['labels']['worst']:.1%}",
            f"{row['worst_class']['mean']:.1%}",
            f"{row['student']['mean']:.1%}",
            f"{row['ceiling']:.1%}",
        ]
        for row in load("text_models")["results"]
    ]
    heads = ["model", "dimensions", "tokens", "ε", "labels right", "worst release", "worst class"]
    return table([*heads, "student", "with true labels"], rows, "text_models")


def label_sets() -> str:
    """Several labels a record."""
    kinds = ("micro", "macro", *(f"attribute {i}" for i in range(4)))
    rows = [
        [
            f"`{row['row']}`",
            f"{row['epsilon']:g}",
            *(f"{row[kind]['mean']:.3f} ± {row[kind]['stddev']:.3f}" for kind in kinds[:2]),
            f"{row['micro']['worst']:.3f}",
            *(f"{row[kind]['mean']:.2f}" for kind in kinds[2:]),
        ]
        for row in load("label_sets")["results"]
        if row["epsilon"] in (0.1, 1)
    ]
    words = ["micro F1", "macro F1", "worst micro", "digit", "parity", "stroke", "writer"]
    return table(["row", "ε", *words], rows, "label_sets")


def evolution() -> str:
    """Students of synthetic digits."""
    rows = [
        [
            row["trust"],
            _epsilon(row["epsilon"]),
            percent(row["test_accuracy"]),
            f"{row['test_accuracy']['worst']:.1%}",
            f"{row['worst_class']:.1%}",
        ]
        for row in load("evolution")["results"]
    ]
    header = [
        "trust",
        "ε",
        "student of synthetic digits, on real ones",
        "worst split",
        "worst class",
    ]
    return table(header, rows, "evolution")


def checkouts() -> str:
    """CPU time and memory of whole commands, beside an earlier commit."""
    found = load("checkouts")
    rows = [
        [
            row["command"],
            f"{row['cpu_seconds_before']:.1f} s",
            f"{row['cpu_seconds_now']:.1f} s",
            f"{row['bytes_before'] / 1e6:.0f} MB",
            f"{row['bytes_now'] / 1e6:.0f} MB",
        ]
        for row in found["results"]
    ]
    before = found["before"]
    header = ["command", f"CPU, {before}", "CPU, now", f"memory, {before}", "memory, now"]
    return table(header, rows, "checkouts")


def silence() -> str:
    """Longest time without a word of long commands, worst first."""
    rows = [
        [
            row["command"],
            f"{row['longest silence']:.1f} s",
            f"{row['seconds']:.0f} s{', stopped' if row['stopped'] else ''}",
        ]
        for row in sorted(load("silence")["results"], key=lambda row: -row["longest silence"])
    ]
    return table(["command", "longest silence", "ran for"], rows, "silence")
