"""Settings of `rknn embed`, and what is wrong with them for any records."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rknn_jax.formats import EMBEDDINGS, LABELS

NAMED = 10
"""Most names, and causes why records cannot be used, that the terminal shows."""


@dataclass(frozen=True)
class Embed:
    """Embed images, text or a table in a Parquet file for rknn label.

    Embed the public and the private records with the same model. The model treats each record by itself, so this spends nothing. It must be public and must not have seen the private records, because epsilon does not cover what a model remembers. If the program is stopped, the same command goes on. Beside the embeddings lies a card of the model, such as public.card.json; pass it with --card to embed the private records in the same way.

    Attributes:
      out: Parquet file to write, with columns `embeddings`, `labels` if there are any, and `file` or `row`.
      images: folder of images, whose subfolders are the classes; or .parquet, .feather or .arrow files with a column of images, as the `datasets` package saves them. Transparent images get a white background.
      text: .csv, .jsonl, .parquet, .feather or .arrow file with a column of text, or a folder or pattern of such files. They may be compressed by gzip, bzip2 or xz, as in .csv.gz.
      table: file, folder or pattern as for --text, with columns of numbers, and text of few different values. Numbers are standardized and text becomes one-hot, by the values of the public table.
      model: for images, an ONNX file with its card beside it; for text, wordllama, which is the default, a .safetensors or .npy file of vectors with tokenizer.json beside it, an .onnx file with tokenizer.json and its card beside it, or sentence-transformers/NAME or a folder of such a model, which the package sentence-transformers loads without a download.
      card: card of the embedded public records, to embed the private ones in the same way: by the same model, from the same columns of text, and with the same transformation of tables.
      columns: names of the columns of text, of a table's features, or of images. The default for text is the columns of --card, or `text`. The default for a table is all columns except the label, --keep and --drop.
      drop: table columns that are not features.
      image_table: for a folder of image files, a table as for --table with a row for each image, whose columns --label and --keep name, instead of subfolders as classes. An image without a row, or with several, has no label.
      file_column: name of the column of --image-table that names the images.
      file_match: name compares the names of files without their folders, so images with the same name have no label. path compares their paths in the folder.
      label: name of the column of the labels, if text, tables or images in columns have one.
      keep: names of further columns to copy, such as that of the persons.
      private: the records are private. A record that cannot be used stays as a row of NaN, which casts no vote; a public one is left out.
      json: end with one line of JSON on stdout.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    out: Path
    images: Path | None = None
    text: Path | None = None
    table: Path | None = None
    model: str | None = None
    card: Path | None = None
    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    image_table: Path | None = None
    file_column: str = "file"
    file_match: Literal["name", "path"] = "name"
    label: str = LABELS
    keep: tuple[str, ...] = ()
    private: bool = False
    json: bool = False


def check(settings: Embed) -> None:
    """Raise ValueError for settings that are wrong for any records."""
    sources = {
        "--images": settings.images,
        "--text": settings.text,
        "--table": settings.table,
    }
    given = [name for name, path in sources.items() if path is not None]
    if len(given) != 1:
        raise ValueError(
            f"Expected one of --images, --text and --table, got {', '.join(given) or 'none'}; "
            "embed one source at a time."
        )
    if settings.out.suffix != ".parquet":
        raise ValueError(f"Expected --out to end in .parquet, got --out {settings.out}.")
    files = settings.images is not None and not in_table(settings.images)
    named = settings.keep or settings.label != LABELS
    if files and (settings.columns or (named and settings.image_table is None)):
        raise ValueError(
            "Expected no --columns, --keep and --label with a folder of image files, which has no "
            "columns, and whose folders are the classes; leave them out, or name a table with a "
            "row for each image by --image-table."
        )
    if settings.image_table is not None and not files:
        raise ValueError(
            f"Expected --image-table with --images that names a folder of image files, got "
            f"--image-table {settings.image_table}; leave it out, since other sources have columns."
        )
    if settings.drop and (settings.columns or not settings.table):
        raise ValueError(
            "Expected --drop with --table and without --columns, got --drop "
            f"{' '.join(settings.drop)}; leave it out, since other columns than those of text, of "
            "images or of --columns are not read."
        )
    own = {EMBEDDINGS, "file" if files else "row"} | ({LABELS} - {settings.label})
    if taken := sorted(own & {*settings.keep}):
        raise ValueError(
            f"Expected columns in --keep that the command does not write itself, got {taken}; "
            "rename them, or leave them out."
        )
    both = sorted({*settings.drop} & {settings.label, *settings.keep})
    if both:
        raise ValueError(
            f"Expected columns without another role in --drop, got {both} in --label or --keep "
            "too; leave them out of one. None of these is a feature."
        )
    if settings.table and settings.model is not None:
        raise ValueError(
            f"Expected no --model with --table, got --model {settings.model}; leave it out, or "
            "embed columns of text by --text."
        )
    if settings.table and settings.private and settings.card is None:
        raise ValueError(
            "Expected --card with a private --table, got none; embed the public table first and "
            "name its card, because means of private columns would be private."
        )


def in_table(images: Path) -> bool:
    """Return whether images lie in columns of Parquet or Arrow files."""
    from rknn_jax.embedding import table_files
    from rknn_jax.embedding.images import holds_images

    return table_files.is_typed(images) and not holds_images(images)


def label_among(settings: Embed, found: Sequence[str], *, declared: bool) -> str | None:
    """Return the column of labels, or None if data without one of the usual name declare so.

    Args:
      settings: Settings of the command.
      found: Names of the columns.
      declared: Whether the data declare these names, as for `table_files.declares_names`.
    """
    unlabeled = declared and settings.label == LABELS and LABELS not in found
    return None if unlabeled else settings.label


def refuse_absent(settings: Embed, found: Sequence[str], where: str, label: str | None) -> None:
    """Raise ValueError if the data lack a column that `--label` or `--keep` names.

    Args:
      settings: Settings of the command.
      found: Names of the columns.
      where: Argument and name of the data, for the error.
      label: Name of the column of labels, or None.
    """
    named = {"--label": [] if label is None else [label], "--keep": settings.keep}
    absent = {flag: [name for name in names if name not in found] for flag, names in named.items()}
    told = [f"{flag} {' '.join(names)}" for flag, names in absent.items() if names]
    if told:
        raise ValueError(
            f"Expected columns of {where} in --label and --keep, got {' and '.join(told)}; the "
            f"columns are {', '.join(found) or 'none'}. Name one of these, or leave the option "
            "out, since no record needs it to be embedded."
        )
