"""Planted faults, kills, mutated files, and confidence against truth."""

import re

from benchmarks import _sources
from benchmarks._mutated import TESTS
from benchmarks._tables._format import load, source, table, verdict

OF_NETWORKS = (
    "seeds",
    "steps",
    "connections",
    "refused",
    "cut",
    "mute",
    "repeated",
    "strangers",
    "kills",
    "jumps of the clock",
    "partitions",
)
"""Counts of all histories of a simulated network."""


def tried() -> str:
    """All that was done to break a promise: how often, and how often it broke."""
    mutants = load("mutants")["results"]["scores"].values()
    sound = [row["mutants"] - row["equivalent"] for row in mutants]
    by_hand = load("planted_faults")["results"]
    calls = load("faults")["results"]
    fuzz = load("fuzz")["results"]
    kills = load("kills")["results"]
    world, network, sums, soak = (
        load(name)["results"] for name in ("simulate", "simulate_network", "simulate_sums", "soak")
    )
    audits = load("audit")["results"]
    said = [verdict(row) for row in audits]
    lost = sum(kills[name] for name in ("forgotten", "overspent", "drawn twice", "lost"))
    hostile = sum(count for name, count in soak["visits"].items() if name.startswith("hostile"))
    rows = [
        (
            "mutants",
            f"{sum(sound)} small faults in {len(sound)} modules",
            f"{sum(sound) - sum(row['noticed'] for row in mutants)} that no test notices",
        ),
        (
            "planted_faults",
            f"{len(by_hand)} faults planted by hand",
            f"{sum(row['by'] is None for row in by_hand)} that no test notices",
        ),
        (
            "audit",
            f"{len(audits)} audits of mechanisms, labelers and whole systems",
            f"{said.count('broken')} called broken, {said.count('inconclusive')} inconclusive",
        ),
        (
            "fuzz",
            f"{sum(row['inputs'] for row in fuzz):,} damaged files for {len(fuzz)} readers, in "
            "several runs",
            f"{sum(sum(row['failures'].values()) for row in fuzz)} failures",
        ),
        (
            "faults",
            f"{sum(sum(row['calls'].values()) for row in calls):,} system calls that fail once, in "
            "several runs",
            _broken(sum(len(row["broken"]) for row in calls)),
        ),
        ("kills", f"{kills['killed']:,} kills of a release", _broken(lost)),
        (
            "simulate",
            f"{world['calls']:,} calls in {world['seeds']} histories, {world['kills']:,} kills, "
            f"{world['losses of power']:,} losses of power",
            _broken(len(world["broken"])),
        ),
        (
            "simulate_network",
            f"{network['steps']:,} steps in {network['seeds']} histories of a round",
            _broken(len(network["broken"])),
        ),
        (
            "simulate_sums",
            f"{sums['steps']:,} steps in {sums['seeds']} histories of secure sums, "
            f"{sums['sums opened']} of {sums['sums begun']} opened",
            _broken(len(sums["broken"])),
        ),
        (
            "soak",
            f"{soak['minutes']:.0f} minutes with {soak['honest_clients']:,} clients, and "
            f"{hostile} attacks",
            _broken(0 if soak["counted_once"] else 1),
        ),
    ]
    lines = [["what was tried", "what it found", "measured"], ["---"] * 3]
    for name, what, result in rows:
        lines.append([what, result, source(name)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _broken(count: int) -> str:
    return f"{count} promises broken"


def mutants() -> str:
    """Planted faults that the tests notice, by module, and the modules that are still to run."""
    whole = load("mutants")
    parts, scores = _sources.parts(whole), whole["results"]["scores"]
    rows = []
    for path, score in scores.items():
        share = f"{score['noticed']} of {score['mutants'] - score['equivalent']}"
        since = "; changed since" if _sources.changed(parts[path]["sources"]) else ""
        rows.append(
            [_module(path), share, str(score["equivalent"]), f"{parts[path]['date']}{since}"]
        )
    missing = [_module(path) for path in TESTS if path not in scores]
    if missing:
        rows.append([", ".join(missing), "not run yet", "", ""])
    return table(["module", "noticed", "equivalent, left out", "run"], rows, "mutants")


def _module(path: str) -> str:
    return f"`{path.removeprefix('rknn_jax/')}`"


def planted_faults() -> str:
    """Faults planted by hand, and the first test that finds each."""
    rows = []
    for row in load("planted_faults")["results"]:
        found = f"`{row['by'].split('[')[0]}`" if row["by"] else row["outcome"]
        rows.append([row["kind"], row["words"], found])
    return table(["kind", "fault", "found by"], rows, "planted_faults")


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


def faults() -> str:
    """Calls that fail once, by command, and how the commands end."""
    found = load("faults")["results"]
    rows = []
    for row in found:
        calls = sum(row["calls"].values())
        ends = ", ".join(f"{status}: {count}" for status, count in row["statuses"].items())
        every = "every" if row["step"] == 1 else f"one in {row['step']}"
        rows.append(
            [
                f"`{row['command']}`",
                row["error"],
                every,
                f"{calls:,}",
                ends,
                str(len(row["broken"])),
            ]
        )
    header = ["command", "error", "calls", "failed", "exit status: how often", "promises broken"]
    return table(header, rows, "faults")


def simulate() -> str:
    """Histories of a simulated world, and the faults in them."""
    names = (
        "seeds",
        "calls",
        "processes",
        "errors",
        "short writes",
        "kills",
        "losses of power",
    )
    return _histories("simulate", names)


def simulate_planted() -> str:
    """Faults in the code that a simulated world finds, with the first seed that does."""
    return _planted("simulate_planted")


def simulate_network() -> str:
    """Histories of a simulated network, and the faults in them."""
    names = (
        *OF_NETWORKS,
        "answers counted",
    )
    return _histories("simulate_network", names)


def simulate_network_planted() -> str:
    """Faults in the code that a simulated network finds, with the first seed that does."""
    return _planted("simulate_network_planted")


def simulate_sums() -> str:
    """Histories of secure sums in a simulated network, and who left in them."""
    names = (
        *OF_NETWORKS,
        "sums begun",
        "sums opened",
        *(f"left before {step}" for step in ("keys", "shares", "vectors", "openings")),
        "vectors in sums",
        "vectors paid",
    )
    return _histories("simulate_sums", names)


def simulate_sums_planted() -> str:
    """Faults in the code that histories of secure sums find, with the first seed that does."""
    return _planted("simulate_sums_planted")


def _histories(name: str, counts: tuple[str, ...]) -> str:
    found = load(name)["results"]
    row = [f"{found.get(one, 0):,}" for one in counts] + [str(len(found["broken"]))]
    return table([*counts, "promises broken"], [row], name)


def _planted(name: str) -> str:
    rows = []
    for row in load(name)["results"]:
        words = re.sub(r"\S+/", "", row["broken"]).partition(": it is no ledger")[0]
        rows.append([row["words"], str(row["seed"]) if row["seed"] >= 0 else "none", words])
    return table(["fault", "seed", "what it breaks"], rows, name)


def soak() -> str:
    """Hours of clients who come and go, and what a server had taken at their end."""
    found = load("soak")["results"]
    visits = found["visits"]
    hostile = sum(count for name, count in visits.items() if name.startswith("hostile"))
    failed = sum(count for name, count in visits.items() if name.startswith("failed"))
    memory = " and ".join(f"{found['memory_bytes'][one] / 1e6:.0f} MB" for one in ("warm", "most"))
    rows = [
        ["minutes, in sessions", f"{found['minutes']:.0f}, in {found['sessions']}"],
        ["visits", f"{visits['looked'] + visits['answered']:,}"],
        ["visits that failed", f"{failed:,}"],
        ["hostile visits", f"{hostile:,}"],
        [
            "answers counted, of honest clients",
            f"{found['answers_counted']:,} of {found['honest_clients']:,}, "
            + ("each once" if found["counted_once"] else "NOT each once"),
        ],
        [
            "memory after a tenth of the time, and at most",
            memory,
        ],
        ["growth, of the 20% that are allowed", f"{found['memory_grows_by']:.0%}"],
        [
            "open files at first, at most, and at the end",
            f"{found['files_at_start']:.0f}, {found['most_files']:.0f} and "
            f"{found['files_when_quiet']:.0f}",
        ],
        ["log", f"{found['log_bytes'] / 1e6:.1f} MB"],
    ]
    return table(["measured", "value"], rows, "soak")
