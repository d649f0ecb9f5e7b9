"""Labels that are spelled nearly like a class are told to the curator, with the difference."""

import numpy as np
import pytest

from rknn_jax.records.classes import Classes
from rknn_jax.release.usability import _near
from tests.test_inputs import LABELS, PRIVATE

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


def told(rknn, folder, labels, classes):
    np.savez(folder / "R.npz", embeddings=PRIVATE, labels=np.array(labels)[LABELS])
    return " ".join(rknn("check", "R.npz", "--classes", classes).out.split())


@pytest.mark.parametrize("name", [COMPOSED, DECOMPOSED])
def test_another_composition_of_letters_is_told_with_the_remedy(rknn, tmp_path, name):
    other = DECOMPOSED if name == COMPOSED else COMPOSED
    found = told(rknn, tmp_path, [name, "b", "c"], f"{other},b,c")
    assert f"and is {ascii(name)} where the class is {ascii(other)}" in found
    assert "unicodedata.normalize('NFC', label)" in found
    assert "did you mean" not in found


@pytest.mark.parametrize("label", ["CAT", "Cat ", "catt"])
def test_capitals_and_spelling_are_near_misses(rknn, tmp_path, label):
    found = told(rknn, tmp_path, [label, "dog", "owl"], "cat,dog,owl")
    assert "did you mean 'cat'?" in found
    assert "labeler" not in found


def test_a_class_is_named_in_one_composition():
    with pytest.raises(ValueError, match=r"as 'caf\\xe9' and as 'cafe\\u0301'.* name it once"):
        Classes(3, (COMPOSED, "b", DECOMPOSED))
    assert Classes(2, (COMPOSED, DECOMPOSED), "inferred").count == 2
    assert _near(DECOMPOSED, [COMPOSED]) == COMPOSED
