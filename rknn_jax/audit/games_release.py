"""Neighboring inputs of `rknn label`, for audits through the whole release path.

Every run is a release by `rknn_jax.release.label`, from a plan to the files, with its own ledger
and fresh noise. The view holds every array, number and text in the folder. Floats also appear by
their decimals and bits, integers by their bits, texts by the bits of a checksum, and files by their
sizes. The time of the release is left out. Its random id, and the id and the head of the ledger,
which hash the time and a salt, differ in every release; the games see their bits.

Three checks need no statistics. `moved` compares the sums of both inputs, before any noise, with
the sensitivity that the noise is made for. `differing` makes releases of both inputs with the same
noisy counts: any difference between the releases comes from the private records and not from the
noisy counts. `read_after` names private arrays that are read after the mechanism, even if the
outputs do not show it. They are for releases in which all records vote. Records that check see the
labels, and so come after the mechanism of the votes.
"""

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rknn_jax.audit.folders import own_folder
from rknn_jax.audit.game import Game
from rknn_jax.audit.games import bits
from rknn_jax.audit.taint import Seal, Sealed, TaintError, closing
from rknn_jax.labelers._votes import VoteNoise
from rknn_jax.mechanisms.base import CentralMechanism
from rknn_jax.privacy.guarantee import Guarantee, Relation
from rknn_jax.privacy.roles import Roles
from rknn_jax.records.classes import Classes
from rknn_jax.release import counting, planning
from rknn_jax.release import label as job
from rknn_jax.release.inputs import data_of
from rknn_jax.release.planning import Plan
from rknn_jax.release.rehearsal import mechanism_of
from rknn_jax.release.settings import Settings
from rknn_jax.release.shards import ArrayShard, Records
from rknn_jax.settings import NamedColumns

NUM_CLASSES = 3
NUM_QUERIES = 3
OWN = 8
"""Number of private records of each query, beside the canary."""

OF_CANARY = 300
"""Number of records of the canary if persons are protected. All others have one each."""

DECIMALS = 6
"""Number of decimals of a float that become columns of their own."""

RANDOM = ("head", "release", "id")
"""Entries of `privacy.json` that hold a random id, or a hash of the time and a salt."""

ID_BYTES = 80
"""Bytes of an id that are looked at."""

VARYING = ("concerns",)
"""Lists whose length noise decides. The length and the whole text are looked at."""

UNKNOWN = ("agreement", "expected_accuracy")
"""Numbers that a release does not know if records chose another labeling than the decoder's."""

MEASURED = ("right", "low", "checkers")
"""Numbers of a measure, which a release lacks if hardly any record measured."""

Columns = dict[str, np.ndarray]
"""Map from a column's name to its values, `[1, f]`."""


class World(NamedTuple):
    """Plans of two releases whose private records differ in one.

    Attributes:
      inputs: The two private tables, in words.
      plans: Their plans.
    """

    inputs: str
    plans: tuple[Plan, Plan]


def of_release(
    epsilon: float, relation: Relation = "replace-one", **settings: Any
) -> tuple[list[Game], Guarantee]:
    """Return games of `rknn label` on a small table, and the guarantee on its card.

    Args:
      epsilon: Epsilon of the release.
      relation: Neighboring relation. Defaults to `replace-one`.
      **settings: Other settings of `rknn label`.
    """
    played = worlds(epsilon, relation, **settings)
    guarantee = Guarantee.of(json.loads(_released(played[0].plans[0], _card))["guarantee"])
    return [_game(world) for world in played], guarantee


def worlds(
    epsilon: float,
    relation: Relation = "replace-one",
    person: str | None = None,
    **settings: Any,
) -> list[World]:
    """Return plans of releases of neighboring tables.

    The canary is a record near a cluster; half of the cluster's other records have one label and
    half another. The canary's variants are: any label or none, this cluster or that, an embedding
    that is not finite, and, under add-remove, present or absent. It votes for every cell in turn.
    With the name of a column of persons, the canary is a person with `OF_CANARY` such records.
    """
    rng = np.random.default_rng(0)
    centers = 4 * np.eye(NUM_QUERIES, dtype=np.float32)
    public = np.repeat(centers, 4, axis=0) + rng.normal(0, 0.1, (4 * NUM_QUERIES, NUM_QUERIES))
    others = np.repeat(centers, OWN, axis=0) + rng.normal(0, 0.1, (OWN * NUM_QUERIES, NUM_QUERIES))
    labels = np.tile(np.arange(OWN) % 2, NUM_QUERIES)
    given = Settings(
        "public",
        "private",
        epsilon,
        queries=NUM_QUERIES,
        relation=relation,
        columns=NamedColumns(person=person),
        **settings,
    )

    def planned(*record: tuple[np.ndarray, int]) -> Plan:
        copies = 1 if given.columns.person is None else OF_CANARY
        rows = np.array([*others, *([row for row, _ in record] * copies)], np.float32)
        classes = np.array([*labels, *([said for _, said in record] * copies)], np.int32)
        persons = np.minimum(np.arange(len(rows)), len(others))
        named = None if given.columns.person is None else persons
        data = data_of(
            public.astype(np.float32), rows, classes, classes=Classes(NUM_CLASSES), persons=named
        )
        with own_folder() as folder:  # The folder has no ledger yet.
            return planning.plan(_placed(given, folder), data)

    found = []
    for cluster, center in enumerate(centers):
        nobody = planned() if relation == "add-remove" else planned((center, -1))
        missing = "none" if relation == "add-remove" else "without a label"
        for said in range(NUM_CLASSES):
            words = f"a record with label {said} near cluster {cluster}, or {missing}"
            found.append(World(words, (planned((center, said)), nobody)))
    if relation == "add-remove":
        return found
    first = found[0].plans[0]
    where = "a record with label 0 near cluster 0, or "
    return [
        *found,
        World(where + "with label 1", (first, planned((centers[0], 1)))),
        World(where + "with label 1 near cluster 1", (first, planned((centers[1], 1)))),
        World(where + "that is not finite", (first, planned((np.nan * centers[0], 0)))),
    ]


def differing(world: World) -> list[str]:
    """Return the differences between releases of both inputs with the same noisy counts."""
    counts = np.random.default_rng(1).integers(-3, 12, (NUM_QUERIES, NUM_CLASSES))
    first, second = (
        _released(_with_release(plan, lambda _: counts), columns) for plan in world.plans
    )
    if first.keys() != second.keys():
        return sorted(first.keys() ^ second.keys())
    return [name for name in first if not np.array_equal(first[name], second[name], equal_nan=True)]


def moved(world: World) -> float:
    """Return how far the sums of both inputs are apart, in units of the claimed sensitivity."""
    first, second = (
        counting.count_all(plan.data.private, plan.counter).counts.astype(np.int64)
        for plan in world.plans
    )
    mechanism = mechanism_of(world.plans[0].question)
    return float(np.abs(first - second).sum() / (mechanism.changed_cells * mechanism.grid))


def read_after(plan: Plan) -> str | None:
    """Return the private arrays that a release reads after the mechanism; None if nothing."""
    seal = Seal()
    (shard,) = plan.data.private.shards
    assert isinstance(shard, ArrayShard)
    sealed = ArrayShard(
        shard.name,
        _sealed(shard.embeddings, "private embeddings", seal),
        _sealed(shard.labels_, "private labels", seal),
        shard.persons_,
    )
    watched = replace(
        _with_mechanism(plan, closing(mechanism_of(plan.question), seal)),
        data=replace(plan.data, private=Records.of([sealed])),
    )
    try:
        with _sealed_votes(seal):
            _released(watched, columns)
    except TaintError as error:
        return str(error)
    return None


def columns(folder: Path) -> Columns:
    """Return all content of a folder, as columns."""
    texts = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
    card = json.loads(texts["privacy.json"])
    clocks = [card["time"], *_ids(card).values()]
    found: Columns = {}
    for name, content in texts.items():
        if name.endswith(".npz"):
            with np.load(folder / name) as saved:
                for array in saved:
                    found |= _described(f"{name}: {array}", saved[array])
        elif name.endswith(".json"):
            for entry, value in _leaves(json.loads(content)):
                if entry.split(".")[-1] not in ("time", *RANDOM):
                    found |= _described(f"{name}: {entry}", np.array(value))
        else:
            text = content.decode(errors="replace")
            for clock in clocks:
                text = text.replace(clock, "")
            found |= _described(name, np.array(text))
        found[f"size of {name}"] = np.array([[len(content)]])
    return found


def seen(folder: Path) -> Columns:
    """Return `columns`, and the bits of the ids, which are random in every release."""
    card = json.loads((folder / "privacy.json").read_text())
    found = columns(folder)
    for name, text in _ids(card).items():
        characters = text.encode().ljust(ID_BYTES)[:ID_BYTES]
        found[f"bits of {name}"] = np.unpackbits(np.frombuffer(characters, np.uint8))[None]
    return found


def _ids(card: dict[str, Any]) -> dict[str, str]:
    """Return the random entries of a card."""
    return {"head": card["ledger"]["head"], "id": card["ledger"]["id"], "release": card["release"]}


def _described(name: str, array: np.ndarray) -> Columns:
    """Return the values of an array, and the decimals and bits of their written form."""
    flat = array.reshape(1, -1)
    if array.dtype.kind in "fiub":
        found = {name: flat.astype(np.float64)}
    else:
        found = {}
        flat = np.array([[zlib.crc32(str(value).encode()) for value in flat[0]]])
    if array.dtype.kind != "f":
        return found | {f"bits of {name}": bits(flat)}
    finite = np.nan_to_num(flat.astype(np.float64), posinf=0, neginf=0)
    scaled = np.round(np.abs(finite) * 10**DECIMALS).astype(np.int64)
    for decimal in range(1, DECIMALS + 1):
        digits = scaled // 10 ** (DECIMALS - decimal) % 10
        found[f"decimal {decimal} of {name}"] = digits
        found[f"parity of decimal {decimal} of {name}"] = digits % 2
    return found | {f"bits of {name}": bits(flat.astype(np.float32).view(np.int32))}


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the numbers and texts of a JSON value, with their names."""
    if name in VARYING:
        yield f"number of {name}", len(value)
        yield name, json.dumps(value)
    elif name == "measured":
        found = value or {}
        yield from ((f"{name}.{key}", float(found.get(key, -1))) for key in MEASURED)
        yield name, json.dumps(value)
    elif name in UNKNOWN and value is None:
        yield name, -1.0
    elif isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _leaves(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, str(value) if value is None else value


def _game(world: World) -> Game:
    names = _names(_released(world.plans[0], seen))

    def observe(key: jax.Array, which: int, runs: int) -> np.ndarray:
        del key  # The release draws its own noise.
        rows = [_released(world.plans[which], seen) for _ in range(runs)]
        return np.concatenate([np.concatenate(list(row.values()), axis=1) for row in rows])

    return Game(world.inputs, observe, names)


def _names(found: Columns) -> tuple[str, ...]:
    return tuple(
        f"{name} [{i}]" if values.size > 1 else name
        for name, values in found.items()
        for i in range(values.size)
    )


def _released(plan: Plan, look: Any) -> Any:
    """Release in a folder of its own with fresh roles, and return the view of that folder."""
    with own_folder() as folder:
        settings = _placed(plan.settings, folder)
        checkers = plan.checkers
        if checkers is not None:
            roles = checkers.roles
            fresh = Roles.drawn(roles.choose, roles.measure, roles.recall)
            checkers = replace(checkers, roles=fresh)
        placed = replace(plan, settings=settings, checkers=checkers, ledger=None)
        job.release(placed)
        return look(placed.folder)


def _card(folder: Path) -> str:
    return (folder / "privacy.json").read_text()


def _placed(settings: Settings, folder: Path) -> Settings:
    """Return the settings with results and ledger in a folder."""
    spending = replace(settings.spending, ledger=folder / "ledger.jsonl")
    return replace(settings, out=folder / "results", spending=spending)


def _with_release(plan: Plan, release: Any) -> Plan:
    """Return the plan with a mechanism whose noisy counts are given."""
    mechanism = closing(mechanism_of(plan.question), Seal())
    object.__setattr__(mechanism, "release", release)
    return _with_mechanism(plan, mechanism)


def _with_mechanism(plan: Plan, mechanism: CentralMechanism) -> Plan:
    """Return the plan with the noise of another mechanism."""
    return replace(plan, question=replace(plan.question, noise=VoteNoise(mechanism)))


def _sealed(array: Any, name: str, seal: Seal) -> Any:
    return Sealed(array, name, seal)


@contextmanager
def _sealed_votes(seal: Seal) -> Iterator[None]:
    """Seal the votes that `label.count` returns, as long as the context lasts."""
    honest = job.count

    def count(*arguments: Any, **options: Any) -> Any:
        counted = honest(*arguments, **options)
        return replace(counted, counts=_sealed(counted.counts, "votes", seal))

    job.count = count
    try:
        yield
    finally:
        job.count = honest
