"""Speed on CPU and GPU."""

from typing import Any

from benchmarks._tables._format import load, source, table


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
    others = " ".join(map(source, ("hog", "samples")))
    return f"{table(['work', 'peer', 'times as fast'], rows, 'neighbors')} {others}"


def encoders() -> str:
    """Encoders, beside the code that encoded blocks of records."""
    rows = [
        [
            row["encoder"],
            f"{_rounded(row['before']):,}",
            f"{_rounded(row['after']):,}",
            f"{row['ratio']:.2f}",
        ]
        for row in load("encoders")["results"]
    ]
    header = ["encoder", "blocks, records/s", "one a program, records/s", "ratio"]
    return table(header, rows, "encoders")


def _rounded(value: float) -> int:
    """Return a number with two digits that mean something."""
    return int(float(f"{value:.2g}"))


def csv_records() -> str:
    """The CSV reader beside the one that took a line for a record."""
    rows = [
        [name, *(f"{row[work]['ratio']:.2f}" for work in ("num_rows", "blocks", "both"))]
        for name, row in load("csv_records")["results"].items()
    ]
    return table(["file", "count", "read", "both"], rows, "csv_records")


def assignment_worst() -> str:
    """The shapes at which the assignment is slowest beside FAISS, and those of the first call."""
    return _worst("assignment")


def assignment_avx2() -> str:
    """The slowest shapes where neither side uses AVX-512."""
    return _worst("assignment_avx2")


def _worst(name: str) -> str:
    found = load(name)["results"]
    by_ratio = sorted(found, key=lambda row: float(min(row["ratio"], row["ratio_of_jit"])))
    rows = [
        [
            "{:,} × {:,} × {:,}".format(*row["size"]) + f", k = {row['num_neighbors']}",
            str(row["cores"]),
            f"{row['ratio']:.2f}",
            f"{row['ratio_of_jit']:.2f}",
            f"{1000 * row['first_call']:,.0f} ms",
        ]
        for row in [*by_ratio[:5], by_ratio[len(by_ratio) // 2], by_ratio[-1]]
    ]
    rows = [
        [name, *row]
        for name, row in zip([*["slowest"] * 5, "median", "fastest"], rows, strict=True)
    ]
    header = [
        "",
        "records × queries × features",
        "cores",
        "times as fast as FAISS",
        "in `jit`",
        "first call",
    ]
    return table(header, rows, name)


def assignment_grid() -> str:
    """Every measured shape of the assignment beside FAISS."""
    found = load("assignment")["results"]
    widths = sorted({row["size"][2] for row in found})
    groups = dict.fromkeys((row["cores"], *row["size"][:2]) for row in found)
    rows = []
    for cores, num_records, num_queries in groups:
        shapes = [
            " / ".join(
                f"{row['ratio']:.1f}"
                for row in found
                if (row["cores"], *row["size"]) == (cores, num_records, num_queries, width)
            )
            for width in widths
        ]
        rows.append([str(cores), f"{num_records:,}", f"{num_queries:,}", *shapes])
    header = ["cores", "records", "queries", *(f"f = {width:,}" for width in widths)]
    return table(header, rows, "assignment")


def assignment_pictures() -> str:
    """The assignment of MNIST's images beside FAISS."""
    found = load("assignment_pictures")["results"]
    rows = []
    for name, size in dict.fromkeys((row["data"], tuple(row["size"])) for row in found):
        mine = [row for row in found if (row["data"], tuple(row["size"])) == (name, size)]
        ratios = " / ".join(f"{row['ratio']:.1f}" for row in mine)
        rows.append([name, "{:,} × {:,} × {:,}".format(*size), ratios])
    header = ["data", "records × queries × features", "times as fast as FAISS, k = 1 / 4 / 10"]
    return table(header, rows, "assignment_pictures")


def assignment_data() -> str:
    """The assignment of data that are not Gaussian beside FAISS, the slowest first."""
    found = load("assignment_data")["results"]
    groups: dict[tuple[str, tuple[int, ...]], list[dict[str, Any]]] = {}
    for row in found:
        groups.setdefault((row["data"], tuple(row["size"])), []).append(row)
    slowest_first = sorted(groups.items(), key=lambda item: min(row["ratio"] for row in item[1]))
    rows = [
        [
            name,
            "{:,} × {:,} × {:,}".format(*size),
            *(
                " / ".join(f"{row[ratio]:.2f}" for row in mine)
                for ratio in ("ratio", "ratio_of_jit")
            ),
        ]
        for (name, size), mine in slowest_first
    ]
    header = ["data", "records × queries × features", "k = 1 / 4 / 10", "in `jit`"]
    return table(header, rows, "assignment_data")


def clustering() -> str:
    """k-means beside scikit-learn's, the slowest first."""
    found = load("clustering")["results"]
    rows = [
        [
            f"{row['features']}, {row['size'][0]:,} × {row['size'][1]:,}",
            str(row["queries"]),
            f"{row['cpu_seconds']['ours']:.2f} s",
            f"{row['ratio']:.1f}",
            f"{row['inertia']:.4f}",
            f"{row['same_cluster']:.1%}",
        ]
        for row in sorted(found, key=lambda row: float(row["ratio"]))
    ]
    header = [
        "public rows",
        "queries",
        "five starts",
        "times as fast as scikit-learn",
        "inertia beside its",
        "rows in the same cluster",
    ]
    return table(header, rows, "clustering")


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


def accelerator_tiles() -> str:
    """The assignment's kernel on a GPU over the tiles of its product."""
    parts = load("accelerator")["results"]
    rows = []
    for name, part in parts.items():
        if name.startswith("tiles"):
            size, _, count = name.removeprefix("tiles ").rpartition(" ")
            for row in part["result"]:
                points, references, _, warps = row["tile"]
                tile = f"{points} × {references}"
                rows.append([size, count, tile, str(warps), f"{1000 * row['seconds']:.2f} ms"])
    return table(["size", "k", "points × references", "warps", "kernel"], rows, "accelerator")


def ledgers() -> str:
    """A ledger's time and memory over the number of its spends."""
    rows = []
    for row in load("ledgers")["results"]["rows"]:
        first, later = row["without_summary"], row["with_summary"]
        rows.append(
            [
                f"{row['spends']:,}",
                f"{row['file_megabytes']:,.0f} MB",
                f"{later['open']:.2f} s",
                f"{1000 * later['charge']:.0f} ms",
                f"{later['megabytes']:,.0f} MB",
                f"{first['open']:,.1f} s",
                f"{first['charge']:,.1f} s",
            ]
        )
    summary = ["open", "charge", "memory"]
    return table(["spends", "file", *summary, "open, read whole", "charge"], rows, "ledgers")


def randomizers() -> str:
    """Clients a second of every local mechanism, and the speed of its count."""
    found = load("randomizers")["results"]
    sizes = sorted({row["cells"] for row in found})
    rows = []
    for name, votes in dict.fromkeys((row["mechanism"], row["num_neighbors"]) for row in found):
        mine = {
            row["cells"]: row
            for row in found
            if (row["mechanism"], row["num_neighbors"]) == (name, votes)
        }
        clients = [f"{mine[size]['clients']:,.0f}" for size in sizes]
        xla = [f"{mine[size]['xla']:,.0f}" for size in sizes]
        counts = [f"{mine[size]['count']:.1f}" if mine[size]["count"] else "" for size in sizes]
        label = f"`{name}`" if votes == 1 else f"`{name}`, k = {votes}"
        rows.append([label, *clients, *xla, *counts])
    heads = [f"clients/s, d = {size:,}" for size in sizes]
    heads += [f"XLA alone, d = {size:,}" for size in sizes]
    heads += [f"count, d = {size:,}" for size in sizes]
    return table(["mechanism", *heads], rows, "randomizers")


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
        kind = f"XLA's vectors of {width} bits" if width else "native kernels"
        ratios = [f"{row['ratio']['bits']:.0f}" for row in each if "ratio" in row]
        shares = [f"{row['share_of_bound']:.2f}" for row in each if "share_of_bound" in row]
        rows.append(
            [
                f"packed random bits, one core, {kind}",
                "`jax.random.bernoulli`",
                *ratios,
            ]
        )
        rows.append(
            [
                f"`collision` decoded, one core, {kind}",
                "C, tiled in registers",
                *shares,
            ]
        )
    return table(["work", "peer", *(f"d = {d:,}" for d in sizes)], rows, "peers")
