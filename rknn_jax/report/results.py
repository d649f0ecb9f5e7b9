"""Folder of a release as its report reads it.

`rknn label`, `rknn serve` and `train.distill` leave folders of the same layout. Nothing private is
opened: the folder's own files are all that is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rknn_jax._internal.disk import read_arrays, read_json
from rknn_jax.answers.concerns import opinions_hidden
from rknn_jax.answers.measured import Measured
from rknn_jax.label_sets import HALF, lead_stddev
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.report.summary import Summary

SUMMARY = "summary.json"

SURE = 0.95
"""Stability below which a label is marked as doubtful."""

MEANINGS = {
    "expected_accuracy": (
        "expected",
        "of the labels are right, as the decoder guesses from votes alone; nobody measured it",
    ),
    "stability": ("stability", "of the labels would be the same without noise"),
    "agreement": (
        "agreement",
        "of the private records near a row have its most frequent class",
    ),
}
"""Word and meaning of each share of a release, the one that matters most first."""


@dataclass(frozen=True)
class SetResults:
    """Sets of classes of the public rows.

    Attributes:
      present: bool `[m, num_classes]`, classes of each row.
      stability: float `[m, num_classes]`, stability of whether a row has the class.
      voters: float64 `[s]`, noisy number of votes at each query, whatever they are for.
    """

    present: np.ndarray
    stability: np.ndarray
    voters: np.ndarray


@dataclass(frozen=True)
class Results:
    """Content of a folder.

    Attributes:
      label: int `[m]`, label of each public row, or the most probable class of its set; -1 for a
        row without one.
      query: int `[m]`, query that spoke for the row; -1 for a row without one.
      confidence: float `[m]`, stability of the label, or of the least stable class; NaN if unknown.
      probability: float `[m, num_classes]`.
      classes: Names of the classes.
      counts: float64 `[s, num_classes]`, noisy counts; None if labels alone were released.
      stddev: float64 `[s, num_classes]`, standard deviation of their noise, in votes; None
        if labels alone were released.
      card: Content of `privacy.json`.
      summary: Content of `summary.json`; None if the folder has none.
      sets: Sets of classes. Defaults to None, if each row has one label.
      source: int `[m]`, number of each row in its source. Defaults to None, the position.
    """

    label: np.ndarray
    query: np.ndarray
    confidence: np.ndarray
    probability: np.ndarray
    classes: tuple[str, ...]
    counts: np.ndarray | None
    stddev: np.ndarray | None
    card: dict[str, Any]
    summary: Summary | None
    sets: SetResults | None = None
    source: np.ndarray | None = None

    def source_row(self, row: int) -> int:
        """Return the number of a row in its source."""
        return row if self.source is None else int(self.source[row])

    @property
    def labeled(self) -> np.ndarray:
        """Mask of rows that were answered, bool `[m]`. An empty set is an answer."""
        mask: np.ndarray = (self.label >= 0) | (self.sets is not None)
        return mask

    @property
    def doubtful(self) -> np.ndarray:
        """Mask of rows whose label or set noise may have decided, bool `[m]`."""
        mask: np.ndarray = self.labeled & (self.confidence < SURE)
        return mask

    @property
    def stability(self) -> np.ndarray:
        """Stability of each label, or of a set's least stable class, that is known, float `[l]`."""
        known = self.confidence[self.labeled]
        found: np.ndarray = known[~np.isnan(known)]
        return found

    @property
    def shares(self) -> dict[str, float]:
        """Shares of `MEANINGS` that are known, without opinions where noise decides."""
        sure = self.stability
        found = {
            "expected_accuracy": self.summary.expected_accuracy if self.summary else None,
            "stability": float(sure.mean()) if len(sure) else None,
            "agreement": self.summary.agreement if self.summary else None,
        }
        if self.measured is not None:  # a measure replaces an opinion
            del found["expected_accuracy"]
        hidden = opinions_hidden(self.summary.concerns) if self.summary else set()
        return {
            name: share for name, share in found.items() if share is not None and name not in hidden
        }

    @property
    def measured(self) -> Measured | None:
        """Agreement with private records that did not vote; None if it was not measured."""
        return None if self.summary is None else self.summary.measured


class ClassRow(NamedTuple):
    """Results of one class.

    Attributes:
      number: Number of the class.
      name: Name of the class.
      labels: Public rows with this label, or with the class in their set.
      votes: Noisy votes of all queries; None if labels alone were released.
      noise: Standard deviation of the noise in `votes`; None with them.
      stability: Mean stability of the labels; None if unknown.
      doubtful: Labels that noise may have decided.
    """

    number: int
    name: str
    labels: int
    votes: float | None
    noise: float | None
    stability: float | None
    doubtful: int


class Row(NamedTuple):
    """Public row that is worth a second look.

    Attributes:
      row: Number of the row in its source.
      label: Name of its label, or names of its classes.
      number: Number of its label; -1 for an empty set.
      stability: Probability that noise did not change the label, or the least stable class; None if
        unknown.
      probability: Probability of the label, or the least one of what the set says of a class.
      rival: Name of the second most probable class, or of the least stable one; None if there is no
        other class.
      rival_probability: Its probability.
      query: Query that spoke for the row.
    """

    row: int
    label: str
    number: int
    stability: float | None
    probability: float
    rival: str | None
    rival_probability: float
    query: int


class Gap(NamedTuple):
    """Lead of a query's first class over its second.

    For sets, it is the distance of a class from half of the votes, for the class nearest to that.

    Attributes:
      query: Number of the query.
      first: Number of the class.
      second: Number of the second class; None for half of the votes.
      votes: Noisy votes of the first.
      gap: Noisy votes between the two.
      noise: Standard deviation of the noise in `gap`.
      rows: Public rows that the query speaks for.
    """

    query: int
    first: int
    second: int | None
    votes: float
    gap: float
    noise: float
    rows: int


def class_rows(results: Results) -> list[ClassRow]:
    """Return the results of each class, in the order of the classes."""
    found = []
    for number, name in enumerate(results.classes):
        mine = results.label == number
        sure = results.confidence[mine]
        if results.sets is not None:
            mine = results.sets.present[:, number]
            sure = results.sets.stability[mine, number]
        sure = sure[~np.isnan(sure)]
        votes = noise = None
        if results.counts is not None and results.stddev is not None:
            votes = float(results.counts[:, number].sum())
            noise = float(np.sqrt((results.stddev[:, number] ** 2).sum()))
        stability = float(sure.mean()) if len(sure) else None
        doubtful = int((sure < SURE).sum())
        found.append(
            ClassRow(
                number,
                name,
                int(mine.sum()),
                votes=votes,
                noise=noise,
                stability=stability,
                doubtful=doubtful,
            )
        )
    return found


def second_look(results: Results, most: int) -> list[Row]:
    """Return the doubtful labels, the least stable first.

    Args:
      results: Content of a folder.
      most: Most rows to return.
    """
    known = np.flatnonzero(results.doubtful)
    told = _row if results.sets is None else _set_row
    label = results.label[known]
    probability = results.probability[known, label]
    order = np.lexsort((known, probability, results.confidence[known]))[:most]
    return [told(results, int(row)) for row in known[order]]


def gaps(results: Results) -> list[Gap]:
    """Return the lead of each query that was answered; none if labels alone were released."""
    if results.counts is None or results.stddev is None:
        return []
    if results.sets is not None:
        return _set_gaps(results.counts, results.stddev, results.sets.voters, results.query)
    if results.counts.shape[1] < 2:
        return []
    order = np.argsort(-results.counts, axis=1, kind="stable")
    rows = np.bincount(results.query[results.query >= 0], minlength=len(order))
    found = []
    for query, (first, second) in enumerate(order[:, :2].tolist()):
        votes = float(results.counts[query, first])
        noise = float(np.hypot(results.stddev[query, first], results.stddev[query, second]))
        gap = votes - float(results.counts[query, second])
        if noise:  # none where a labeler answered nothing
            found.append(
                Gap(query, first, second, votes=votes, gap=gap, noise=noise, rows=int(rows[query]))
            )
    return found


def read(folder: Path) -> Results:
    """Read the folder of a release.

    Raises:
      ValueError: If the folder is not finished, is damaged or is something else.
    """
    if not folder.is_dir():
        raise ValueError(
            f"Expected a finished folder of rknn label, rknn serve or train.distill, got {folder}, "
            "which is no folder; check its name."
        )
    if not (folder / "privacy.json").exists():
        raise ValueError(
            f"Expected a finished folder of rknn label, rknn serve or train.distill, got {folder}, "
            "which has no privacy.json; let the run come to its end."
        )
    try:
        rows = read_arrays(folder / "labels.npz", "label", "query", "confidence", "probability")
        # A labeler that asks no queries leaves no such file.
        path = folder / "queries.npz"
        asked = read_arrays(path) if path.exists() else {}
        card = read_json(folder / "privacy.json")
        results = of(rows, asked, card, summary=_summary(folder), classes=_classes(folder))
        _check(results)
    except Exception as error:  # a damaged file fails in many ways
        reason = " ".join(str(error).split())
        raise ValueError(
            f"Expected a finished folder of rknn label, rknn serve or train.distill, got {folder}, "
            f"which is damaged or something else ({reason}); restore it from a copy."
        ) from error
    return results


def of(
    rows: dict[str, np.ndarray],
    asked: dict[str, np.ndarray],
    card: dict[str, Any],
    summary: Summary | None,
    classes: Sequence[str] | None = None,
) -> Results:
    """Return the content of a folder from its arrays.

    Args:
      rows: Arrays of `labels.npz`.
      asked: Arrays of `queries.npz`; none if no queries were asked.
      card: Content of `privacy.json`.
      summary: Content of `summary.json`, or None.
      classes: Names of the classes, if `rows` has none. Defaults to None, for their numbers.
    """
    counts = asked.get("noisy_counts", asked.get("votes"))
    stddev = asked.get("stddev")
    if stddev is None and counts is not None and summary and summary.noise_stddev is not None:
        stddev = np.full(counts.shape, summary.noise_stddev)
    # Labels alone have no counts; train.distill saves them as exact ones.
    if stddev is None or not np.any(stddev):
        counts = stddev = None
    named = rows.get("class_names", classes)
    return Results(
        rows["label"],
        rows["query"],
        rows["confidence"].astype(np.float64),
        probability=rows["probability"],
        classes=tuple(map(str, range(rows["probability"].shape[1]) if named is None else named)),
        counts=None if counts is None else counts.astype(np.float64),
        stddev=None if stddev is None else np.asarray(stddev, np.float64),
        card=card,
        summary=summary,
        sets=_sets(rows, asked),
        source=rows.get("row"),
    )


def _sets(rows: dict[str, np.ndarray], asked: dict[str, np.ndarray]) -> SetResults | None:
    """Return the sets of a folder, or None if each row has one label."""
    if "present" not in rows:
        return None
    stability, voters = rows["stability"], asked["noisy_voters"]
    return SetResults(rows["present"], stability.astype(np.float64), voters.astype(np.float64))


def _summary(folder: Path) -> Summary | None:
    path = folder / SUMMARY
    return Summary.of(read_json(path)) if path.exists() else None


def _classes(folder: Path) -> Sequence[str] | None:
    """Return the names of the classes that `train.distill` has among its settings."""
    settings = folder / "config.json"
    return read_json(settings).get("classes") if settings.exists() else None


def _check(results: Results) -> None:
    """Raise ValueError or KeyError if arrays and names do not fit each other."""
    size = (len(results.label), len(results.classes))
    shapes = (results.label.shape, results.query.shape, results.confidence.shape)
    if results.probability.shape != size or set(shapes) != {size[:1]}:
        raise ValueError(f"{shapes} and {results.probability.shape} are the shapes of {size} rows")
    if {results.label.dtype.kind, results.query.dtype.kind} != {"i"}:
        raise ValueError("labels or queries are no whole numbers")
    if size[0] and not -1 <= results.label.min() <= results.label.max() < size[1]:
        raise ValueError(f"labels outside the {size[1]} classes")
    if results.counts is not None and results.stddev is not None:
        if results.counts.shape != results.stddev.shape or results.counts.shape[1:] != size[1:]:
            raise ValueError(f"noisy counts have the shape {results.counts.shape}")
        if size[0] and results.query.max() >= len(results.counts):
            raise ValueError(f"queries outside the {len(results.counts)} that were asked")
    if results.sets is not None:
        shape = results.sets.present.shape
        if shape != size or results.sets.stability.shape != size:
            raise ValueError(f"sets of the shape {shape} are those of {size} rows and classes")
        if results.counts is not None and len(results.sets.voters) != len(results.counts):
            raise ValueError(f"{len(results.sets.voters)} queries have votes")
    if results.summary and any(not 0 <= row < size[0] for row in results.summary.rows):
        raise ValueError("the map has rows that are not there")
    Guarantee.of(results.card["guarantee"])
    "".join([*results.classes, results.card["statement"], *results.card["not_covered"]])


def _row(results: Results, row: int) -> Row:
    label = int(results.label[row])
    others = results.probability[row].astype(np.float64)
    probability = float(others[label])
    others[label] = -1
    rival = int(others.argmax())
    alone = len(others) == 1
    sure = float(results.confidence[row])
    return Row(
        results.source_row(row),
        results.classes[label],
        label,
        stability=None if np.isnan(sure) else sure,
        probability=probability,
        rival=None if alone else results.classes[rival],
        rival_probability=0.0 if alone else float(others[rival]),
        query=int(results.query[row]),
    )


def _set_row(results: Results, row: int) -> Row:
    """Return a row with its set, and the class of it that noise decided most."""
    assert results.sets is not None
    present = results.sets.present[row]
    least = int(results.sets.stability[row].argmin())
    probability = results.probability[row].astype(np.float64)
    names = [name for name, there in zip(results.classes, present, strict=True) if there]
    return Row(
        results.source_row(row),
        ", ".join(names) or "none",
        int(results.label[row]),
        stability=float(results.confidence[row]),
        probability=float(np.where(present, probability, 1 - probability).min()),
        rival=results.classes[least],
        rival_probability=float(probability[least]),
        query=int(results.query[row]),
    )


def _set_gaps(
    counts: np.ndarray, stddev: np.ndarray, voters: np.ndarray, query: np.ndarray
) -> list[Gap]:
    """Return the distance of each query's least clear class from half of the votes."""
    lead = np.abs(counts - HALF * voters[:, None])
    rows = np.bincount(query[query >= 0], minlength=len(counts))
    found = []
    for number, first in enumerate(lead.argmin(axis=1).tolist()):
        spread = stddev[number, first]  # of the votes for a class, and of all votes, alike
        noise = float(lead_stddev(spread, spread))
        votes, gap = float(counts[number, first]), float(lead[number, first])
        found.append(
            Gap(number, first, None, votes=votes, gap=gap, noise=noise, rows=int(rows[number]))
        )
    return found
