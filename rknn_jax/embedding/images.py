"""Folders and tables of images, embedded by a pretrained network."""

import functools
import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from rknn_jax._internal import disk
from rknn_jax._internal.one_record import side_by_side
from rknn_jax._internal.option_names import option
from rknn_jax.embedding import Embedded, Rows, rows, table_files
from rknn_jax.embedding.file_rows import FILE, FileRows
from rknn_jax.formats import LABELS, _arrow, _hub, nested
from rknn_jax.formats._same_files import refuse_revisions
from rknn_jax.images import files as image_files
from rknn_jax.representations import pretrained

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")

IMAGES_AT_ONCE = 256
"""Images whose largest pixels are looked for at once."""


SMALL, BYTES_A_PIXEL = 2**26, 32
"""Bytes that reading an image takes at most: of any image, and for each pixel."""

ONLY_PATH = "a path without bytes, and paths are not opened; save the bytes of images too"
"""Reason why an image in a column cannot be used."""


@dataclass(frozen=True)
class ImageFolder:
    """Images of a folder and all folders in it, in order of their names.

    The first folder of an image's path is its class. Images beside the classes have no label, and a
    folder without others in it has no labels at all.

    Attributes:
      folder: Folder of the images.
      files: Paths of the images within the folder, with slashes.
      skipped: Paths, within the folder, of files with other suffixes. They are counted, not read.
      private: Whether the images are private. Then there are labels if there is a folder, whatever
        it holds, so that no single image decides. Defaults to False.
      about: Table with a row for each image, in place of the folders. Defaults to None.
    """

    folder: Path
    files: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    private: bool = False
    about: FileRows | None = None

    @classmethod
    def find(
        cls, folder: Path, *, private: bool = False, about: FileRows | None = None
    ) -> "ImageFolder":
        """Find the images of a folder. Names that begin with a dot are left out.

        Args:
          folder: Folder that exists.
          private: Whether the images are private. Defaults to False.
          about: Table with a row for each image. Defaults to None.

        Raises:
          ValueError: If there is no image, and the images are public, or there is no folder.
        """
        every = list(_visible(folder))
        files = sorted(name for name in every if _is_image_file(name))
        others = sorted({*every}.difference(files))
        if not files and not (private and folder.is_dir()):
            raise ValueError(
                f"Expected images that end in {', '.join(SUFFIXES)} in {option('images')} "
                f"{folder}, got none; name the folder that holds them, or their classes' folders."
            )
        paths = [f"{folder.absolute()}/{name}" for name in files]
        refuse_revisions(paths, f"{option('images')} {folder}", local=True)
        skipped = tuple(name for name in others if (folder / name).is_file())
        return cls(folder, tuple(files), skipped, private=private, about=about)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def where(self) -> str:
        """Argument and name of the folder."""
        return f"{option('images')} {self.folder}"

    @property
    def state(self) -> list[Any]:
        """Files, and what the table about them has."""
        files = [[name, *disk.file_state(self.folder / name)] for name in self.files]
        return [files, self._labeled, None if self.about is None else self.about.state]

    @property
    def name_column(self) -> str:
        """Name of the column of paths."""
        return FILE

    @functools.cached_property
    def rows(self) -> list[int | None]:
        """Row of each image in the table about them, or None."""
        return [] if self.about is None else self.about.rows_of(self.names)

    @property
    def names(self) -> list[str]:
        """Path of each image as Unicode."""
        return [*map(_text, self.files)]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in order; none without folders in the folder, or with a table."""
        if self.about is not None:
            return ()
        return tuple(
            sorted({label for label in map(_label, map(_text, self.files)) if label is not None})
        )

    @property
    def num_again(self) -> int:
        """Number of names of files that are there under another name already, as a link."""
        files = [self.folder / name for name in self.files]
        found = [path.stat() for path in files if path.exists()]
        return len(found) - len({(one.st_dev, one.st_ino) for one in found})

    def blocks(self, size: int) -> Iterator[Rows]:
        """Yield the paths of at most `size` images, which are not read yet; one block of none."""
        pa = _arrow.pyarrow()
        labeled = self._labeled
        for start in range(0, max(len(self.files), 1), size):
            files = list(self.files[start : start + size])
            names = np.array([_text(name) for name in files], str)
            labels = pa.array([_label(name) for name in names.tolist()], pa.string())
            paths = [self.folder / name for name in files]
            if self.about is not None:
                columns = self.about.take(self.rows[start : start + size])
                yield Rows(paths, names, columns, self.about.classes)
                continue
            yield Rows(paths, names, {LABELS: labels} if labeled else {})

    @property
    def _labeled(self) -> bool:
        """Flag for images whose folders are their labels."""
        return self._has_folders() if self.private else bool(self.classes)

    def _has_folders(self) -> bool:
        return any(path.is_dir() for path in self.folder.iterdir() if path.name[0] != ".")


def _text(name: str) -> str:
    """Return the name of a file as Unicode, whose other bytes appear as their numbers."""
    return name.encode(errors="backslashreplace").decode()


def holds_images(folder: Path) -> bool:
    """Return whether a folder holds image files. Names that begin with a dot are left out."""
    return any(map(_is_image_file, _visible(folder)))


def _visible(folder: Path) -> Iterator[str]:
    """Yield the paths of files in a folder, with slashes, whose names do not begin with a dot."""
    for found in disk.files_below(folder) if folder.is_dir() else ():
        path = Path(found).relative_to(folder)
        if not any(part.startswith(".") for part in path.parts):
            yield path.as_posix()


def _is_image_file(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in SUFFIXES


def _label(name: str) -> str | None:
    parts = PurePosixPath(name).parts
    return parts[0] if len(parts) > 1 else None


@dataclass(frozen=True)
class ImageTable:
    """Images in a column of Parquet or Arrow files, as `datasets` and its hub have them.

    A column holds the bytes of image files, or structs of bytes and a path, which is never opened.

    Attributes:
      table: Files, whose only feature is the column of images.
    """

    table: rows.TableFile

    @classmethod
    def find(
        cls,
        path: Path,
        columns: tuple[str, ...],
        label: str | None,
        keep: tuple[str, ...],
        *,
        private: bool,
    ) -> "ImageTable":
        """Find the column of images in files.

        Args:
          path: File, folder or pattern, as for `table_files.files`.
          columns: Name of the column. None of them stands for the only column of images.
          label: Name of the column of labels, or None.
          keep: Names of further columns that are copied.
          private: Whether the records are private.

        Raises:
          ValueError: If there is not one such column.
        """
        kinds = table_files.types(path, option("images"))
        held = [name for name in kinds if _holds_images(kinds[name]) and name not in keep]
        named = list(columns) or held
        if len(named) != 1 or (named[0] in kinds and named[0] not in held):
            raise ValueError(
                f"Expected one column of images in {option('images')} {path}, got "
                f"{', '.join(named) or 'none'}, where {', '.join(held) or 'no column'} of "
                f"{', '.join(kinds)} has bytes; name one of them with {option('columns')}"
                f"{nested(named, [*kinds])}."
            )
        return cls(
            rows.TableFile(
                path, option("images"), (named[0],), label=label, keep=keep, private=private
            )
        )

    def __len__(self) -> int:
        return len(self.table)

    @property
    def where(self) -> str:
        """Argument and name of the files."""
        return self.table.where

    @property
    def state(self) -> list[Any]:
        """Files, and the columns by their roles."""
        return self.table.state

    @property
    def name_column(self) -> str:
        """Name of the column of row numbers."""
        return self.table.name_column

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes that the files declare, or none."""
        named = table_files.class_names(self.table.path, option("images"), self.table.label, ())
        return named.get(LABELS, ())

    def blocks(self, size: int) -> Iterator[Rows]:
        """Yield the bytes of at most `size` images."""
        (name,) = self.table.features
        for found in self.table.blocks(size):
            column = found.records.column(name)
            is_struct = _hub.is_image(column.type)
            records = (_arrow.images(column) if is_struct else column).to_pylist()
            if is_struct and None in records:
                records = _with_paths(records, column)
            yield found._replace(records=records)


def _with_paths(records: list[Any], column: Any) -> list[Any]:
    """Return images, with the reason in place of those of which there is a path alone.

    Paths are not decoded, as one that is no Unicode would be an error.

    Args:
      records: Bytes of each image, or None.
      column: Arrow column of structs of bytes and perhaps a path.
    """
    pa = _arrow.pyarrow()
    fields = [column.type.field(i).name for i in range(column.type.num_fields)]
    if _hub.IMAGE[1] not in fields:
        return records
    paths = _arrow.plain(pa.compute.struct_field(column, _hub.IMAGE[1]))
    told = paths.is_valid()
    if pa.types.is_string(paths.type) or pa.types.is_large_string(paths.type):
        told = pa.compute.greater(pa.compute.binary_length(paths.cast(pa.large_binary())), 0)
    return [
        ONLY_PATH if image is None and has_path else image
        for image, has_path in zip(records, told.to_pylist(), strict=True)
    ]


def _holds_images(kind: Any) -> bool:
    types = _arrow.pyarrow().types
    return _hub.is_image(kind) or types.is_binary(kind) or types.is_large_binary(kind)


@dataclass(frozen=True)
class NetworkModel:
    """Pretrained network that one bad image does not stop.

    Attributes:
      encode: Encoder of the network.
      white: White of gray images of 16 bits. Defaults to 65535.
    """

    encode: pretrained.Encoder
    white: int = image_files.WHITE

    @functools.cached_property
    def width(self) -> int:
        """Number of features f, as the network makes them of a black image."""
        black = np.zeros((1, *self.encode.card.size, 3), np.uint8)
        return int(self.encode(black).shape[1])

    @property
    def card(self) -> dict[str, Any]:
        """Name, digest, input and versions."""
        encode = self.encode
        # Only where it is another one, so that most cards stay what they are.
        card = encode.card
        other: dict[str, Any] = {} if self.white == image_files.WHITE else {"white": self.white}
        other |= {} if card.layout == "NCHW" else {"layout": card.layout}
        return {
            "kind": "images",
            "name": Path(encode.path).stem,
            "path": encode.path,
            "sha256": encode.digest,
            "width": self.width,
            "input": {"size": card.size, "mean": card.mean, "std": card.std, **other},
            "output": card.output,
            "versions": versions("onnxruntime", "pillow"),
        }

    def __call__(self, records: Sequence[Path | bytes | str | None]) -> Embedded:
        """Return the features of image files, or of their bytes; text is why there are none."""
        features = np.full((len(records), self.width), np.nan, np.float32)
        pixels = side_by_side(self._read, records, _reason)
        reasons = {row: found for row, found in enumerate(pixels) if isinstance(found, str)}
        good = [row for row in range(len(records)) if row not in reasons]
        if good:
            features[good] = np.asarray(self.encode(np.stack([pixels[row] for row in good])))
        return Embedded(features, reasons)

    def _read(self, image: Path | bytes | str | None) -> np.ndarray | str:
        """Return an image in the network's size, uint8 `[h, w, 3]`, or why there is none."""
        if image is None or isinstance(image, str):
            return image or "no image"
        upright = image_files.read(as_file(image), upright=True, white=self.white).convert("RGB")
        return pretrained.resize(np.asarray(upright), self.encode.card.size)


def _reason(image: Path | bytes | str | None, error: Exception) -> str:
    """Return why an image cannot be read.

    Raises:
      MemoryError: If there is too little memory for an image of its size.
    """
    pixels = 0
    if isinstance(image, Path | bytes):
        with suppress(Exception):  # a damaged file can raise many kinds of errors
            pixels = image_files.num_pixels(as_file(image))
    try:
        np.empty(SMALL + pixels * BYTES_A_PIXEL, np.uint8)
    except MemoryError as short:
        raise MemoryError(f"an image of {pixels:,} pixels could not be read: {error}") from short
    return " ".join(str(error).split()) or type(error).__name__


def as_file(image: Path | bytes) -> Path | io.BytesIO:
    """Return the path of an image, or its bytes as an open file."""
    return io.BytesIO(image) if isinstance(image, bytes) else image


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of installed packages."""
    return {name: metadata.version(name) for name in packages}
