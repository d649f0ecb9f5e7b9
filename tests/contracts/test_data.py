"""Every data set against its contract: disjoint parts, plain dtypes, a split that the seed alone
decides.
"""

import numpy as np
import pytest

from rknn_jax import data
from tests.conftest import modules

EXAMPLES = [example for module in modules(data) for example in module.EXAMPLES]
each = pytest.mark.parametrize("make", EXAMPLES, ids=[example.__module__ for example in EXAMPLES])


@pytest.fixture(autouse=True)
def skip_without_the_extra(request):
    if "tfds" in request.node.name:
        pytest.importorskip("tensorflow_datasets")


@each
def test_public_private_and_test_share_no_record(make, tmp_path):
    task = make(tmp_path, 0)
    parts = [task.public_index, task.private_index, task.test_index]
    joined = np.concatenate(parts)
    assert len(np.unique(joined)) == len(joined)
    assert joined.min() >= 0
    assert [len(part) for part in parts] == [
        len(task.public.images),
        len(task.private.images),
        len(task.test.images),
    ]
    assert min(map(len, parts)) > 0


@each
def test_images_are_uint8_and_labels_name_classes(make, tmp_path):
    task = make(tmp_path, 0)
    for images, labels in (
        (task.public.images, task.public.true_labels),
        (task.private.images, task.private.labels),
        (task.test.images, task.test.labels),
    ):
        assert images.dtype == np.uint8
        assert images.ndim == 4
        assert images.flags.c_contiguous
        assert labels.dtype == np.int32
        assert labels.shape == (len(images),)
        assert 0 <= labels.min() <= labels.max() < task.card.num_classes
    if task.private.clients is not None:
        assert task.private.clients.shape == task.private.labels.shape


@each
def test_the_seed_alone_decides_the_split(make, tmp_path):
    first, again, other = (
        make(tmp_path / str(i), seed)
        for i, seed in enumerate((3, 3, 4))
        if (tmp_path / str(i)).mkdir() is None
    )
    np.testing.assert_array_equal(first.public_index, again.public_index)
    np.testing.assert_array_equal(first.public.images, again.public.images)
    assert not np.array_equal(first.public_index, other.public_index)


@each
def test_the_card_names_source_licence_and_classes(make, tmp_path):
    card = make(tmp_path, 0).card
    assert all([card.name, card.source, card.licence, card.num_classes >= 2])
