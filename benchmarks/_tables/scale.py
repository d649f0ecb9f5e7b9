"""Data beyond the memory of a machine."""

from benchmarks._tables._format import load, table


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
    return table(header, rows, "scale", "memory")


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
    return table(["work", "found", "cost"], rows, "scale", "public")


def public_growth() -> str:
    """Time of the public side by the number of rows."""
    rows = [
        [
            f"{row['rows']:,}",
            *(f"{row[f'{part}_seconds']:.1f} s" for part in ("clustering", "graph", "kernels")),
            f"{row['peak_bytes'] / 1e9:.1f} GB",
        ]
        for row in load("scale")["results"]["growth"]
    ]
    header = ["public rows", "clustering", "neighbor graph", "decoder's kernels", "memory in all"]
    return table(header, rows, "scale", "growth")


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
    return table(header, rows, "scale", "cluster")
