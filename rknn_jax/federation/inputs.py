"""Input files of a server and its clients: images or embeddings, and class numbers."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax.federation.request import Public
from rknn_jax.formats import Columns
from rknn_jax.records import features
from rknn_jax.records.classes import FOREIGN
from rknn_jax.records.labels import plain
from rknn_jax.release import tables


def read_public(path: Path, test: Path | None, drop: tuple[str, ...] = ()) -> Public:
    """Read the server's own data.

    Args:
      path: File of the public records, or a folder or pattern of such files.
      test: File of images and labels that measure the student, or None.
      drop: Names of columns of the public records that are not features. Defaults to none.

    Raises:
      ValueError: If a file cannot be used.
    """
    columns = Columns(drop=drop)
    inputs = read_inputs(path, option("public"), columns)
    if inputs.ndim == 2:
        others = tables.read_others(path, option("public"), columns)
        names = tables.feature_names(path, option("public"), columns._replace(public=True))
        public = Public(inputs, others=others, features=names)
    else:
        public = Public(inputs)
    if test is None:
        return public
    images = read_inputs(test, option("test"))
    labels = plain(tables.read_labels(test, argument=option("test")), f"{option('test')} {test}")
    if len(images) != len(labels) or images.shape[1:] != inputs.shape[1:]:
        raise ValueError(
            f"Expected images as in {option('public')} and one label for each in {option('test')} "
            f"{test}, got {images.shape} and {len(labels)} labels."
        )
    if labels.dtype.kind == "U" or np.any(labels == FOREIGN):
        raise ValueError(
            f"Expected class numbers as 'labels' in {option('test')} {test}, got others; number "
            f"the classes 0..C-1 in the order of {option('classes')}, without an array 'classes'."
        )
    return replace(public, test=(images, labels.astype(np.int32)))


def read_inputs(
    path: Path, argument: str, columns: Columns = Columns(), *, private: bool = False
) -> np.ndarray:
    """Read `images` uint8 `[n, h, w, c]`, or else `embeddings` float32 `[n, f]`.

    Images come from one .npz file alone.

    Args:
      path: File, folder or pattern to read, as `rknn label` does.
      argument: Command-line argument that named the file, for the errors.
      columns: Columns to read, without labels. Defaults to the usual names.
      private: Flag for private records, whose unusable rows become NaN instead of an error. One
        record must not decide whether a client takes part. Defaults to False.

    Raises:
      ValueError: If the file cannot be used.
    """
    if private:  # a server names no labels and no persons
        features.refuse_shared((), columns.label, columns.person, columns.drop)
    asked = columns._replace(public=not private)
    tables.refuse_unknown(columns.drop, tables.file_shards(str(path), argument, asked))
    archive = path.suffix == ".npz" and path.is_file()
    images = tables.read_optional(path, argument, "images") if archive else None
    if images is None:
        read = tables.read_records if private else tables.read_embeddings
        return read(path, argument, columns)
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or not len(images):
        raise ValueError(
            f"Expected images uint8 [n, h, w, c] in {argument} {path}, got {images.dtype} "
            f"{images.shape}."
        )
    return images if images.ndim == 4 else images[..., None]
