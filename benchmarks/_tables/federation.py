"""Real parties."""

from benchmarks._tables._format import load, percent, table


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
    return table(header, rows, "federation", "mnist")


def federation_labelers() -> str:
    """Sums of several labelers: public labels right, each in the column of its labeler."""
    ways: dict[tuple[str, ...], dict[str, str]] = {}
    for row in load("federation")["results"]["labelers"]:
        guarantee = row["guarantee"]
        way = (str(row["parties"]), guarantee["unit"], f"{guarantee['epsilon']:g}")
        ways.setdefault(way, {})[row["labeler"]] = percent(row["label_accuracy"])
    names = list(next(iter(ways.values())))
    rows = [[*way, *(found[name] for name in names)] for way, found in ways.items()]
    header = ["parties", "protected", "ε", *(f"`{name}`" for name in names)]
    return table(header, rows, "federation", "labelers")


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
    return table(header, rows, "federation", "replay")


def serving() -> str:
    """Answers that a real server takes."""
    rows = []
    for row in load("serving")["results"]:
        clients = row["visits"] / row["cpu_seconds"]
        rows.append(
            [
                "TLS" if row["secured"] else "plain, on one host",
                f"{row['records']:,}",
                f"{row['records'] * row['message_bytes']:,}",
                f"{clients:,.0f}",
                f"{clients * row['records']:,.0f}",
            ]
        )
    header = [
        "connection of a client",
        "records of a client",
        "bytes of an answer",
        "clients a second and core",
        "messages a second and core",
    ]
    return table(header, rows, "serving")


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
            "virtual one-record clients",
            "one round",
            "memory of all processes after a tenth",
            "at most",
            "counted",
        ],
        rows,
        "federation",
        "clients",
    )
