"""Folder of a round on the server: its queries, its question, its clock, and what came of it.

A server that was killed continues from there. All of it is public or post-processing but the
messages, each of which is under its client's number. With trust=shuffle, which promises less of a
message alone than of all of them mixed, they are removed at the end:

```
runs/<name>/
  settings.json    the settings; a command with others may not continue here
  public.npz       the queries, and which public records they stand for
  question.bin     the round, as sent
  opened.json      the time at which the round began
  answers.bin      the counted messages, for their owner alone; with trust=central begun.json and
                   sum.npz
  sealed.json      a mark that results were begun: no further answer counts
  rejected.json    the number of answers not counted, by reason
  labels.npz       labels of the public records
  queries.npz      the estimated votes of each query, and their standard deviations
  student/         the trained network
  privacy.json     the guarantee, and the trust that it needs in the server
  privacy.html     the promise, in plain words
  summary.json     agreement, expected accuracy, warnings and a map of the public rows
  report.html      all of it on one page
  check/           the question, the clock and the answers of the check, as above
  over.json        a mark that all connected clients have been told of the end
  shared.json      the other folders of a shuffled round that several servers ask
  parts.json       the folders whose answers were merged here
  merged.json      the folder into which the answers were merged; they count there alone
```
"""

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from rknn_jax import discriminant, representations
from rknn_jax._internal.disk import (
    is_partial,
    make_folder,
    read_arrays,
    read_json,
    write_arrays,
    write_whole,
)
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax._internal.option_names import option
from rknn_jax.federation import shared_rounds
from rknn_jax.federation.collector import ANSWERS, QUESTION, Sum, is_sealed
from rknn_jax.federation.request import Asked, Public
from rknn_jax.federation.rounds import Round
from rknn_jax.types import Encoder, Queries

SETTINGS = "settings.json"
BEGUN = "begun.json"
SUM = "sum.npz"
OVER = "over.json"
PARTS = "parts.json"
MERGED = "merged.json"
Tell = Callable[[str, str], None]

LATEST = 1e11  # seconds since 1970
WIDTH = 8  # features of made-up queries


def prepare(
    folder: Path,
    public: Public,
    asked: Asked,
    tell: Tell,
    source: Path | None = None,
    *,
    collects: bool = False,
) -> tuple[Round, Queries]:
    """Return the round and its queries, from the folder or newly made and saved there.

    Args:
      folder: Folder of the round.
      public: Public data of the server.
      asked: Request of the server's owner.
      tell: Function that is called with each event.
      source: Folder of a round of the same request that is asked here too. Defaults to none, a new
        round.
      collects: True if nothing is published here, and the answers are to be merged. Defaults to
        False.

    Raises:
      ValueError: If the folder is another run's or finished, or if the data do not suffice; also if
        results of a shuffled round would be published here and elsewhere.
    """
    if asked.student != "none" and not public.images:
        raise ValueError(
            f"Expected images for a student, got embeddings and student={asked.student}; pass "
            f"{option('student')} none."
        )
    check_folder(folder, asked)
    if asked.shuffled:
        ended = [name for name in (OVER, MERGED) if source and (source / name).exists()]
        shared_rounds.check(folder, source, collects=collects, ended=bool(ended))
    if (folder / QUESTION).exists():
        if source:
            _check_same(source, folder)
        tell("goes on", f"with the round in {folder}")
        return _begun(folder, public)
    make_folder(folder)
    if public.former is None:
        refuse_other_files(folder)
    if asked.shuffled and collects:
        shared_rounds.share(folder, source)
    if source:
        copy_round(source, folder, asked)
        return _begun(folder, public)
    round, queries = _new_round(public, asked, tell)
    write_whole(folder / SETTINGS, _plain(asked).encode())
    arrays: dict[str, ArrayLike] = {
        "features": round.queries,
        "index": queries.index,
        "cluster": queries.cluster,
        "size": queries.size,
    }
    write_arrays(folder / "public.npz", arrays)
    # The question comes last, because a folder that has it holds a whole round.
    write_whole(folder / QUESTION, round.data)
    return round, queries


def refuse_other_files(folder: Path) -> None:
    """Raise ValueError if a folder, which exists, holds files of something else than a round."""
    others = [path for path in folder.iterdir() if not _is_begun(path)]
    if others and not (folder / SETTINGS).exists():
        raise ValueError(
            f"Expected a new folder as {option('out')}, got {folder}, which holds other files; "
            "name another."
        )


def _is_begun(path: Path) -> bool:
    """Return True for what a server leaves that is killed before its folder has settings."""
    first = (shared_rounds.SHARED, SETTINGS)
    return path.name == first[0] or any(is_partial(path.name, name) for name in first)


def copy_round(source: Path, folder: Path, asked: Asked) -> None:
    """Copy a round's settings, queries and question into a new folder.

    Raises:
      ValueError: If the source holds no round, or one of another request.
    """
    if not (source / QUESTION).exists():
        raise ValueError(
            f"Expected the folder of a round, got {source} without {QUESTION}; name the "
            f"{option('out')} of another server."
        )
    check_settings(source, asked)
    for name in (SETTINGS, "public.npz", QUESTION):
        write_whole(folder / name, (source / name).read_bytes())


def _check_same(source: Path, folder: Path) -> None:
    if (source / QUESTION).read_bytes() != (folder / QUESTION).read_bytes():
        raise ValueError(
            f"Expected the question of {source} in {folder}, got another; name a new folder as "
            f"{option('out')}."
        )


def check_settings(folder: Path, asked: Asked) -> None:
    """Check that the folder's round was begun by this request.

    Raises:
      ValueError: If it was begun by another one.
    """
    settings = json.loads(_plain(asked))
    begun = _settings(folder / SETTINGS)
    # Earlier versions wrote attributes of the class too, and knew fewer fields.
    usual = {one.name: one.default for one in fields(asked.config)}
    former = begun.get("config")
    former = former if isinstance(former, dict) else {}
    begun["config"] = {name: former.get(name, default) for name, default in usual.items()}
    changed = {
        option("keys") if name == "authenticated" else name
        for before, now in ((begun, settings), (begun["config"], settings["config"]))
        for name in before | now
        if name != "config" and before.get(name) != now.get(name)
    }
    if changed:
        raise ValueError(
            f"Expected the settings that {folder} was begun with, got others for "
            f"{', '.join(sorted(changed))}; change them back, or name a new folder."
        )


def check_folder(folder: Path, asked: Asked) -> None:
    """Check that the folder holds no round of other settings, and none that is over."""
    if (folder / SETTINGS).exists():
        check_settings(folder, asked)
    if (folder / MERGED).exists():
        raise ValueError(
            f"Expected a folder whose answers count here, got {option('out')} {folder}, which was "
            f"merged into {_settings(folder / MERGED).get('into')}; go on there."
        )
    if (folder / OVER).exists():
        _remove_shuffled(folder, asked)  # a process that was killed may not have
        raise ValueError(
            f"Expected a round that is not over in {option('out')} {folder}, got a finished one; "
            "name a new folder."
        )


def _new_round(public: Public, asked: Asked, tell: Tell) -> tuple[Round, Queries]:
    """Return a round about queries from the public data.

    Raises:
      ValueError: If there are more queries than public records.
    """
    root = jax.random.key(asked.seed)
    former = public.former
    encode = None if former is None else former.round.encode
    features = public.inputs
    if public.images and encode is not None:
        features = np.asarray(encode(public.inputs))
    elif public.images:
        tell("learning", f"{asked.representation} from {len(public.inputs):,} public images")
        encode = _representation(stage_key(root, Stage.ENCODER), public.inputs, asked)
        features = np.asarray(encode(public.inputs))
    key = stage_key(root, Stage.QUERIES)
    taught, after = None, ""
    if former is not None:
        if len(former.before.probabilities) != len(features):
            raise ValueError(
                f"Expected the {len(former.before.probabilities):,} rows of the round before in "
                f"{option('public')}, got {len(features):,}; bring the same rows for all rounds."
            )
        metric = asked.config.metric
        taught = discriminant.learned(features, former.before.probabilities, metric)
        features, after = taught(features), former.round.after or former.round.id
        if metric != "sqeuclidean":
            asked = replace(asked, config=replace(asked.config, metric="sqeuclidean"))
    queries = asked.config.ask(key, features, len(asked.classes), asked.num_queries)
    round = _round(asked, np.asarray(queries.features, np.float32), encode, taught)
    return replace(round, features=public.features, after=after), queries


def check_request(asked: Asked) -> None:
    """Check that a round can ask for this, on made-up queries of the usual number.

    Raises:
      ValueError: If it cannot, whatever the public data are.
    """
    number = asked.num_queries or len(asked.classes)
    _round(asked, np.random.default_rng(0).normal(size=(number, WIDTH)).astype(np.float32))


def _round(
    asked: Asked,
    queries: np.ndarray,
    encode: Encoder | None = None,
    taught: discriminant.Discriminant | None = None,
) -> Round:
    return Round(
        queries,
        asked.classes,
        asked.config,
        encode=encode,
        unit=asked.unit,
        records_per_client=asked.records_per_client,
        honest=asked.honest,
        simulated=asked.simulated,
        labels_per_record=asked.labels_per_record,
        check_share=asked.check_share,
        taught=taught,
    )


def closes_at(folder: Path, deadline: float) -> float:
    """Return the time at which the round ends, in seconds since 1970.

    The clock starts at the first call; a restart does not change it.
    """
    path = folder / "opened.json"
    if not path.exists():
        write_whole(path, json.dumps({"opened": time.time()}).encode())
    opened: Any = _settings(path).get("opened")
    if type(opened) not in (int, float) or not 0 <= opened < LATEST:
        raise ValueError(
            f"Expected the time at which the round began in {path}, got {opened!r}; restore the "
            "file from a copy."
        )
    closes: float = opened + deadline
    return closes


def begin_sum(folder: Path) -> None:
    """Record that clients are about to spend on a sum, which cannot be resumed."""
    write_whole(folder / BEGUN, b"{}")


def end(folder: Path, round: Round) -> None:
    """Record that the clients know of the end, and remove messages that were promised a shuffle.

    Before that, a restart publishes the same results again and tells the clients.

    Args:
      folder: Folder of the round.
      round: Round that is over.
    """
    write_whole(folder / OVER, b"{}")
    _remove_shuffled(folder, round)


def _remove_shuffled(folder: Path, round: Round | Asked) -> None:
    """Remove messages that were promised a shuffle, once their results are there."""
    if round.shuffled and is_sealed(folder):
        for path in (folder, *_parts(folder)):
            (path / ANSWERS).unlink(missing_ok=True)


def _parts(folder: Path) -> list[Path]:
    """Return the folders whose answers were merged into this one."""
    path = folder / PARTS
    return [Path(name) for name in read_json(path)] if path.exists() else []


def keep_sum(folder: Path, found: Sum) -> None:
    """Save a sum before anything is made from it."""
    refused = sum(found.rejected.values())
    kept: dict[str, ArrayLike] = {
        "totals": found.totals,
        "num_clients": found.num_clients,
        "refused": refused,
    }
    write_arrays(folder / SUM, kept)


def kept_sum(folder: Path, round: Round) -> Sum | None:
    """Return the sum that the folder holds, if any.

    Raises:
      ValueError: If a sum was begun and is missing. Its clients have spent, and take part in it
        only once.
    """
    if (folder / SUM).exists():
        return _sum(folder / SUM, round)
    if (folder / BEGUN).exists():
        raise ValueError(
            f"The sum in {folder} was begun and not opened, and its clients add to it once; "
            f"begin another round with another {option('out')}."
        )
    return None


def _settings(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(
            f"Expected a JSON object in {path}, got something else; restore the file from a copy."
        )
    return found


def _begun(folder: Path, public: Public) -> tuple[Round, Queries]:
    """Return the round that the folder holds, and its queries.

    Raises:
      ValueError: If a file of the round is damaged, or is about other public records.
    """
    path = folder / "public.npz"
    arrays = read_arrays(path, "features", "index", "cluster", "size")
    try:
        round = Round.of((folder / QUESTION).read_bytes())
    except ValueError as error:
        raise ValueError(
            f"{folder / QUESTION} is damaged, restore the file from a copy: {error}"
        ) from error
    features, index, cluster, size = (
        arrays[name] for name in ("features", "index", "cluster", "size")
    )
    count = len(round.queries)
    rows = len(public.inputs)
    shapes = {
        "features": round.queries.shape,
        "index": (count,),
        "cluster": (rows,),
        "size": (count,),
    }
    fits = all(arrays[name].shape == shape for name, shape in shapes.items())
    fits = fits and features.dtype == np.float32
    fits = fits and all(array.dtype.kind in "iu" for array in (index, cluster, size))
    if not fits or not _within(index, 0, rows) or not _within(cluster, -1, count):
        raise ValueError(
            f"Expected {count} queries about {rows:,} public records in {path}, got others; "
            "restore the file from a copy."
        )
    return round, Queries(features, index, cluster, size)  # type: ignore[arg-type]


def _within(numbers: np.ndarray, low: int, high: int) -> bool:
    return bool(np.all((numbers >= low) & (numbers < high)))


def _sum(path: Path, round: Round) -> Sum:
    """Read a sum that `keep_sum` wrote."""
    arrays = read_arrays(path, "totals", "num_clients", "refused")
    totals, clients, refused = (arrays[name] for name in ("totals", "num_clients", "refused"))
    fits = totals.shape == (round.num_cells,) and clients.shape == refused.shape == ()
    whole = all(array.dtype.kind in "iu" for array in arrays.values())
    if not fits or not whole or clients < 0 or refused < 0:
        raise ValueError(
            f"Expected {round.num_cells:,} totals of clients in {path}, got something else; "
            "restore the file from a copy."
        )
    return Sum(
        round,
        totals,
        int(clients),
        Counter({"refused by the client": int(refused)} if refused else {}),
    )


def _representation(key: jax.Array, images: np.ndarray, asked: Asked) -> Encoder:
    """Fit the representation on public images, with its settings for the number of classes."""
    settings = representations.named(asked.representation)()
    return settings.for_task(len(asked.classes), asked.num_queries).fit(key, images)


def _plain(asked: Asked) -> str:
    """Return the settings as JSON, except those that may change in an open round."""
    may_change = ("deadline", "quorum", "clients", "responsible")
    values = {
        name: getattr(asked, name) for name in asked.__dataclass_fields__ if name not in may_change
    }
    config = asked.config
    values["config"] = {one.name: getattr(config, one.name) for one in fields(config)}
    values["labeler"] = config.name
    for name in ("labels_per_record", "check_share"):
        if not values[name]:  # as before there were any
            del values[name]
    return json.dumps(values, indent=2)
