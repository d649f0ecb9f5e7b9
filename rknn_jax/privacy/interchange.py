"""Guarantees for other libraries: events of dp_accounting, and a measurement of OpenDP.

    event = interchange.dp_event(guarantee)            # to compose with your own mechanisms
    accountant.compose(event)

    release = interchange.measurement(guarantee, run)  # to chain and to compose in OpenDP
    release.map(d_in=1)                                # epsilon, or (epsilon, delta)

| event here                         | event of dp_accounting   | why it holds                    |
|------------------------------------|--------------------------|---------------------------------|
| `Gaussian`                         | Gaussian                 | the same                        |
| `Laplace`                          | Laplace                  | the same                        |
| `SampledGaussian`                  | Poisson-sampled Gaussian | the same, under add-remove      |
| `ScreenedGaussian`                 | Gaussian                 | a bit of it is post-processing  |
| `DiscreteGaussian`, `Concentrated` | zCDP                     | rho of each value               |
| `Pure`, `DiscreteLaplace`          | zCDP                     | rho = epsilon² / 2 of each value|

The parameter of an event is relative to the change that a neighbor makes under the relation of the
guarantee. So pass an accountant `NeighboringRelation.ADD_OR_REMOVE_ONE` for either relation: with
`REPLACE_ONE`, it would double the change again. Its own events, beside these, have to be relative
to the same neighbors.

Randomized response would be tighter for pure noise. dp_accounting 0.6 counts it once however often
it is composed, by privacy loss distributions, so that it is not used here.

Reference: Bun & Steinke, "Concentrated Differential Privacy", 2016, Proposition 3.3, for rho.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

from rknn_jax.privacy.events import (
    Concentrated,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Gaussian,
    Laplace,
    Pure,
    SampledGaussian,
    ScreenedGaussian,
)
from rknn_jax.privacy.guarantee import Guarantee


def dp_event(guarantee: Guarantee) -> Any:
    """Return the noise of a release as a `dp_accounting.DpEvent`.

    Raises:
      ValueError: If the guarantee has no events, or one that dp_accounting does not have.
    """
    import dp_accounting

    if not guarantee.events:
        raise ValueError(
            "Expected a guarantee with privacy events, got one without; its epsilon and delta are "
            "all that is known."
        )
    parts = [_dp_event(event) for event in guarantee.events]
    return parts[0] if len(parts) == 1 else dp_accounting.ComposedDpEvent(parts)


@functools.singledispatch
def _one(event: Event) -> Any:
    """Return one of the values of an event."""
    raise ValueError(
        f"Expected an event that dp_accounting has, got {event}; compose it by rknn_jax.compose."
    )


def _dp_event(event: Event) -> Any:
    import dp_accounting

    one = _one(event)
    return one if event.count == 1 else dp_accounting.SelfComposedDpEvent(one, event.count)


@_one.register(Gaussian)
def _gaussian(event: Gaussian | ScreenedGaussian) -> Any:
    import dp_accounting

    return dp_accounting.GaussianDpEvent(event.parameter)


@_one.register(Laplace)
def _laplace(event: Laplace) -> Any:
    import dp_accounting

    return dp_accounting.LaplaceDpEvent(event.parameter)


@_one.register(DiscreteLaplace)
@_one.register(Pure)
def _pure(event: DiscreteLaplace | Pure) -> Any:
    import dp_accounting

    return dp_accounting.ZCDpEvent(event.loss**2 / 2)


@_one.register(DiscreteGaussian)
@_one.register(Concentrated)
def _concentrated(event: DiscreteGaussian | Concentrated) -> Any:
    import dp_accounting

    return dp_accounting.ZCDpEvent(event.rho / event.count)


@_one.register(SampledGaussian)
def _sampled(event: SampledGaussian) -> Any:
    import dp_accounting

    if event.replaced:
        raise ValueError(
            f"Expected sampling under add-remove, got {event}; dp_accounting has no event of a "
            "replaced record, so compose it by rknn_jax.compose."
        )
    one = dp_accounting.GaussianDpEvent(event.parameter)
    return dp_accounting.PoissonSampledDpEvent(event.sampling_prob, one)


@_one.register(ScreenedGaussian)
def _screened(event: ScreenedGaussian) -> Any:
    if event.sampling_prob < 1:
        raise ValueError(
            f"Expected a screen over all records, got {event}; compose it by rknn_jax.compose."
        )
    return _gaussian(event)


def measurement(guarantee: Guarantee, release: Callable[[Any], Any]) -> Any:
    """Return a release as an OpenDP measurement, whose map is that of the guarantee.

    The distance of data sets is the number of records, or persons, that differ. OpenDP takes both
    on trust, so `opendp.mod.enable_features("contrib", "honest-but-curious")` comes first.

    Args:
      guarantee: Guarantee of the release, which depends on no private record.
      release: Function from private records to what is released.

    Raises:
      ValueError: If epsilon depends on the data, or the noise is simulated.
      opendp.mod.OpenDPException: If the features are not enabled.
    """
    from opendp import domains, measurements, measures, metrics

    if guarantee.data_dependent or guarantee.sampler != "release":
        raise ValueError(
            "Expected the guarantee of a release, got one that depends on the data or of simulated "
            f"noise: {guarantee}"
        )
    replaced = guarantee.relation == "replace-one"
    return measurements.make_user_measurement(
        domains.user_domain(f"private {guarantee.unit}s", lambda records: True),
        metrics.change_one_distance() if replaced else metrics.symmetric_distance(),
        measures.fixed_smoothed_max_divergence() if guarantee.delta else measures.max_divergence(),
        release,
        functools.partial(_map, guarantee),
    )


def _map(guarantee: Guarantee, distance: int) -> Any:
    """Return what the release reveals of this many records at once, by group privacy."""
    epsilon = distance * guarantee.epsilon
    if not guarantee.delta:
        return epsilon
    try:
        grown = sum(math.exp(step * guarantee.epsilon) for step in range(distance))
    except OverflowError:
        grown = math.inf
    return epsilon, min(1.0, guarantee.delta * grown)
