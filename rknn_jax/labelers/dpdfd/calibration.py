"""Noise of data-free distillation, and the true epsilon of it.

A form with a guarantee is calibrated for its epsilon. A form of `as_published` gets the noise for
which Theorem 3 of the paper prints the epsilon, and the guarantee that this noise really gives.

Reference: Liu et al., "Model Conversion via Differentially Private Data-Free Distillation", 2023,
Theorem 3.
"""

import math
from typing import NamedTuple

from scipy.optimize import brentq

from rknn_jax.labelers.dpdfd.settings import Settings
from rknn_jax.privacy import accounting, analytic_gaussian
from rknn_jax.privacy.events import Event, Gaussian
from rknn_jax.privacy.guarantee import Guarantee


class Noise(NamedTuple):
    """Calibrated noise and its guarantee.

    Attributes:
      multiplier: Noise multiplier sigma, the noise's standard deviation over C.
      guarantee: True guarantee.
      as_published: Epsilon of the same run by Theorem 3.
    """

    multiplier: float
    guarantee: Guarantee
    as_published: float


def theorem_3_as_published(
    multiplier: float, clip: float, num_teachers: int, batch_size: int, steps: int, delta: float
) -> float:
    """Return epsilon by the paper's Theorem 3, from RDP of 2C²nBTa/sigma² at order a.

    This is not the true cost of the algorithm.

    >>> round(theorem_3_as_published(100.0, 1e-3, 1, 256, 1000, 1e-5), 4)
    0.0312
    """
    if multiplier == 0:
        return math.inf
    event = Gaussian(multiplier / (2 * clip * math.sqrt(num_teachers)), batch_size * steps)
    return accounting.epsilons([event], delta)["RDP"]


def calibrate(config: Settings) -> Noise:
    """Return the noise that `config` requires.

    The noise is calibrated for `config.epsilon`. In a form of `as_published`, it is such that
    Theorem 3 prints that epsilon.
    """
    if config.as_published == "none":
        return _noise_of_epsilon(config)
    return _noise_of_theorem_3(config)


def _noise_of_epsilon(config: Settings) -> Noise:
    if config.epsilon == math.inf:
        return Noise(0.0, _guarantee(config, math.inf), math.inf)
    releases = config.batch_size * config.steps
    one_release = analytic_gaussian.gaussian_noise_multiplier(config.epsilon, config.delta)
    # Another record moves a teacher's gradient from one end of the bound to the other: by 2C.
    multiplier = 2 * math.sqrt(releases) * one_release
    event = Gaussian(multiplier / 2, releases)
    return Noise(
        multiplier, _guarantee(config, config.epsilon, event), _printed(config, multiplier)
    )


def _noise_of_theorem_3(config: Settings) -> Noise:
    releases = config.batch_size * config.steps
    # In this unit of sigma, Theorem 3 has no other quantity.
    unit = 2 * config.clip * math.sqrt(config.teachers * releases)
    found = brentq(
        lambda log: _printed(config, unit * math.exp(log)) - config.epsilon,
        math.log(1e-3),
        math.log(1e9),
        xtol=1e-12,
    )
    multiplier = unit * math.exp(found)
    printed = _printed(config, multiplier)
    if config.as_published == "direct_training":
        return Noise(multiplier, _guarantee(config, math.inf), printed)
    if config.as_published == "single_teacher":
        # A batch's mean is released once a step, and one record moves all its B gradients.
        event = Gaussian(multiplier / (2 * config.batch_size), config.steps)
    else:
        event = Gaussian(multiplier / 2, releases)
    epsilon = accounting.epsilons([event], config.delta)["analytic Gaussian"]
    return Noise(multiplier, _guarantee(config, epsilon, event), printed)


def _printed(config: Settings, multiplier: float) -> float:
    """Return epsilon by Theorem 3 for a noise multiplier."""
    return theorem_3_as_published(
        multiplier,
        config.clip,
        config.teachers,
        batch_size=config.batch_size,
        steps=config.steps,
        delta=config.delta,
    )


def _guarantee(config: Settings, epsilon: float, *events: Event) -> Guarantee:
    if epsilon == math.inf:
        return Guarantee(
            math.inf, 0.0, config.relation, trust="central", events=(), unit=config.unit
        )
    return Guarantee(
        epsilon,
        config.delta,
        config.relation,
        trust="central",
        events=events,
        unit=config.unit,
        accountant="analytic Gaussian",
    )
