"""Pictures of the documentation, drawn from `benchmarks/results/*.json`.

They are Figures 4, 5 and 6 of the paper, Figure 5 of the Private-kNN paper, all labelers over
epsilon, records and purity, all methods on two axes, bought labels, and memory and time by size.
"""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.evolution import drawn
from train.compare.curves import draw

DOCS = Path(__file__).parent.parent / "docs"
RIVALS: dict[str, tuple[str, dict[str, Any]]] = {
    "reverse k-NN": ("rknn", {"color": "#0072b2"}),
    "reverse k-NN, shuffled": ("rknn, shuffle", {"color": "#0072b2", "linestyle": "--"}),
    "reverse k-NN, local": ("rknn, local", {"color": "#0072b2", "linestyle": ":"}),
    "class means": ("class means", {"color": "#d55e00"}),
    "public prototypes": ("public prototypes", {"color": "#d55e00", "linestyle": "--"}),
    "least squares": ("least squares", {"color": "#009e73"}),
    "noisy SGD": ("noisy_sgd", {"color": "#cc79a7"}),
    "Ind-KNN": ("individual_knn", {"color": "#e69f00"}),
    "Private-kNN": ("private_knn", {"color": "#e69f00", "linestyle": "--"}),
    "PATE": ("pate", {"color": "#56b4e9"}),
}
"""Lines of the figure of all labelers: name in the results, and look."""

BY_HAND = {10: "--", 100: ":"}
"""Numbers of labels by hand that are shown, and their lines."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#666666", "#e69f00", "#56b4e9", "#000000")


def picture(num_columns: int) -> tuple[Figure, list[Axes]]:
    """Return a figure of one row."""
    figure = Figure(figsize=(4.2 * num_columns, 3.4), layout="constrained")
    axes = figure.subplots(1, num_columns, squeeze=False)[0].tolist()
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.3)
    return figure, axes


def figure4(found: dict[str, Any]) -> None:
    """Accuracy of CIFAR-10's labels and students by queries, for each neighbors and epsilon."""
    figure, axes = picture(2)
    rows = found["results"]["figure4"]
    kinds = list(dict.fromkeys((row["name"], row["epsilon"]) for row in rows))
    words = ("public labels right", "student on the test set")
    for ax, name, what in zip(axes, ("right", "test_accuracy"), words, strict=True):
        for colour, (neighbors, epsilon) in zip(COLOURS, kinds, strict=False):
            mine = [row for row in rows if (row["name"], row["epsilon"]) == (neighbors, epsilon)]
            ax.errorbar(
                [row["queries"] for row in mine],
                [row[name]["mean"] for row in mine],
                [row[name]["stddev"] or 0 for row in mine],
                label=f"{neighbors}, ε = {epsilon:g}",
                marker="o",
                markersize=3,
                color=colour,
            )
        ax.set(xscale="log", xlabel="queries", ylabel=what, ylim=(0, 1))
    axes[1].legend(fontsize=7, loc="lower right")
    figure.savefig(DOCS / "figure4.png", dpi=150)


def figure5(found: dict[str, Any]) -> None:
    """Accuracy of MNIST's labels by epsilon and trust model."""
    figure, (ax,) = picture(1)
    kinds = list(dict.fromkeys((row["trust"], row["mechanism"]) for row in found["results"]))
    for colour, (trust, mechanism) in zip(COLOURS, kinds, strict=False):
        rows = [
            row
            for row in found["results"]
            if (row["trust"], row["mechanism"]) == (trust, mechanism)
        ]
        accuracy = [row["label_accuracy"] for row in rows]
        line = {
            "color": colour,
            "linestyle": {"local": "-", "shuffle": "--", "central": ":"}[trust],
        }
        ax.errorbar(
            [row["epsilon"] for row in rows],
            [value["mean"] for value in accuracy],
            [value["stddev"] for value in accuracy],
            label=f"{mechanism.replace('_', ' ')} ({trust})",
            marker="o",
            markersize=3,
            **line,
        )
    ax.set(xscale="log", xlabel="ε", ylabel="public labels right", ylim=(0, 1.02))
    ax.axhline(0.1, color="#bbbbbb", linewidth=0.8)
    ax.legend(fontsize=7, loc="lower right")
    figure.savefig(DOCS / "figure5.png", dpi=150)


def figure6(found: dict[str, Any]) -> None:
    """Error of a cell by epsilon for one client and for a million.

    The last axis shows the correct labels from a million clients.
    """
    figure, axes = picture(3)
    one, many = (
        {
            name: [
                row
                for row in found["results"]
                if (row["clients"], row["mechanism"]) == (clients, name)
            ]
            for name in dict.fromkeys(row["mechanism"] for row in found["results"])
        }
        for clients in (1, 1_000_000)
    )
    for ax, kinds, what in (
        (axes[0], one, "expected"),
        (axes[1], many, "expected"),
        (axes[2], many, "right"),
    ):
        for colour, (name, rows) in zip(COLOURS, kinds.items(), strict=False):
            ax.plot(
                [row["epsilon"] for row in rows],
                [row[what] for row in rows],
                label=name,
                color=colour,
            )
    sizes = found["num_queries"] * found["num_classes"]
    for ax, rows in ((axes[0], one), (axes[1], many)):
        zeros = next(iter(rows.values()))[0]["of_zeros"]
        ax.axhline(zeros, color="#bbbbbb", linestyle=":", label="an answer of zeros")
        ax.set(yscale="log", xlabel="ε", ylabel=f"mean squared error of {sizes:,} cells")
    for ax in axes[1:]:
        ax.set_xlabel("ε")
    for ax, title in zip(axes, ("1 client", "1,000,000 clients", "1,000,000 clients"), strict=True):
        ax.set_title(title, fontsize=10)
    axes[2].set(ylabel="queries with the right label", ylim=(-0.02, 1.02))
    axes[0].legend(fontsize=7)
    figure.savefig(DOCS / "figure6.png", dpi=150)


def rivals(found: dict[str, Any]) -> None:
    """Accuracy by epsilon of every labeler, in a panel for each data set and number of records.

    Bands are a standard deviation over splits. Small marks are the worst release, and gray lines
    are labels by hand, with no private record.
    """
    rows = found["results"]["rows"]
    free = found["results"]["nothing_private"]
    spaces = sorted(free, key=lambda name: -free[name]["purity"])
    sizes = sorted({row["num_records"] for row in rows})
    figure = Figure(figsize=(4 * len(spaces), 2.7 * len(sizes)), layout="constrained")
    axes = figure.subplots(len(sizes), len(spaces), sharex=True, sharey=True, squeeze=False)
    for size, line in zip(sizes, axes, strict=True):
        for space, ax in zip(spaces, line, strict=True):
            for label, (method, style) in RIVALS.items():
                mine = [
                    row
                    for row in rows
                    if (row["space"], row["num_records"], row["method"]) == (space, size, method)
                ]
                _curve(ax, mine, label, style)
            for one in free[space]["by_hand"]:
                if one["labels"] in BY_HAND:
                    dashes = BY_HAND[one["labels"]]
                    ax.axhline(
                        100 * one["label_accuracy"]["mean"],
                        color="#777777",
                        linestyle=dashes,
                        linewidth=1,
                        label=f"no private record: {one['labels']} labels by hand",
                    )
            ax.spines[["top", "right"]].set_visible(False)
            ax.grid(alpha=0.3)
            ax.set(xscale="log", ylim=(0, 101))
    for space, ax in zip(spaces, axes[0], strict=True):
        ax.set_title(f"{space}\nten clusters {free[space]['purity']:.0%} pure", fontsize=10)
    for size, line in zip(sizes, axes, strict=True):
        line[0].set_ylabel(f"{size:,} records\n% of labels right")
    for ax in axes[-1]:
        ax.set_xlabel(f"ε of a replaced record, δ = {found['delta']:g}")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, fontsize=8, loc="outside right center")
    figure.savefig(DOCS / "rivals.png", dpi=110)


def _curve(ax: Axes, rows: list[dict[str, Any]], label: str, style: dict[str, Any]) -> None:
    """Draw one labeler's means with their band, and its worst releases."""
    epsilon = [row["epsilon"] for row in rows]
    mean = np.array([100 * row["label_accuracy"]["mean"] for row in rows])
    stddev = np.array([100 * (row["label_accuracy"]["stddev"] or 0) for row in rows])
    ax.plot(epsilon, mean, label=label, linewidth=1.4, **style)
    ax.fill_between(epsilon, mean - stddev, mean + stddev, color=style["color"], alpha=0.12, lw=0)
    worst = [100 * row["label_accuracy"]["worst"] for row in rows]
    ax.plot(epsilon, worst, "v", color=style["color"], markersize=2.5)


def compare(found: dict[str, Any]) -> None:
    """All methods of `train.compare` on MNIST.

    The first axis shows public labels. The second shows the output of each method's paper, which is
    a student or a private network.
    """
    figure, axes = picture(2)
    for ax, told, what in zip(
        axes, (None, "told"), ("public labels right", "accuracy on the test set"), strict=True
    ):
        free = () if told else found["results"].get("by_hand", ())
        draw(found["results"]["rows"], told, what, ax, free)
        ax.set_xlabel(f"ε of a replaced record, δ = {found['delta']:g}")
    handles, names = axes[0].get_legend_handles_labels()
    for ax in axes:
        ax.get_legend().remove()
    figure.legend(handles, names, fontsize=7, loc="outside lower center", ncols=3)
    figure.set_size_inches(9.5, 5)
    figure.savefig(DOCS / "compare.png", dpi=150)


def screening(found: dict[str, Any]) -> None:
    """Figure 5 of the Private-kNN paper, with PLD."""
    figure, (ax,) = picture(1)
    for colour, row in zip(COLOURS, found["results"]["figure5"], strict=False):
        line = "--" if row["printed"] is None else "-"
        printed = "" if row["printed"] is None else f" (printed: {row['printed']:g})"
        ax.plot(
            row["queries"],
            row["epsilon"],
            color=colour,
            linestyle=line,
            label=f"{row['name']}: {row['epsilon'][-1]:.4g}{printed}",
        )
    ax.set(xlabel="queries screened", ylabel="ε at δ = 1e-5")
    ax.legend(fontsize=7)
    figure.savefig(DOCS / "screening.png", dpi=150)


def buying(found: dict[str, Any]) -> None:
    """Accuracy by number of bought labels, in polluted pools, and by the selectors' settings."""
    figure, axes = picture(4)
    colours = dict(
        zip(
            ("random", "entropy", "difference", "diverse_public", "near_private"),
            COLOURS[4::-1],
            strict=True,
        )
    )

    def line(ax: Axes, rows: list[dict[str, Any]], x: str, **how: Any) -> None:
        accuracy = [row["test_accuracy"] for row in rows]
        spread = [value["stddev"] or 0 for value in accuracy]
        ax.errorbar(
            [row[x] for row in rows],
            [value["mean"] for value in accuracy],
            spread,
            marker="o",
            markersize=3,
            **how,
        )

    for ax, name, x in ((axes[0], "labels", "labels"), (axes[1], "pollution", "polluted")):
        for select, colour in colours.items():
            rows = [row for row in found[name] if row["select"] == select]
            line(ax, rows, x, color=colour, label=select.replace("_", " "))
    for ax, select in ((axes[2], "diverse_public"), (axes[3], "near_private")):
        names = [name for name in found if name.startswith(f"{select}:")]
        for colour, name in zip(COLOURS, names, strict=False):
            setting = name.removeprefix(f"{select}: ")
            rows = [row for row in found[name] if isinstance(row[setting], int | float)]
            if rows:
                line(ax, rows, setting, color=colour, label=setting.replace("_", " "))
        ax.set(xscale="log", xlabel="value of the setting", title=select.replace("_", " "))
        ax.legend(fontsize=7)
    for ax in axes[:2]:
        ax.axhline(
            found["networks"]["2.0"]["mean"], color="#bbbbbb", linestyle=":", label="nothing bought"
        )
    numbers = sorted({row["labels"] for row in found["labels"]})
    axes[0].set(
        xscale="log", xlabel="labels bought", ylabel="test images told right", title="a clean pool"
    )
    axes[0].set_xticks(numbers, [f"{number:,}" for number in numbers])
    axes[1].set(xlabel="share of the pool that is no digit", title="1,000 labels bought")
    axes[3].set_title("near private, half of the pool no digits")
    for ax in axes:
        ax.title.set_fontsize(10)
        ax.minorticks_off()
    axes[0].legend(fontsize=7)
    figure.savefig(DOCS / "buying.png", dpi=150)


def evolution(found: dict[str, Any]) -> None:
    """Synthetic digits after the last round of private evolution, a row of each class."""
    wanted = [row for row in found["results"] if row["trust"] == "central"]
    figure = Figure(figsize=(3.2 * len(wanted), 3.4), layout="constrained")
    axes = figure.subplots(1, len(wanted), squeeze=False)[0]
    for ax, row in zip(axes, wanted, strict=True):
        points = np.array(row["strokes"], np.float32)
        images = np.asarray(drawn(points.reshape(-1, *points.shape[2:])))[..., 0]
        grid = images.reshape(*points.shape[:2], *images.shape[1:]).transpose(0, 2, 1, 3)
        height, side = grid.shape[0], grid.shape[1]
        ax.imshow(grid.reshape(height * side, -1), cmap="gray_r")
        epsilon = row["epsilon"]
        ax.set_title("no noise" if epsilon == "infinity" else f"ε = {epsilon:.3g}", fontsize=10)
        ax.axis("off")
    figure.savefig(DOCS / "evolution.png", dpi=110)


def scale(found: dict[str, Any]) -> None:
    """Memory by private records, time by public rows, and memory along 10^9 records on Ray."""
    results = found["results"]
    figure, (records, public, cluster) = picture(3)
    records.plot(
        [row["records"] for row in results["memory"]],
        [row["peak_above_library_bytes"] / 1e6 for row in results["memory"]],
        color=COLOURS[0],
        marker="o",
    )
    records.set(xscale="log", xlabel="private records × 256", ylabel="MB", ylim=(0, 320))
    records.axhline(300, color="#bbbbbb", linewidth=0.8)
    sizes = [row["rows"] for row in results["growth"]]
    for colour, part in zip(COLOURS, ("clustering", "graph", "kernels"), strict=False):
        seconds = [row[f"{part}_seconds"] for row in results["growth"]]
        public.plot(sizes, seconds, color=colour, marker="o", label=part)
    largest = results["growth"][-1]["graph_seconds"]
    linear = [largest * size / sizes[-1] for size in sizes]
    public.plot(sizes, linear, color="#bbbbbb", linestyle=":", label="linear in m")
    public.set(xscale="log", yscale="log", xlabel="public rows m × 256", ylabel="seconds")
    public.legend(fontsize=7)
    (row,) = results["cluster"]
    gigabytes = [held / 1e9 for held in row["bytes_at_each_twentieth"]]
    share = row["records"] / len(gigabytes)
    counted = [share * (i + 1) for i in range(len(gigabytes))]
    cluster.plot(counted, gigabytes, color=COLOURS[0], marker="o", markersize=3)
    cluster.set(xlabel="records counted on Ray", ylabel="GB of all processes")
    cluster.set_ylim(0, 1.3 * max(gigabytes))
    figure.savefig(DOCS / "scale.png", dpi=150)
