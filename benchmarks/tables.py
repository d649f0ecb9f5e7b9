"""Put `benchmarks/results/*.json` into README.md and docs, as tables and pictures.

A table goes to every place between `<!-- name -->` and `<!-- end -->`.
"""

import json
import re
from pathlib import Path
from typing import Any

from benchmarks import _choosing_tables, _pictures
from benchmarks._measure import RESULTS
from train.compare import sections as comparison

GOALS = ("label_accuracy", "test_accuracy", "one_student")
ROOT = Path(__file__).parent.parent
PLACE = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def load(name: str) -> dict[str, Any]:
    """Read one file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def percent(values: dict[str, Any]) -> str:
    """Format a mean and standard deviation of shares; a single value has no deviation."""
    return f"{values['mean']:.2%}" + (
        f" ± {100 * values['stddev']:.2f}" if values["stddev"] is not None else ""
    )


def table(header: list[str], rows: list[list[str]], name: str) -> str:
    """Return a Markdown table with a line that states its source."""
    found = load(name)
    lines = [header, ["---"] * len(header), *rows]
    source = (
        f"`{found['command']}`, {found['date'][:10]}, {found['device']} with {found['cores']} "
        f"cores, jax {found['versions']['jax']}."
    )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{source}"


def distill() -> str:
    """Whole runs."""
    rows = [
        [
            row["name"],
            percent(row["label_accuracy"]),
            percent(row["test_accuracy"]),
            f"{row['seconds']['mean']:.0f} s",
            ", ".join(map(str, row["seeds"]))
            if len(row["seeds"]) < 6
            else f"{row['seeds'][0]} to {row['seeds'][-1]}",
        ]
        for row in load("distill")["results"]
    ]
    return table(
        ["run", "public labels right", "student on the test set", "time", "seeds"], rows, "distill"
    )


def goals() -> str:
    """Labels and students of MNIST by trust and epsilon, with the ceiling of true labels."""
    found = load("goals")["results"]["rows"]
    ceiling = next(row for row in found if row["trust"] == "none")
    worst = worst_releases()
    rows = [
        [
            row["trust"],
            f"`{row['mechanism']}`",
            f"{row['epsilon']:g}",
            *(percent(row[name]) for name in GOALS),
            f"{worst[row['trust'], row['epsilon']]:.2%}",
        ]
        for row in found
        if row is not ceiling
    ]
    rows.append(["true labels", "none", "∞", *(percent(ceiling[name]) for name in GOALS), ""])
    header = ["trust", "mechanism", "ε", "public labels right", "three students together"]
    return table([*header, "one student", "worst single release"], rows, "goals")


def worst_releases() -> dict[tuple[str, float], float]:
    """Return the lowest label accuracy of any split and draw, by trust and epsilon."""
    found: dict[tuple[str, float], float] = {}
    for split in load("worst")["results"].values():
        for row in split:
            named = row["trust"], row["epsilon"]
            found[named] = min(found.get(named, 1.0), min(row["label_accuracy"]))
    return found


def studies() -> str:
    """Rounds and targets, by `train.sweep`."""
    found = load("sweeps")["results"]
    rows = [
        [
            name,
            f"{name} = {row[name]}",
            row["epsilon"],
            percent(row["label_accuracy"]),
            percent(row["test_accuracy"]),
        ]
        for name in ("rounds", "targets")
        for row in found[name]
    ]
    return table(
        ["study", "setting", "ε", "public labels right", "student on the test set"], rows, "sweeps"
    )


def labels() -> str:
    """Labels by representation, epsilon, and post-processing."""
    rows = [
        [
            row["representation"],
            str(row["queries"]),
            f"{row['epsilon']:g}",
            *(percent(row[kind]) for kind in ("plain", "shared", "spread")),
        ]
        for row in load("labels")["results"]
        if row["queries"] in (10, 100) and row["epsilon"] in (0.01, 0.1)
    ]
    header = [
        "representation",
        "queries",
        "epsilon",
        "arg max alone",
        "queries share votes",
        "and records share labels",
    ]
    return table(header, rows, "labels")


def balance() -> str:
    """Labels under balanced connections."""
    cells: dict[tuple[str, str, str], list[str]] = {}
    for row in load("balance")["results"]:
        line = cells.setdefault((row["representation"], row["prices"], row["amount"]), [])
        if row["population"] == "as the public" and not line:
            line.append(f"{row['least']['mean']:,.0f} to {row['greatest']['mean']:,.0f}")
        if row["epsilon"] in (0.01, 0.1):
            line += [percent(row[kind]) for kind in ("plain", "shared")]
    amounts = {"none": "none", "part": "0.3 × {}", "full": "{}"}
    rows = [
        [representation, amounts[amount].format(prices), *line[:5], line[-1]]
        for (representation, prices, amount), line in cells.items()
    ]
    kinds = [
        f"{kind}, ε = {epsilon}"
        for epsilon in (0.01, 0.1)
        for kind in ("arg max alone", "queries share votes")
    ]
    return table(
        ["representation", "prices", "votes of a query", *kinds, "shifted"], rows, "balance"
    )


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


def per_example() -> str:
    """Cost of per-example gradients."""
    rows = [
        [
            f"`{row['model']}`",
            str(row["batch_size"]),
            *(f"{row['times_as_long'][name]:.1f}" for name in ("step", "optax", "jax-privacy")),
        ]
        for row in load("noisy_sgd")["results"]["speed"]
    ]
    header = [
        "network",
        "batch",
        "noisy step / usual step",
        "clipped by optax / usual gradient",
        "clipped by jax-privacy / usual gradient",
    ]
    return table(header, rows, "noisy_sgd")


def buying() -> str:
    """Accuracy by number of bought labels, and in a polluted pool."""
    found = load("buying")
    rows = []
    for select in ("random", "entropy", "difference", "diverse_public", "near_private"):
        mine = [row for row in found["results"] if row["select"] == select]
        bought = {row["labels"]: row for row in mine if row["figure"] == "labels"}
        polluted = {
            row["polluted"]: row
            for row in mine
            if row["figure"] == "pollution" and row["pollution"] == "glued"
        }
        cells = [percent(bought[number]["test_accuracy"]) for number in sorted(bought)]
        cells += [f"{polluted[share]['test_accuracy']['mean']:.2%}" for share in (0.25, 0.5)]
        cells += [
            f"{next(row for row in mine if row['figure'] == 'quarters')['test_accuracy']['mean']:.2%}"  # noqa: E501
        ]
        rows.append([f"`{select}`", f"{bought[1000]['epsilon']:.3g}", *cells])
    numbers = sorted({row["labels"] for row in found["results"] if row["figure"] == "labels"})
    header = [
        "chosen by",
        "ε",
        *(f"{number:,} labels" for number in numbers),
        "1,000, a quarter glued",
        "half glued",
        "half in pieces",
    ]
    return table(header, rows, "buying")


def dpdfd() -> str:
    """Students distilled without data."""
    found = load("dpdfd")["results"]
    rows = []
    for name in ("Table 4", "Table 5", "Table 6", "Figure 2"):
        for row in found[name]:
            cells = [_epsilon(row[kind]) for kind in ("epsilon_as_published", "epsilon")]
            rows.append([name, row["name"], *cells, f"{row['test_accuracy']:.2%}"])
    return table(
        ["study", "form", "ε that Theorem 3 prints", "ε", "student on the test set"], rows, "dpdfd"
    )


def _epsilon(value: float | str) -> str:
    return "∞" if isinstance(value, str) else f"{value:.3g}"


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


def speed() -> str:
    """HOG and neighbors."""
    rows = []
    for row in load("hog")["results"]:
        shape = "{} × {} × {}".format(*row["shape"])
        rows.append(
            [
                f"HOG of {shape}, cells of {row['cell']}, blocks of {row['block']}",
                "scikit-image",
                f"{row['ratio']:.1f}",
            ]
        )
    found = load("neighbors")
    peers = " / ".join(f"{peer} {version}" for peer, version in found["peers"].items())
    for row in found["results"]["speed"]:
        size = "{:,} records, {:,} queries, {} features".format(*row["size"])
        rows.append(
            [
                f"{size}, k = {row['num_neighbors']}",
                peers,
                " / ".join(f"{row['ratio'][peer]:.1f}" for peer in found["peers"]),
            ]
        )
    for row in load("samples")["results"]:
        size = "{:,} queries, {:,} records, {} features".format(*row["size"])
        kind = (
            f"{row['num_samples']} samples of {row['sampling_prob']:.0%}"
            if row["sampling_prob"] < 1
            else "all records"
        )
        found_by = f"faiss-cpu, the {row['needed']:,} nearest"
        rows.append(
            [f"{size}, k = {row['num_neighbors']} of {kind}", found_by, f"{row['ratio']:.1f}"]
        )
    return table(["work", "peer", "times as fast"], rows, "neighbors")


def growth() -> str:
    """Votes of growing numbers of records."""
    rows = [
        [
            f"{row['records']:,}",
            f"{row['seconds']:.2f} s",
            f"{row['seconds'] / row['records'] * 1e6:.2f} µs",
            f"{row['over'] / 1e6:.0f} MB",
        ]
        for row in load("neighbors")["results"]["growth"]
    ]
    return table(
        ["records", "votes summed in", "a record", "peak memory grew by"], rows, "neighbors"
    )


def accelerator() -> str:
    """The assignment and the decode on a GPU."""
    parts = load("accelerator")["results"]
    rows = []
    for name, part in parts.items():
        found = part["result"]
        if name.startswith("nearest"):
            points, references, width = found["size"]
            took = found["seconds"]
            work = f"{points:,} of {width} on {references:,}, k = {found['num_neighbors']}"
            rows.append(
                [
                    work,
                    f"{1000 * took['pallas']:.1f} ms",
                    f"{found['ratio']['xla']:.1f}",
                    f"{found['ratio']['torch']:.1f}",
                    f"{found['share_of_ceiling']:.1%}",
                ]
            )
        if name == "decode":
            work = f"decode of {found['messages']:,} messages on {found['cells']:,} cells"
            took = found["seconds"]
            share = f"{found['share_of_ceiling']:.1%}"
            rows.append(
                [work, f"{1000 * took['pallas']:.1f} ms", f"{found['ratio']:.1f}", "", share]
            )
    header = ["work", "Pallas", "times as fast as XLA", "as torch", "share of the ceiling"]
    return table(header, rows, "accelerator")


def accelerator_blocks() -> str:
    """The assignment on a GPU over the size of its blocks."""
    parts = load("accelerator")["results"]
    names = [name for name in parts if name.startswith("blocks")]
    rows = []
    for name in names:
        found = parts[name]["result"]
        for form in ("pallas", "xla"):
            for count in (1, 10):
                times = [
                    f"{1000 * row['seconds']:.1f} ms"
                    for row in sorted(found, key=lambda row: int(row["block"]))
                    if (row["form"], row["num_neighbors"]) == (form, count)
                ]
                rows.append([name.removeprefix("blocks "), form, str(count), *times])
    header = ["work", "form", "k", "blocks of 8,192", "of 65,536", "one block"]
    return table(header, rows, "accelerator")


def cifar10_labels() -> str:
    """Labels of CIFAR-10 on SimCLR's features."""
    rows = [
        [
            row["trust"],
            f"{row['epsilon']}" if row["epsilon"] != "inf" else "∞",
            str(row["queries"]),
            percent(row["plain"]),
            percent(row["spread"]),
            percent(row["worst_class"]),
            f"{min(row['spread']['values']):.2%}",
        ]
        for row in load("cifar10_labels")["results"]["rows"]
        if row["queries"] in (100, 500)
    ]
    header = [
        "trust",
        "ε",
        "queries",
        "arg max",
        "default",
        "worst class of the default",
        "worst release",
    ]
    return table(header, rows, "cifar10_labels")


def peers() -> str:
    """Simulation of local mechanisms against other libraries and the machine."""
    found = load("peers")["results"]
    sizes = list(dict.fromkeys(row["d"] for row in found["peers"]))
    most = max(row["clients"] for row in found["peers"])
    rows = []
    for name in dict.fromkeys(row["mechanism"] for row in found["peers"]):
        each = [
            row for row in found["peers"] if row["mechanism"] == name and row["clients"] == most
        ]
        for level in ("message", "count"):
            ratios = [
                " / ".join(f"{ratio:,.0f}" for ratio in row[f"{level}_ratio"].values())
                for row in each
            ]
            rows.append([f"`{name}`, {level} level", "pure-ldp / multi-freq-ldpy", *ratios])
    alone = [row for row in found["bits"] + found["decode"] if row["cores"] == 1]
    for width in dict.fromkeys(row["vector_width"] for row in alone):
        each = [row for row in alone if row["vector_width"] == width]
        ratios = [f"{row['ratio']['bits']:.0f}" for row in each if "ratio" in row]
        shares = [f"{row['share_of_bound']:.2f}" for row in each if "share_of_bound" in row]
        rows.append(
            [
                f"packed random bits, one core, XLA's vectors of {width} bits",
                "`jax.random.bernoulli`",
                *ratios,
            ]
        )
        rows.append(
            [
                f"`collision` decoded, one core, XLA's vectors of {width} bits",
                "C, tiled in registers",
                *shares,
            ]
        )
    return table(["work", "peer", *(f"d = {d:,}" for d in sizes)], rows, "peers")


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
        local = [f"{found['local_epsilon']:.2f}" for found in (general, tighter)]
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


def federation() -> str:
    """MNIST through the protocol."""
    rows = []
    for row in load("federation")["results"]["mnist"]:
        guarantee = row["guarantee"]
        sent = f"{row['messages']:,} messages" if row["trust"] != "central" else "a vector each"
        rows.append(
            [
                str(row["parties"]),
                row["trust"],
                guarantee["unit"],
                f"{guarantee['epsilon']:g}",
                f"{guarantee['delta']:g}",
                sent,
                f"{row['most_bytes']:,}",
                percent(row["label_accuracy"]),
            ]
        )
    header = [
        "MNIST's writers, as so many parties",
        "trust",
        "protected",
        "ε",
        "δ",
        "sent",
        "most bytes of a party",
        "public labels right",
    ]
    return table(header, rows, "federation")


def replay() -> str:
    """Speed of the server."""
    rows = [
        [
            f"`{row['mechanism']}`",
            str(row["message_bytes"]),
            f"{row['messages_per_second'] / 1e6:.2g}",
            f"{row['ratio']:.0f}",
        ]
        for row in load("federation")["results"]["replay"]
    ]
    header = [
        "a million answers, 400 cells",
        "bytes each",
        "million a second, checked, on disk and counted",
        "times one by one",
    ]
    return table(header, rows, "federation")


def virtual() -> str:
    """Virtual clients in Flower's simulation engine."""
    rows = [
        [
            f"{row['nodes']:,}",
            f"{row['seconds']:.0f} s",
            f"{row['bytes_at_tenths'][0] / 2**30:.2f} GiB",
            f"{row['peak_bytes'] / 2**30:.2f} GiB",
            f"{row['counted']:,}",
        ]
        for row in load("federation")["results"]["clients"]
    ]
    return table(
        [
            "virtual one-record clients, each with a ledger",
            "one round",
            "memory of all processes after a tenth",
            "at most",
            "counted",
        ],
        rows,
        "federation",
    )


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


def compare() -> str:
    """Every method of `train.compare`, as far as measured."""
    rows = [
        list(comparison.line(row)) for row in load("compare")["results"]["rows"] if row["seeds"]
    ]
    header = [
        "method",
        "trust",
        "ε",
        "δ",
        "seeds",
        "public labels right",
        "its network on the test set",
        "student on the test set",
    ]
    return table(header, rows, "compare")


def mutants() -> str:
    """Planted faults that the tests notice, by module, before and after the suite was made fast."""
    before = load("mutants_before")["results"]["scores"]
    rows = []
    for path, score in load("mutants")["results"]["scores"].items():
        shares = []
        for found in (before.get(path), score):
            shares.append(
                f"{found['noticed']} of {found['mutants'] - found['equivalent']}"
                if found
                else "not measured"
            )
        rows.append([f"`{path.removeprefix('rknn_jax/')}`", *shares, str(score["equivalent"])])
    header = ["module", "noticed before", "noticed now", "equivalent, left out"]
    return table(header, rows, "mutants")


def kills() -> str:
    """Kills of a release, and recovery by the same command."""
    found = load("kills")["results"]
    names = (
        "killed",
        "after the charge",
        "finished by the same command",
        "complete before",
        "forgotten",
        "overspent",
        "drawn twice",
        "lost",
    )
    return table(list(names), [[f"{found.get(name, 0):,}" for name in names]], "kills")


def calibration() -> str:
    """Stated confidence, and the share of labels that noise left unchanged.

    The rows are data sets and epsilons.
    """
    found = load("calibration")["results"]
    rows = []
    for data in dict.fromkeys(row["data"] for row in found):
        for decode in ("argmax", "assignment"):
            mine = [row for row in found if row["data"] == data and row["decode"] == decode]
            mine = [row for row in mine if row["smoothing"] == "none"]
            queries = max(row["queries"] for row in mine)
            mine = [row for row in mine if row["queries"] == queries]
            told = [f"{row['said']:.2f} / {row['true']:.2f}" for row in mine]
            kind = " (development)" if mine[0]["development"] else ""
            rows.append(
                [
                    f"{data}{kind}",
                    f"`{decode}`",
                    str(queries),
                    *told,
                    f"{max(row['too_much'] for row in mine):.2f}",
                ]
            )
    epsilons = sorted({row["epsilon"] for row in found})
    header = [
        "data",
        "decode",
        "queries",
        *(f"said / true, ε = {epsilon:g}" for epsilon in epsilons),
        "too much, worst ε",
    ]
    return table(header, rows, "calibration")


def fuzz() -> str:
    """Mutated inputs of each reader, and their outcomes."""
    rows = []
    for row in load("fuzz")["results"]:
        outcomes = dict(row["outcomes"])
        read = outcomes.pop("read", 0)
        failures = sum(row["failures"].values())
        counts = [row["inputs"], read, sum(outcomes.values()) - failures, failures]
        worst = f"{row['worst_seconds']:.2f} s"
        memory = f"{row['most_bytes'] / 2**20:.0f} MiB"
        rows.append([f"`{row['target']}`", *(f"{count:,}" for count in counts), worst, memory])
    sums = [sum(int(row[column].replace(",", "")) for row in rows) for column in range(1, 5)]
    rows.append(["all", *(f"{count:,}" for count in sums), "", ""])
    return table(
        [
            "reader",
            "inputs",
            "read",
            "refused in a sentence",
            "failures",
            "slowest",
            "memory taken",
        ],
        rows,
        "fuzz",
    )


def beyond_memory() -> str:
    """Votes of private records that are read in blocks."""
    rows = [
        [
            f"{row['records']:,} × 256",
            f"{row['gigabytes']:.1f} GB",
            f"{row['pass_seconds']:.1f} s",
            f"{row['records_per_second']:,.0f}",
            f"{row['peak_above_library_bytes'] / 1e6:.0f} MB",
        ]
        for row in load("scale")["results"]["memory"]
    ]
    header = [
        "private records",
        "size",
        "one pass",
        "records a second",
        "memory beyond the library",
    ]
    return table(header, rows, "scale")


def beyond_floors() -> str:
    """One pass beside its floors, and the whole command."""
    found = load("scale")["results"]
    (pass_,) = found["overlap"]
    names = {
        "read_and_hash": "reading and hashing alone",
        "assign_in_memory": "assignment of arrays in memory alone",
        "pass": "one pass, all of it",
    }
    rows = [
        [f"1,000,000 × 768: {words}", f"{min(pass_['seconds'][name]):.1f} s"]
        for name, words in names.items()
    ]
    (command,) = found["command"]
    (whole,) = found["whole"]
    rows.append(
        ["`rknn label`, 100,000 × 768 private, 20,000 public", f"{min(command['seconds']):.1f} s"]
    )
    rows.append(
        [
            "`rknn label`, 1,000,000 × 256 private, 1,000,000 public",
            f"{whole['seconds']:.0f} s, {whole['peak_bytes'] / 1e9:.1f} GB",
        ]
    )
    return table(["work", "shortest of three"], rows, "scale")


def public_side() -> str:
    """Clustering and graphs of many public rows, beside the exact ones."""
    found = load("scale")["results"]["public"]
    ours, theirs = (found[0]["clustering"][name] for name in ("sampled", "scikit-learn"))
    rows = [
        [
            "k-means, 20,000 × 768, 200 queries",
            f"inertia {ours['inertia'] / theirs['inertia']:.3f} of scikit-learn's",
            f"{ours['cpu_seconds'] / theirs['cpu_seconds']:.1%} of its CPU time",
        ]
    ]
    for row in found[1:]:
        name = f"graph of {row['rows']:,} rows: {row['graph']}"
        recall = f"{row['recall']:.1%} of the ten nearest"
        rows.append([name, recall, f"{row['cpu_seconds']:.1f} s of CPU"])
    return table(["work", "found", "cost"], rows, "scale")


def public_growth() -> str:
    """Time of the public side by the number of rows."""
    rows = [
        [
            f"{row['rows']:,}",
            *(f"{row[f'{part}_seconds']:.1f} s" for part in ("clustering", "graph", "spreading")),
            f"{row['peak_bytes'] / 1e9:.1f} GB",
        ]
        for row in load("scale")["results"]["growth"]
    ]
    header = ["public rows", "clustering", "neighbor graph", "spreading labels", "memory in all"]
    return table(header, rows, "scale")


def beyond_machine() -> str:
    """Votes of records that are made and counted on a Ray cluster."""
    rows = [
        [
            f"{row['records']:,} × {row['features']}",
            f"{row['shards']:,}",
            f"{row['seconds'] / 60:.0f} min",
            f"{row['records_per_second']:,.0f}",
            f"{row['bytes_at_each_twentieth'][0] / 1e9:.2f} GB",
            f"{max(row['bytes_at_each_twentieth']) / 1e9:.2f} GB",
        ]
        for row in load("scale")["results"]["cluster"]
    ]
    header = [
        "records",
        "shards",
        "time",
        "records a second",
        "all processes after 5%",
        "all processes at most",
    ]
    return table(header, rows, "scale")


def persons_mnist() -> str:
    """Labels of MNIST with a writer as the unit, by bound, trust and epsilon."""
    return _by_bound(load("persons")["results"]["mnist"], "trust", "label_accuracy")


def persons_skewed() -> str:
    """Labels of queries by made-up persons of unequal size, by bound and epsilon."""
    return _by_bound(load("persons")["results"]["skewed"], "case", "queries_right")


def persons_labelers() -> str:
    """Labels of MNIST by every labeler with a writer as the unit: mean, worst run, worst class."""
    found = load("persons_labelers")["results"]
    told = {
        (row["title"], float(row["epsilon"])): f"{row['label_accuracy']['mean']:.1%}, "
        f"{row['label_accuracy']['worst']:.1%}, {row['worst_class']:.1%}"
        for row in found
    }
    epsilons = sorted({epsilon for _, epsilon in told})
    rows = [
        [title, *(told.get((title, epsilon), "") for epsilon in epsilons)]
        for title in dict.fromkeys(row["title"] for row in found)
    ]
    words = {0.0: "nothing private", float("inf"): "∞"}
    header = ["method", *(words.get(one, f"ε = {one:g}") for one in epsilons)]
    return table(header, rows, "persons_labelers")


def decoding() -> str:
    """Public labels that are right, by case, epsilon and the way to decode the counts."""
    rows = []
    for (case, epsilon), told in _decoded().items():
        if epsilon in (0.1, 1.0):
            one = told["decoded"]
            cells = [_three(told[name]) if name in told else "" for name in DECODERS]
            stable = f"{one['stability']:.1%}, {one['same']:.1%}"
            constant = f"{one['constant']:.1%}"
            rows.append([case, f"{epsilon:g}", constant, *cells, stable, f"{one['expected']:.1%}"])
    header = ["data", "ε", "one class", *DECODERS, "stability, same", "expected"]
    return table(header, rows, "decoding")


def decoding_losses() -> str:
    """Cases and epsilons where another way to decode has a point more right than the default."""
    rows = []
    for (case, epsilon), told in _decoded().items():
        one = told["decoded"]
        others = [told[name] for name in DECODERS[:-1] if name in told]
        best = max(others, key=lambda other: other["right"])
        if best["right"] > one["right"] + 0.01:
            name, constant = best["method"], f"{one['constant']:.1%}"
            rows.append([case, f"{epsilon:g}", constant, _three(one), name, _three(best)])
    header = ["data", "ε", "one class", "decoded", "the best", "of which"]
    return table(header, rows, "decoding")


DECODERS = ("argmax", "spread", "assignment", "decoded")


def _decoded() -> dict[tuple[str, float], dict[str, dict[str, Any]]]:
    """Return the results by case and epsilon, then by method."""
    found: dict[tuple[str, float], dict[str, dict[str, Any]]] = {}
    for row in load("decoding")["results"]:
        found.setdefault((row["case"], row["epsilon"]), {})[row["method"]] = row
    return found


def _three(row: dict[str, Any]) -> str:
    """Format the mean, the worst release, and the worst class."""
    return ", ".join(f"{row[name]:.1%}" for name in ("right", "worst_run", "worst_class"))


def _by_bound(found: list[dict[str, Any]], kind: str, measured: str) -> str:
    """Return a row for each kind and epsilon, and a column for each bound: mean, worst release."""
    names = list(dict.fromkeys(row["bound"] for row in found))
    told = {
        (row[kind], row["epsilon"], row["bound"]): f"{row[measured]['mean']:.1%}, "
        f"{row[measured]['worst']:.1%}"
        for row in found
    }
    rows = [
        [which, f"{epsilon:g}", *(told.get((which, epsilon, name), "") for name in names)]
        for which, epsilon in dict.fromkeys((row[kind], row["epsilon"]) for row in found)
    ]
    words = {"none": "a digit is the unit", "shared": "one vote shared"}
    words |= {"clipped": "clipped, Gaussian noise"}
    header = [kind, "ε", *(words.get(name, f"m = {name.removesuffix(' drawn')}") for name in names)]
    return table(header, rows, "persons")


MAKERS = (
    distill,
    goals,
    studies,
    labels,
    balance,
    mechanisms,
    local,
    accountants,
    papers,
    attributes,
    label_sets,
    noisy_sgd,
    per_example,
    buying,
)


def choosing() -> str:
    """How far below the best labeler the choice of one is."""
    return table(*_choosing_tables.shortfalls(load("choosing")["results"]), "choosing")


def choosing_cells() -> str:
    """Labels by each labeler of `rknn label`."""
    return table(*_choosing_tables.cells(load("choosing")["results"]), "choosing")


MAKERS += (
    choosing,
    choosing_cells,
    shuffling,
    compare,
    relations,
    dpdfd,
    speed,
    growth,
    beyond_memory,
    beyond_floors,
    public_side,
    public_growth,
    beyond_machine,
    persons_mnist,
    persons_skewed,
    persons_labelers,
    decoding,
    decoding_losses,
    accelerator,
    accelerator_blocks,
    cifar10_labels,
    peers,
    federation,
    replay,
    virtual,
    mutants,
    kills,
    calibration,
    fuzz,
)
TABLES = {make.__name__: make for make in MAKERS}


def documents() -> list[Path]:
    """Return the Markdown files that may show tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def with_tables(text: str) -> str:
    """Return a document with all its tables made anew.

    Raises KeyError for a place whose table does not exist.
    """
    return PLACE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", text)


def main() -> None:
    """Rewrite the tables and pictures."""
    for document in documents():
        text = document.read_text()
        if (rewritten := with_tables(text)) != text:
            document.write_text(rewritten)
    _pictures.compare(load("compare"))
    _pictures.figure5(load("local"))
    _pictures.figure6(load("appendix_b"))
    _pictures.labelers(load("labelers"), load("noisy_sgd"), load("dpdfd"), load("buying"))
    _pictures.buying(load("buying"))
    _pictures.screening(load("accountants"))
    _pictures.scale(load("scale"))


if __name__ == "__main__":
    main()
