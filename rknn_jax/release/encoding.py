"""Features of raw records, such as images or text, made where the records are read.

An encoder is public: it was learned from public data alone, or is the owner's own function. It
treats every record by itself. Otherwise one private record could move the votes of many.
"""

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rknn_jax import representations
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax._internal.option_names import option
from rknn_jax._internal.panics import called

BYTES_AT_ONCE = 2**25
"""Most bytes of raw records that are encoded at once."""

BATCH = 64
"""Records that a batched function of the owner gets, always as many: a part is filled up."""

COPIES = (1, 2, 3, 15, 62, 63)
"""Numbers of copies of a public record among which it is tried."""

UNPROVED = (
    "a representation of the owner's own code that lets one record change another one's features; "
    "that it does not was tried on public records, bit for bit, and not proved"
)
"""Sentence on an encoder whose code is not ours."""

TRAININGS = Path("runs") / "representations"
"""Folder in which a long training goes on where it was stopped."""


@dataclass(frozen=True)
class Imported:
    """Function of the owner's own code, imported in every process that calls it.

    It gets one record at a time, so that no record can move another one's features unless the
    function remembers records. A function that treats the records of a batch by themselves, bit for
    bit, says so by an attribute `batched = True`. It gets `BATCH` records, the last ones copies.
    `checked` tries both on public records, which is no proof.

    Attributes:
      name: Module and function, as in `package.module:function`. The function maps records
        `[b, ...]`, or an object array of text or bytes `[b]`, to features `[b, f]`.
      width: Number of features f. Defaults to None, if it is not known yet.
    """

    name: str
    width: int | None = None

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the features. A record on which the function fails is a row of NaN.

        Raises:
          ValueError: If it fails on every record.
        """
        size = BATCH if getattr(_function(self.name), "batched", False) else 1
        blocks = [values[start : start + size] for start in range(0, len(values), size)]
        parts = [self._of_block(block, size) for block in blocks]
        known = [part for part in parts if part is not None]
        if not known:
            self._made(_filled(values[:1], size))  # its error says why
            raise ValueError(f"no features of any of {len(values)} records, at the first attempt")
        nothing = np.full((size, known[0].shape[1]), np.nan, np.float32)
        return np.concatenate(
            [
                nothing[: len(block)] if part is None else part
                for block, part in zip(blocks, parts, strict=True)
            ]
        )

    def _of_block(self, block: np.ndarray, size: int) -> np.ndarray | None:
        """Return the features of at most `size` records, or None if the function fails on each.

        If it fails on a batch, each record is tried at its own place among copies of itself. So no
        other record decides whether it has features.
        """
        made = self._attempted(_filled(block, size))
        if made is not None or len(block) < 2:
            return None if made is None else made[: len(block)]
        own = [self._attempted(block[[place]].repeat(size, axis=0)) for place in range(len(block))]
        width = next((one.shape[1] for one in own if one is not None), None)
        if width is None:
            return None
        nothing = np.full((size, width), np.nan, np.float32)
        rows = [nothing if one is None else one for one in own]
        return np.stack([row[place] for place, row in enumerate(rows)])

    def _attempted(self, filled: np.ndarray) -> np.ndarray | None:
        """Return the features of a filled batch, or None if the function fails.

        An error would tell that there is such a record.
        """
        try:
            return self._made(filled)
        except Exception:
            return None

    def _made(self, filled: np.ndarray) -> np.ndarray:
        given = np.asarray(called(_function(self.name), filled.copy()))
        if np.iscomplexobj(given):
            raise ValueError("complex features")
        made = np.array(given, np.float32)
        width = made.shape[-1] if self.width is None else self.width
        if made.shape != (len(filled), width):  # the rows of other records would move
            raise ValueError(f"features of shape {made.shape} for {len(filled)} records")
        return made


def _filled(block: np.ndarray, size: int) -> np.ndarray:
    """Return `size` records, the last ones copies of the first."""
    return np.concatenate([block, np.repeat(block[:1], size - len(block), axis=0)])


@functools.cache
def _function(name: str) -> Callable[[Any], Any]:
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:  # as `python -m` has it, and a console script has not
        sys.path.append(os.getcwd())
    try:
        found: Callable[[Any], Any] = getattr(called(importlib.import_module, module), attribute)
    except Exception as error:
        raise ValueError(
            f"Expected a function that can be imported as {option('representation')} {name}: "
            f"{error}; run in its folder, or set PYTHONPATH."
        ) from error
    if not callable(found):
        raise ValueError(
            f"Expected a function as {option('representation')} {name}, got {found!r}."
        )
    return found


@dataclass(frozen=True)
class Scaling:
    """Columns centered and scaled, each record by itself.

    Attributes:
      mean: float32 `[f]`, subtracted from each record.
      scale: float32 `[f]`, by which each record is divided then.
    """

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def learned(cls, public: np.ndarray) -> "Scaling":
        """Return the means and standard deviations of the public rows' columns.

        A column of one value keeps its scale.

        Args:
          public: float32 `[m, f]`.
        """
        rows = np.asarray(public, np.float64)
        mean = rows.mean(axis=0)
        deviation = rows.std(axis=0)
        # Rounding makes the deviation of equal values a little more than 0.
        varies = deviation > 1e-7 * np.abs(mean)
        scale = np.where(varies, deviation, 1).astype(np.float32)
        return cls(mean.astype(np.float32), np.where(scale > 0, scale, 1).astype(np.float32))

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the scaled rows, float32 `[b, f]`. A value that overflows is infinite."""
        with np.errstate(all="ignore"):
            scaled: np.ndarray = (np.asarray(values, np.float32) - self.mean) / self.scale
        return scaled


@dataclass(frozen=True)
class Chain:
    """Encoder followed by a map of its features, such as a scaling.

    Attributes:
      encode: Function that maps records to features.
      then: Function that maps features to others, each record by itself.
    """

    encode: Callable[[Any], Any]
    then: Callable[[Any], Any]

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the features that come out."""
        found: np.ndarray = self.then(np.asarray(self.encode(values), np.float32))
        return found


@dataclass(frozen=True)
class Encoding:
    """Encoder that one bad record does not stop.

    Attributes:
      encode: Function that maps records to features.
      probe: Public record, `[1, ...]`, which tells a broken encoder from a bad record.
      width: Number of features f.
      not_covered: Sentences on what was not proved of the encoder. Defaults to none.
    """

    encode: Callable[[Any], Any]
    probe: np.ndarray
    width: int
    not_covered: tuple[str, ...] = ()

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return features, float32 `[b, f]`. A record that cannot be encoded is a row of NaN.

        Raises:
          ValueError: If the encoder fails on a public record too.
        """
        made = None
        # One record must not decide whether there is a release.
        with suppress(Exception):
            made = self._encoded(values)
        if made is None or not np.isfinite(made).all():
            self._check_works()
        if made is not None:
            return made
        if len(values) > 1:
            half = len(values) // 2
            return np.concatenate([self(values[:half]), self(values[half:])])
        return np.full((len(values), self.width), np.nan, np.float32)

    def check_types(self, empty: np.ndarray, where: str) -> None:
        """Raise ValueError if records cannot be encoded, by their shape and type alone.

        Numbers have the type of the public ones, or the same encoder would take them for others. A
        function of the owner may take another shape than that of the public records.

        Args:
          empty: No record, in the shape and type of the others.
          where: Argument and name of the file, for the error.
        """
        given, known = _kind(empty), _kind(self.probe)
        other_shape = empty.shape[1:] != self.probe.shape[1:]
        fits = given.split()[0] == known.split()[0]
        if fits and other_shape:
            fits = self._takes(np.zeros((1, *empty.shape[1:]), empty.dtype))
        if not fits:
            raise ValueError(
                f"Expected records like the public ones, {known}, in {where}, got {given}; save "
                "both sides alike."
            )

    def _takes(self, record: np.ndarray) -> bool:
        if not isinstance(self.encode, Imported):
            return False
        try:
            self._encoded(record)
        except Exception:
            return False
        return True

    @property
    def rows_at_once(self) -> int:
        """Number of records that are encoded at once."""
        return max(1, BYTES_AT_ONCE // max(1, self.probe.nbytes))

    def _encoded(self, values: np.ndarray) -> np.ndarray:
        parts = [
            features(self.encode, values[start : start + self.rows_at_once])
            for start in range(0, len(values), self.rows_at_once)
        ]
        made = np.concatenate(parts)
        if made.shape != (len(values), self.width):
            raise ValueError(f"features of shape {made.shape}")
        return made

    def _check_works(self) -> None:
        try:
            self._encoded(self.probe)
        except Exception as error:
            raise ValueError(
                f"The representation fails on a public record, on which it worked before: {error}; "
                "give it more memory, or the same packages on every machine."
            ) from error


def _kind(records: np.ndarray) -> str:
    """Return type and shape of a record of numbers, in words."""
    numbers = records.dtype.kind in "biuf"
    return f"{records.dtype} {[*records.shape[1:]]}" if numbers else "no numbers"


def features(encode: Callable[[Any], Any], values: np.ndarray) -> np.ndarray:
    """Return an encoder's features as float32 `[b, f]`. It gets a copy, which it may change."""
    return np.asarray(called(encode, values.copy()), np.float32)


def learned(
    name: str, public: Iterable[np.ndarray], *, num_classes: int, num_queries: int | None, seed: int
) -> tuple[Encoding, np.ndarray]:
    """Learn a representation from public records, and encode them.

    Args:
      name: File of `rknn_jax.representations`, or `package.module:function`.
      public: Blocks of public records, which are held in memory only to be learned from.
      num_classes: Number of classes, public.
      num_queries: Number of queries if it is known, public.
      seed: Seed of the training.

    Returns:
      `(encoding, features)`, the encoder and float32 `[m, f]` for all public records.

    Raises:
      ValueError: If the representation is unknown or cannot be learned from such records, or if a
        record's features depend on other records.
    """
    encode: Callable[[Any], Any] = Imported(name)
    if ":" not in name:
        settings = representations.named(name)().for_task(num_classes, num_queries)
        images = np.concatenate(list(public))
        _check_images(images, name)
        key = stage_key(jax.random.key(seed), Stage.ENCODER)
        encode = settings.fit(key, images, folder=TRAININGS)
        public = [images]
    encoding: Encoding | None = None
    parts = []
    for values in public:
        encoding = encoding or checked(encode, values, name)
        parts.append(encoding._encoded(values))
    if encoding is None:
        raise ValueError("Expected public records to encode, got none.")
    made = np.concatenate(parts)
    holes = np.logical_not(np.isfinite(made).all(axis=1))
    if holes.any():
        raise ValueError(
            f"Expected finite features of every public record from {option('representation')} "
            f"{name}, got none of record {int(np.argmax(holes))}, from 0 on; remove it, or mend "
            "the function."
        )
    return encoding, made


def checked(encode: Callable[[Any], Any], values: np.ndarray, name: str) -> Encoding:
    """Check on public records that every record is treated by itself.

    Features must be the same bits for a record alone, later, in another place, and among others:
    public ones, copies of itself, and, of numbers, the smallest, the largest and mirrored ones. No
    check of so few records is a proof.

    Raises:
      ValueError: If the encoder fails, does not make one row of finite features a record, or gives
        a record other features among others.
    """

    def made_of(records: np.ndarray) -> np.ndarray:
        try:
            return features(encode, records)
        except Exception as error:
            raise ValueError(
                f"{option('representation')} {name} fails on public records "
                f"({type(error).__name__}: {error}); mend it, or name the column of the records "
                f"with {option('embedding')}."
            ) from error

    some = values[:3]
    made = made_of(some)
    if made.ndim != 2 or len(made) != len(some) or not np.isfinite(made).all():
        raise ValueError(
            f"Expected finite features [b, f] of {len(some)} public records from "
            f"{option('representation')} {name}, got shape {made.shape}."
        )
    alone = made_of(some[:1])
    for others in (
        some[:0],
        some[1:],
        *(some[:1].repeat(n, axis=0) for n in COPIES),
        *_extreme(some),
    ):
        first = made_of(np.concatenate([some[:1], others]))
        last = made_of(np.concatenate([others, some[:1]]))
        counts = {len(first), len(last)} == {1 + len(others)}
        if not counts or not np.array_equal([first[0], last[-1]], [alone[0], alone[0]]):
            raise ValueError(
                f"Expected {option('representation')} {name} to treat every record by itself, bit "
                "for bit, got other features for a public record among others, or a second time, "
                "than alone; one private record would move the votes of others. Turn off batch "
                "statistics and random draws, as for evaluation, or leave out its attribute "
                "`batched`."
            )
    if not isinstance(encode, Imported):
        return Encoding(encode, some[:1], made.shape[1])
    known = replace(encode, width=made.shape[1])
    return Encoding(known, some[:1], made.shape[1], (UNPROVED,))


def _extreme(values: np.ndarray) -> list[np.ndarray]:
    """Return records of numbers unlike others, or none for other kinds of records."""
    if values.dtype.kind not in "iuf":
        return []
    integers = values.dtype.kind in "iu"
    most = np.iinfo(values.dtype).max if integers else 1e6 * (1 + np.abs(values).max())
    return [np.zeros_like(values), np.full_like(values, most), values[:, ::-1]]


def _check_images(images: np.ndarray, name: str) -> None:
    if images.dtype != np.uint8 or images.ndim != 4:
        raise ValueError(
            f"Expected public images uint8 [m, h, w, c] with {option('representation')} {name}, "
            f"got {images.dtype} {images.shape}; name their array with {option('embedding')}, or "
            "bring a function of your own as package.module:function."
        )
