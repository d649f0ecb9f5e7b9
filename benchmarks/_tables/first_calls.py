"""Waiting times of a first run."""

from benchmarks._tables._format import load, table


def first_calls() -> str:
    """A release from a cold start, the demo's compilation, and the sum of noisy SGD."""
    found = load("first_calls")["results"]
    label = found["label"]
    rows = [
        [
            "`rknn label` on digits, cold start",
            f"{label['seconds']:.1f} s, {label['cpu_seconds']:.1f} s of CPU time",
        ]
    ]
    for name, compiled in (("its", label["compiled"]), ("the demo's", found["demo"])):
        programs = f"{compiled['programs']} programs, {compiled['seconds']:.1f} s"
        rows.append([f"{name} compilation", programs])
    noisy = found["noisy_sum"]
    times = noisy["cpu_seconds"]
    ours, peer = (1000 * sorted(times[name])[len(times[name]) // 2] for name in ("ours", "torch"))
    rows.append(
        [
            f"noisy SGD, clipped sum of {noisy['batch_size']} gradients of `{noisy['network']}`",
            f"{ours:.0f} ms, torch {noisy['torch']}'s `vmap` {peer:.0f} ms",
        ]
    )
    return table(["work", "time"], rows, "first_calls")
