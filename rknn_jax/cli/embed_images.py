"""`rknn embed --images`: images of a folder or of a table, and what is told of them."""

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from rknn_jax._internal.terminal import err, tell
from rknn_jax.cli.embed_settings import NAMED, Embed, in_table, label_among, refuse_absent
from rknn_jax.formats import LABELS

# JAX and pyarrow take seconds to import, and --help needs none of them.
if TYPE_CHECKING:
    from rknn_jax.embedding import Model, Source
    from rknn_jax.embedding.file_rows import FileRows
    from rknn_jax.embedding.images import ImageFolder, ImageTable


def source_of(settings: Embed) -> tuple["Source", "Model"]:
    """Return images and their network, and tell what was found.

    Args:
      settings: Settings of the command.

    Raises:
      ValueError: If the images, their table or the network cannot be used.
    """
    from rknn_jax.embedding import cards, table_files
    from rknn_jax.embedding.images import ImageFolder, ImageTable, NetworkModel
    from rknn_jax.representations import pretrained

    assert settings.images is not None
    known = cards.given(settings.card, "images")
    path = settings.model or known.get("path")
    if path is None:
        raise ValueError(
            "Expected --model with --images, got none; name an ONNX file, or the --card of the "
            "public images."
        )
    source: ImageFolder | ImageTable
    if in_table(settings.images):
        found = table_files.names(settings.images, "--images")
        label = label_among(settings, found, declared=True)
        refuse_absent(settings, found, f"--images {settings.images}", label)
        source = ImageTable.find(
            settings.images, settings.columns, label, settings.keep, private=settings.private
        )
        labeled = f"labels {label!r}" if label else "no labels, which --label can name"
        named = f"; classes: {', '.join(source.classes)}" if source.classes else ""
        tell(err, "read", f"{len(source):,} images; {labeled}{named}")
    else:
        source = _image_folder(settings)
    model = NetworkModel(pretrained.load(path), _white(settings, source, known))
    cards.check_same(known, model.card, path)
    return source, model


def _white(settings: Embed, source: "ImageFolder | ImageTable", known: dict[str, Any]) -> int:
    """Return the white of images of 16 bits, by the card or else by the public images.

    A private image decides nothing, because the others would change with it. Its curator is told.
    """
    from rknn_jax.embedding import clipping, depths
    from rknn_jax.images import files

    bits = depths.depths(source, refuse=not settings.private)
    pixel = 0 if settings.private else bits.most
    white = depths.card_white(known) if known else files.white_of(pixel)
    if pixel > white:
        tell(
            err,
            "warning",
            f"pixels of 16 bits are up to {pixel:,}, and the card's white is {white:,}, to which "
            "they are cut; embed the images with the largest pixels first, and use their card",
        )
    elif pixel and not known:
        tell(
            err,
            "white",
            f"{white:,} of {files.WHITE:,} for gray images of 16 bits, whose largest public pixel "
            f"is {pixel:,}; the card keeps it for the private side",
        )
    for sentence in (*bits.doubts(white), *clipping.doubts(source, white)):
        secret = " (tell nobody)" if settings.private else ""
        tell(err, "private" if settings.private else "warning", f"{sentence}{secret}")
    return white


def _image_folder(settings: Embed) -> "ImageFolder":
    """Return a folder of images, and tell what it holds."""
    from rknn_jax.embedding.images import ImageFolder

    assert settings.images is not None
    about = _image_table(settings)
    source = ImageFolder.find(settings.images, private=settings.private, about=about)
    _tell_skipped(settings, source.skipped)
    classes = ", ".join(source.classes) or "none, since there are no folders in it"
    named = "with" if about is not None and LABELS in about.columns else "without"
    labeled = f"classes: {classes}" if about is None else f"{named} labels {settings.label!r}"
    # The folders are those of records, so that a class may be that of one image alone.
    own = " (tell nobody)" if settings.private and about is None else ""
    tell(err, "read", f"{len(source):,} images; {labeled}{own}")
    if again := source.num_again:
        secret = " (tell nobody)" if settings.private else ""
        tell(
            err,
            "again",
            f"{again:,} names are links to images that are there already, and each name is a "
            "record, so that the people in them add more than epsilon covers; remove the links"
            f"{secret}",
        )
    unknown = sum(row is None for row in source.rows)
    if about is not None and unknown == len(source) and len(source) and not settings.private:
        raise ValueError(
            f"Expected a row for each image in --image-table {settings.image_table}, got none that "
            f"names {source.files[0]}; column {settings.file_column!r} holds names such as "
            f"{next(iter(about.places), '')!r}, and --file-match {settings.file_match} compares "
            f"their {settings.file_match}s, in the same capitals."
        )
    if about is not None:
        _tell_unplaced(settings, about, source.names, unknown)
    return source


def _tell_unplaced(settings: Embed, about: "FileRows", names: Sequence[str], unknown: int) -> None:
    """Tell which images have no row in the table about them, by cause, and which rows no image."""
    kind = "private" if settings.private else "warning"
    secret = " (tell nobody)" if settings.private else ""
    if unknown:
        causes = about.unplaced(names).items()
        told = [f"{len(those):,} {cause}, such as {those[0]}" for cause, those in causes]
        tell(
            err,
            kind,
            f"{unknown:,} images have missing values, since they have no row of their own in "
            f"{settings.image_table}: {'; '.join(told)}{secret}",
        )
    if unseen := about.unseen(names):
        tell(
            err,
            kind,
            f"{len(unseen):,} names in {settings.image_table} are of no image in "
            f"{settings.images}, such as {unseen[0]}{secret}",
        )


def _tell_skipped(settings: Embed, skipped: Sequence[str]) -> None:
    """Tell which files of a folder are left out, and of private ones their number alone."""
    from rknn_jax.embedding.images import SUFFIXES

    if not skipped:
        return
    count = f"{len(skipped):,} files are left out"
    remedy = f"; images end in {', '.join(SUFFIXES)}, so save others as one of these"
    if settings.private:
        tell(err, "skipped", f"{count}{remedy} (tell nobody)")
        return
    suffixes = Counter(PurePosixPath(name).suffix.lower() or "without" for name in skipped)
    kinds = ", ".join(f"{number:,} {suffix}" for suffix, number in suffixes.most_common(NAMED))
    named = ", ".join(skipped[:NAMED])
    tell(err, "skipped", f"{count} by their suffix ({kinds}), such as {named}{remedy}")


def _image_table(settings: Embed) -> "FileRows | None":
    """Return the table about a folder of images, or None."""
    from rknn_jax.embedding import table_files
    from rknn_jax.embedding.file_rows import FileRows

    if settings.image_table is None:
        return None
    where = "--image-table"
    found = table_files.names(settings.image_table, where)
    declared = table_files.declares_names(settings.image_table, where, private=settings.private)
    label = label_among(settings, found, declared=declared)
    if declared:
        refuse_absent(settings, found, f"{where} {settings.image_table}", label)
    return FileRows.read(
        *(settings.image_table, where, settings.file_column),
        *(label, settings.keep, settings.file_match),
        private=settings.private,
    )
