"""Claims of papers by data set, with epsilon recomputed from the noise that they state."""

import math
from functools import partial

from rknn_jax.labelers.dpdfd import DPDFD
from rknn_jax.labelers.dpdfd.calibration import calibrate
from rknn_jax.privacy import accounting
from rknn_jax.privacy.events import Gaussian, Laplace, SampledGaussian, ScreenedGaussian

from . import Claim
from .published import CAVEATS, PUBLISHED

DELTA = 1e-5
"""Delta at which the stated noise is recomputed, as most papers claim it."""

INF = math.inf


def private_knn_stated() -> float:
    """Return epsilon for the noise that the Private-kNN paper states for MNIST."""
    screen = ScreenedGaussian(75.0, 1000, screen=(180.0, 300), sampling_prob=0.15, replaced=True)
    answers = SampledGaussian(25 / math.sqrt(2), 735, sampling_prob=0.15, replaced=True)
    return min(accounting.epsilons([screen, answers], DELTA).values())


def gnmax_stated() -> float:
    """Return epsilon for the noise that the second PATE paper states for MNIST, for any votes."""
    screen = ScreenedGaussian(150.0, 640, screen=(200.0, 250))
    return min(accounting.epsilons([screen, Gaussian(40 / math.sqrt(2), 286)], DELTA).values())


def lnmax_stated() -> float:
    """Return epsilon for Laplace noise of scale 20 on 1,000 queries, for any votes."""
    return min(accounting.epsilons([Laplace(20.0, 2000)], DELTA).values())


def rknn_stated(epsilon: float) -> float:
    """Return pure epsilon for Laplace noise of scale 2k/epsilon on the counts, at k = 1."""
    return (
        min(accounting.epsilons([Laplace(2 / epsilon, 2)], 0.0).values()) if epsilon < INF else INF
    )


def dpdfd_stated(epsilon: float) -> float:
    """Return the true epsilon of the noise for which Theorem 3 prints `epsilon`.

    It holds for one teacher, and our batches and steps.
    """
    config = DPDFD(
        epsilon=epsilon, delta=DELTA, clip=1e-3, as_published="single_teacher_per_sample"
    )
    return calibrate(config).guarantee.epsilon


OTHERS = {
    "mnist": (
        Claim(
            *(
                "private-knn",
                "Private-kNN (Zhu et al. 2020)",
                0.47,
                1e-5,
                None,
                0.988,
                private_knn_stated,
            ),
            "Its epsilon does not follow from its noise. HOG and two rounds there, spectral "
            "features and one here; its samples are of one "
            "size and shared by both steps, ours Poisson and fresh; its code tests on 9,000 "
            "images.",
        ),
        Claim(
            *(
                "pate",
                "PATE, Confident-GNMax (Papernot et al. 2018)",
                1.97,
                1e-5,
                None,
                0.985,
                gnmax_stated,
            ),
            "Its epsilon depends on the votes, which are private, and leaves out what releasing "
            "it would cost; ours never does. "
            "Convolutional teachers there, small networks on features here.",
        ),
        Claim(
            *("pate", "PATE, LNMax (Papernot et al. 2017)", 8.03, 1e-5, None, 0.981, lnmax_stated),
            "As in the row above, with Laplace noise and 1,000 queries, all answered; it is "
            "compared with our Confident-GNMax.",
        ),
        Claim(
            *(
                "noisy-sgd",
                "noisy SGD, as Li et al. compare with",
                1.0,
                1 / 60000,
                None,
                0.812,
                None,
            ),
            "Features of a transformation network there, which tell little of classes, spectral "
            "ones here. The noise is not stated in "
            "the paper; its delta is 1/60,000.",
        ),
        Claim(
            *("noisy-sgd", "the same without noise", INF, 0.0, None, 0.911, None),
            "As in the row above.",
        ),
        Claim(
            *(
                "diverse-public",
                "DiversePublic (Zhao et al. 2019), one of its networks before labels are bought",
                None,
                1e-5,
                None,
                0.97,
                None,
            ),
            "Ours is after labels were bought, of 5,000 public images, where the paper has "
            "50,000 of QMNIST; its epsilon is not told.",
        ),
        Claim(
            *(
                "near-private",
                "NearPrivate (Zhao et al. 2019), the other one",
                None,
                1e-5,
                None,
                0.975,
                None,
            ),
            "As in the row above. Its noise on votes has the scale epsilon where 2/epsilon is due, "
            "and its centre is private. Ours has neither fault.",
        ),
        Claim(
            *(
                "dpdfd",
                "DPDFD (Liu et al. 2023)",
                1.0,
                1e-5,
                None,
                0.9512,
                partial(dpdfd_stated, 1.0),
            ),
            "Its Theorem 3 is too small by orders of magnitude for its one teacher; recomputed "
            "for our batches and steps, as its own are "
            "not told. Ours has thousands of teachers on disjoint parts, so that epsilon holds.",
        ),
        Claim(
            *(
                "dpdfd",
                "DPDFD (Liu et al. 2023)",
                10.0,
                1e-5,
                None,
                0.9751,
                partial(dpdfd_stated, 10.0),
            ),
            "As in the row above.",
        ),
    )
}
"""Claims of other papers. Those of Li et al. are in `train.papers.published`."""


def claims(dataset: str) -> list[Claim]:
    """Return the claims of papers for a data set, Li et al. first."""
    name = dataset.removeprefix("tfds:").partition(":")[0]
    theirs = [
        Claim(
            "rknn-central",
            f"Li et al., {row.system}",
            row.epsilon,
            delta=0.0,
            label=row.label,
            student=row.student,
            recomputed=partial(rknn_stated, row.epsilon),
            differs="",
        )
        for row in PUBLISHED.get(name, ())
    ]
    return [claim._replace(differs=CAVEATS[name]) for claim in theirs] + list(OTHERS.get(name, ()))
