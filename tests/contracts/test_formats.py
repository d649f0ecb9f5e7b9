"""Contract of file formats, for every file of `rknn_jax/formats`.

A module's `EXAMPLES` are functions that write features `[n, f]` and labels `[n]` to a path.
"""

import numpy as np
import pytest

from rknn_jax import formats
from rknn_jax.formats import Block, Columns
from tests.conftest import modules

FEATURES = np.random.default_rng(0).normal(size=(23, 3)).astype(np.float32)
LABELS = np.arange(23) % 4
COLUMNS = Columns(public=True)

EXAMPLES = [(module, write) for module in modules(formats) for write in module.EXAMPLES]
each_format = pytest.mark.parametrize(
    ("module", "write"), EXAMPLES, ids=[module.__name__.split(".")[-1] for module, _ in EXAMPLES]
)


def written(module, write, folder, features=FEATURES, labels=LABELS):
    path = folder / f"file{module.SUFFIXES[0]}"
    write(path, features, labels)
    return path


def columns_of(module, path):
    """Columns with labels, unless the format has a single array."""
    with path.open("rb") as file:
        empty = module.layout(file, COLUMNS).empty
    return COLUMNS._replace(reads_label=empty.labels is not None)


def read(module, path, columns, size=100):
    with formats.clear_errors("the file"), path.open("rb") as file:
        return list(module.blocks(file, columns, size))


def joined(blocks):
    features = np.concatenate([block.embeddings for block in blocks]).astype(np.float32)
    if blocks[0].labels is None:
        return features, None
    return features, np.concatenate([block.labels for block in blocks]).astype(str)


@each_format
def test_rows_are_those_that_were_written_in_blocks_of_any_size(module, write, tmp_path):
    path = written(module, write, tmp_path)
    columns = columns_of(module, path)
    for size in (1, 7, 23, 100):
        blocks = read(module, path, columns, size)
        assert all(isinstance(block, Block) for block in blocks)
        assert max(len(block.embeddings) for block in blocks) <= size
        features, labels = joined(blocks)
        np.testing.assert_array_equal(features, FEATURES)
        if labels is not None:
            np.testing.assert_array_equal(labels, LABELS.astype(str))
    with path.open("rb") as file:
        assert module.num_rows(file, columns) == 23


@each_format
def test_the_layout_is_that_of_the_blocks_and_reads_no_row(module, write, tmp_path):
    path = written(module, write, tmp_path)
    columns = columns_of(module, path)
    with path.open("rb") as file:
        layout = module.layout(file, columns)
    (block,) = read(module, path, columns)
    if layout.declares:
        assert layout.empty.embeddings.shape == (0, 3)
    if layout.typed and layout.declares and not layout.features:
        assert layout.empty.embeddings.dtype == block.embeddings.dtype
    assert (layout.empty.labels is None) == (block.labels is None)


@each_format
def test_columns_without_a_role_are_numbers_or_text(module, write, tmp_path):
    path = written(module, write, tmp_path)
    columns = columns_of(module, path)
    with path.open("rb") as file:
        layout = module.layout(file, columns)
    if layout.features:  # the others of them have no role if one is named
        columns = columns._replace(embedding=layout.features[:1])
    with path.open("rb") as file:
        others = module.others(file, columns)
    assert list(others) == [*layout.features[1:]]
    assert all(values.dtype.kind in "iufbUS" and len(values) == 23 for values in others.values())


@each_format
def test_no_row_at_all_is_no_error(module, write, tmp_path):
    """A private file without records is released as noise alone."""
    columns = columns_of(module, written(module, write, tmp_path))._replace(public=False, width=3)
    path = written(module, write, tmp_path, FEATURES[:0], LABELS[:0])
    with path.open("rb") as file:
        assert module.num_rows(file, columns) == 0
    assert sum(len(block.embeddings) for block in read(module, path, columns)) == 0


@each_format
def test_a_file_that_is_cut_is_refused_or_ends_early(module, write, tmp_path):
    """It never has another row than those that were written."""
    path = written(module, write, tmp_path)
    whole = path.read_bytes()
    columns = columns_of(module, path)
    for end in np.linspace(0, len(whole) - 1, 12).astype(int):
        path.write_bytes(whole[:end])
        try:
            blocks = read(module, path, columns)
        except ValueError:
            continue
        features = joined(blocks)[0] if blocks else FEATURES[:0]
        same = (features[:-1] == FEATURES[: max(len(features) - 1, 0)]).all()
        assert len(features) <= 23, end
        assert same, "the last row alone may have lost digits"


@each_format
def test_an_array_or_column_that_is_absent_is_named(module, write, tmp_path):
    path = written(module, write, tmp_path)
    if not columns_of(module, path).reads_label:
        return
    with pytest.raises(ValueError, match="wanted"):
        read(module, path, columns_of(module, path)._replace(label="wanted"))
