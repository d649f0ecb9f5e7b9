"""Privacy events: the noise of a release, as a neighboring data set can change it.

`Event` is a closed union. Each class computes what its own noise costs, so that accountants,
filters, ledgers and statements never ask which noise it is:

| class              | noise of one value                             | tag in files        |
|--------------------|------------------------------------------------|---------------------|
| `Pure`             | any that is known to be epsilon-DP, no more    | `pure`              |
| `Laplace`          | Laplace                                        | `laplace`           |
| `DiscreteLaplace`  | discrete Laplace                               | `discrete_laplace`  |
| `Gaussian`         | Gaussian                                       | `gaussian`          |
| `SampledGaussian`  | Gaussian, on a random sample of the records    | `gaussian`          |
| `ScreenedGaussian` | Gaussian, of which one bit is released         | `gaussian`          |
| `DiscreteGaussian` | discrete Gaussian                              | `discrete_gaussian` |
| `Concentrated`     | any that is known to be rho-zCDP, no more      | `concentrated`      |
| `Binomial`         | heads of fair coins                            | `binomial`          |

An event's `parameter` is the noise divided by the change that a neighbor makes, so it already
includes the neighboring relation. A new class joins the union `Event`, and `event_of` reads it from
files by its tag.

References: Mironov, "Rényi Differential Privacy", 2017; Canonne, Kamath & Steinke, "The Discrete
Gaussian for Differential Privacy", 2020; Bun & Steinke, "Concentrated Differential Privacy", 2016.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, get_args

import numpy as np

from rknn_jax._internal.ranges import make_plain
from rknn_jax.privacy.renyi_curves import gaussian_rdp, laplace_rdp, response_rdp

PLAIN: Mapping[str, Any] = {
    "sampling_prob": 1.0,
    "replaced": False,
    "screen": None,
    "opposite": False,
}
"""Fields of sampled and screened events, with the values that files give them in other events."""


@dataclass(frozen=True)
class _Values(ABC):
    """`count` independent values with one noise: what all events have in common.

    Attributes:
      kind: Tag of the class in files.
      has_rdp: True if the Rényi divergence is known. Defaults to True.
      has_pld: True if a privacy loss distribution is known. Defaults to True.
      is_partial: True if values are of a sample of the records, or are not released themselves.
        Defaults to False.
      parameter: Scale or standard deviation of the noise, divided by the change of the value that
        the noise hides. At least 0; 0 is no noise.
      count: Number of such values that one neighbor changes, at least 1. A record of reverse k-NN
        labeling changes up to 2kr cells by 1 each. Defaults to 1.

    Raises:
      ValueError: If a field is out of range.
    """

    kind: ClassVar[str]
    has_rdp: ClassVar[bool] = True
    has_pld: ClassVar[bool] = True
    is_partial: ClassVar[bool] = False

    parameter: float
    count: int = 1

    def __post_init__(self) -> None:
        make_plain(self)
        if not self.parameter >= 0:
            raise ValueError(
                f"Expected parameter >= 0, got parameter={self.parameter}; it is the noise "
                "divided by what it hides."
            )
        if self.count < 1:
            raise ValueError(
                f"Expected count >= 1, got count={self.count}; leave an event out where nothing "
                "was released."
            )

    @property
    def loss(self) -> float:
        """Privacy loss of one value: the largest if it is bounded, a typical one otherwise."""
        return 1 / self.parameter if self.parameter else math.inf

    @property
    def pure_epsilon(self) -> float | None:
        """Epsilon of all values together at delta = 0; None if there is none."""
        return None

    @property
    def precision(self) -> float | None:
        """Sum of 1/sigma² over the values, for one exactly Gaussian sum; None for other noise.

        sigma is the noise multiplier.
        """
        return None

    @property
    def rho(self) -> float | None:
        """Rho of zero-concentrated DP of all values together; None if it is not computed."""
        return None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Sentences on what has to hold beside the noise, for statements."""
        return ()

    @abstractmethod
    def rdp(self, orders: np.ndarray) -> np.ndarray:
        """Return a bound on the Rényi divergence of all values together.

        Args:
          orders: Orders above 1, float64 `[n]`.

        Returns:
          float64 `[n]`: at least 0; infinity, or NaN from an overflow, if nothing is known.
        """

    def typical_rdp(self, orders: np.ndarray) -> np.ndarray:
        """Return `rdp`, or an estimate of it that bounds nothing and sizes grids."""
        return self.rdp(orders)

    @abstractmethod
    def pld(self, interval: float) -> Any:
        """Return the privacy loss distribution of all values together, rounded up.

        Args:
          interval: Distance of the grid of privacy losses.

        Raises:
          NotImplementedError: If no distribution is known (`has_pld`).
        """

    def asdict(self) -> dict[str, Any]:
        """Return the fields as files hold them, the tag first and those of `PLAIN` included."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        start = {"kind": self.kind, "parameter": self.parameter, "count": self.count}
        return start | dict(PLAIN) | own


@dataclass(frozen=True)
class _Bounded(_Values):
    """Values whose privacy loss has a largest value.

    The worst epsilon-DP pair is randomized response.
    """

    @property
    def pure_epsilon(self) -> float:
        """Sum of the largest losses of the values."""
        return self.count * self.loss

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        """Return the Rényi divergence of randomized response with this loss, `count` times."""
        return self.count * response_rdp(orders, self.loss)

    def pld(self, interval: float) -> Any:
        """Return the privacy loss distribution of randomized response with this loss."""
        return _losses().response(self.loss, interval).self_compose(self.count)


@dataclass(frozen=True)
class Pure(_Bounded):
    """Values of any mechanism that is known to be epsilon-DP, and no more.

    `parameter` is epsilon.
    """

    kind = "pure"

    @property
    def loss(self) -> float:
        """Epsilon of one value."""
        return self.parameter


@dataclass(frozen=True)
class Laplace(_Bounded):
    """Values with Laplace noise."""

    kind = "laplace"

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        """Return the Rényi divergence of Laplace noise (Mironov, 2017, Proposition 6)."""
        return self.count * laplace_rdp(orders, self.loss)

    def pld(self, interval: float) -> Any:
        """Return the privacy loss distribution of Laplace noise."""
        return _losses().laplace(self.parameter, interval).self_compose(self.count)


@dataclass(frozen=True)
class DiscreteLaplace(_Bounded):
    """Integers with discrete Laplace noise.

    A shift by one unit has the two losses of randomized response.
    """

    kind = "discrete_laplace"

    def lower_pld(self, interval: float) -> Any:
        """Return the privacy loss distribution rounded down to the grid, for audits."""
        return _losses().lower_response(self.loss, interval).self_compose(self.count)


@dataclass(frozen=True)
class _ZeroConcentrated(_Values):
    """Values whose Rényi divergence of order a is at most a / (2 `parameter`²)."""

    @property
    def rho(self) -> float:
        """Rho of all values together, `count` / (2 `parameter`²)."""
        return self.count / (2 * self.parameter**2)

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        """Return the line that rho-zCDP allows (Bun & Steinke, 2016)."""
        return self.count * gaussian_rdp(orders, self.loss)


@dataclass(frozen=True)
class Gaussian(_ZeroConcentrated):
    """Values with Gaussian noise, of all records.

    Attributes:
      replaced: True if a neighbor holds another record in place of one, as the release told it.
        `parameter` covers both cases, so this changes no cost. Files keep it. Defaults to False.
    """

    kind = "gaussian"

    replaced: bool = False

    @property
    def precision(self) -> float:
        """Sum of 1/sigma² over the values."""
        return self.count / self.parameter**2

    def pld(self, interval: float) -> Any:
        """Return the privacy loss distribution of Gaussian noise."""
        one = _losses().gaussian(self.parameter, interval, sampling_prob=1.0)
        return one.self_compose(self.count)


@dataclass(frozen=True)
class DiscreteGaussian(_ZeroConcentrated):
    """Integers with discrete Gaussian noise.

    Its divergence is at most that of the continuous noise (Canonne, Kamath & Steinke, 2020).
    """

    kind = "discrete_gaussian"

    def pld(self, interval: float) -> Any:
        """Return the privacy loss distribution of discrete Gaussian noise."""
        return _losses().discrete_gaussian(self.parameter, interval).self_compose(self.count)

    def lower_pld(self, interval: float) -> Any:
        """Return the privacy loss distribution rounded down to the grid, for audits."""
        return _losses().lower_discrete_gaussian(self.parameter, interval).self_compose(self.count)


@dataclass(frozen=True)
class Concentrated(_ZeroConcentrated):
    """Values of any mechanism that is known to be rho-zCDP, and no more.

    rho = 1 / (2 `parameter`²).
    """

    kind = "concentrated"
    has_pld = False

    def pld(self, interval: float) -> Any:
        """Refuse: no single pair dominates all rho-zCDP mechanisms."""
        raise NotImplementedError(
            "Expected noise whose law is known, got concentrated; compose it by its Rényi curve."
        )


@dataclass(frozen=True)
class Binomial(_Values):
    """Integers with the number of heads of fair coins as noise.

    `parameter` is its standard deviation, sqrt(number of coins) / 2. An outcome that one data set
    alone can have makes the Rényi divergence infinite, so only a privacy loss distribution bounds
    the cost.
    """

    kind = "binomial"
    has_rdp = False

    @property
    def coins(self) -> float:
        """Number of fair coins, to be rounded down, whose heads are the noise of one value."""
        return 4 * self.parameter**2 * (1 + 1e-12)

    @property
    def loss(self) -> float:
        """Typical loss of one value; infinite without a coin, which is no noise."""
        return super().loss if self.coins >= 1 else math.inf

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        """Return infinity for every order."""
        return np.full_like(orders, math.inf)

    def typical_rdp(self, orders: np.ndarray) -> np.ndarray:
        """Return the Rényi divergence of Gaussian noise with this standard deviation."""
        return self.count * gaussian_rdp(orders, self.loss)

    def pld(self, interval: float) -> Any:
        """Return the privacy loss distribution of the heads of at least one coin."""
        one = _losses().binomial(self.parameter, math.floor(self.coins), interval)
        return one.self_compose(self.count)


@dataclass(frozen=True)
class SampledGaussian(_Values):
    """Values with Gaussian noise, each of a fresh Poisson sample of the records.

    Attributes:
      sampling_prob: Probability that a record takes part in a value, in (0, 1).
      replaced: True if a neighbor holds another record in place of one, and False if the neighbor
        lacks the record. Defaults to False.
      opposite: For replaced records, True if each record moves the value by at most half of the
        change that `parameter` tells. The two are then farthest apart in opposite directions, as
        clipped gradients are. If False, each record may move the value by all of that change.
        Defaults to False.
    """

    kind = "gaussian"
    is_partial = True

    sampling_prob: float = field(kw_only=True)
    replaced: bool = field(default=False, kw_only=True)
    opposite: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.sampling_prob < 1:
            raise ValueError(
                f"Expected 0 < sampling_prob < 1, got sampling_prob={self.sampling_prob}; at 1, "
                "the event is Gaussian."
            )
        _check_opposite(self.opposite, self.replaced)

    @property
    def loss(self) -> float:
        """Typical loss of a value, amplified by sampling."""
        return _sampled_loss(super().loss, self.sampling_prob)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Independence of the samples."""
        return _sampling_assumptions(self.count, self.sampling_prob)

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        """Return the Rényi divergence by the curves of `sampled_gaussian`."""
        from rknn_jax.privacy import sampled_gaussian  # Late: SciPy takes a while.

        if self.opposite:
            curve = sampled_gaussian.opposite_cumulants
        elif self.replaced:
            curve = sampled_gaussian.replaced_cumulants
        else:
            curve = sampled_gaussian.removed_cumulants
        cumulants = curve(self.parameter, self.sampling_prob)
        return self.count * sampled_gaussian.rdp_above(cumulants, orders)

    def pld(self, interval: float) -> Any:
        """Return the privacy loss distribution: dp-accounting's, or our curve if replaced."""
        law = self.parameter, interval, self.sampling_prob
        if self.replaced:
            one = _losses().replaced_gaussian(*law, self.opposite)
        else:
            one = _losses().gaussian(*law)
        return one.self_compose(self.count)


@dataclass(frozen=True)
class ScreenedGaussian(_Values):
    """Counts with Gaussian noise, of which only the passing of a threshold is released.

    Attributes:
      screen: `(threshold, most)`. A count lies in 0 to `most` and changes by at most 1.
      sampling_prob: Probability that a record takes part in a count, in (0, 1], drawn anew for
        each (Poisson sampling). Defaults to 1.
      replaced: True if a neighbor holds another record in place of one, and False if the neighbor
        lacks the record. Defaults to False.
    """

    kind = "gaussian"
    is_partial = True

    screen: tuple[float, int] = field(kw_only=True)
    sampling_prob: float = field(default=1.0, kw_only=True)
    replaced: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.sampling_prob <= 1:
            raise ValueError(
                f"Expected 0 < sampling_prob <= 1, got sampling_prob={self.sampling_prob}; 1 "
                "samples every record."
            )
        object.__setattr__(self, "screen", tuple(self.screen))  # JSON makes the tuple a list.

    @property
    def loss(self) -> float:
        """Typical loss of a noisy count, amplified by sampling."""
        return _sampled_loss(super().loss, self.sampling_prob)

    @property
    def precision(self) -> float | None:
        """That of the noisy counts themselves, unless they are of samples."""
        return self.count / self.parameter**2 if self.sampling_prob == 1 else None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Independence of the samples, if there are any."""
        return _sampling_assumptions(self.count, self.sampling_prob)

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        """Return the largest Rényi divergence of two coins (`sampled_gaussian`)."""
        from rknn_jax.privacy import sampled_gaussian  # Late: SciPy takes a while.

        cumulants = sampled_gaussian.screened_cumulants(
            self.parameter, self.sampling_prob, *self.screen
        )
        return self.count * sampled_gaussian.rdp_above(cumulants, orders)

    def pld(self, interval: float) -> Any:
        """Return the privacy loss distribution of the noisy counts themselves.

        The best threshold for each epsilon makes the bound of a screen the same.
        """
        counts = gaussian_event(self.parameter, self.count, self.sampling_prob, self.replaced)
        return counts.pld(interval)


Event = (
    Pure
    | Laplace
    | DiscreteLaplace
    | Gaussian
    | SampledGaussian
    | ScreenedGaussian
    | DiscreteGaussian
    | Concentrated
    | Binomial
)


def gaussian_event(
    parameter: float,
    count: int = 1,
    sampling_prob: float = 1.0,
    replaced: bool = False,
    screen: tuple[float, int] | None = None,
    opposite: bool = False,
) -> Gaussian | SampledGaussian | ScreenedGaussian:
    """Return the event of Gaussian noise, whose class depends on sampling and screening.

    Args:
      parameter: Standard deviation of the noise, divided by the change of the value.
      count: Number of values. Defaults to 1.
      sampling_prob: Probability that a record takes part in a value. Defaults to 1, all records.
      replaced: True if a neighbor holds another record in place of one. Defaults to False.
      screen: `(threshold, most)` of `ScreenedGaussian`. Defaults to None, no screen.
      opposite: As in `SampledGaussian`. Without sampling it changes nothing. Defaults to False.

    Raises:
      ValueError: If an argument is out of range, or `opposite` comes without `replaced` or with a
        screen.
    """
    _check_opposite(opposite, replaced and not screen)
    if screen:
        return ScreenedGaussian(
            parameter, count, screen=screen, sampling_prob=sampling_prob, replaced=replaced
        )
    if sampling_prob == 1:
        return Gaussian(parameter, count, replaced)
    return SampledGaussian(
        parameter, count, sampling_prob=sampling_prob, replaced=replaced, opposite=opposite
    )


def event_of(told: Mapping[str, Any]) -> Event:
    """Return the event of a file's fields: `asdict` of an event, perhaps without those of `PLAIN`.

    Raises:
      TypeError: If a field is missing, unknown or of another type.
      ValueError: If the tag is unknown, or fields are out of range or do not go together.
    """
    values = dict(told)
    kind = values.pop("kind", None)
    if kind not in list(_READERS):  # a list, as the tag of a damaged file may not be hashable
        raise ValueError(f"Expected kind to be one of {tuple(_READERS)}, got kind={kind!r}.")
    return _READERS[kind](**values)


def merged(events: Iterable[Event]) -> tuple[Event, ...]:
    """Join events that are alike but for `count`, so that each is composed in one step."""
    counts: Counter[Event] = Counter()
    for event in events:
        counts[replace(event, count=1)] += event.count
    return tuple(replace(event, count=count) for event, count in counts.items())


def known_of_all(values: Iterable[float | None]) -> list[float]:
    """Return the values, or an empty list if one of them is None."""
    found = list(values)
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else []


def _losses() -> Any:
    """Return `loss_distributions`, late, because the first import takes 2 s."""
    from rknn_jax.privacy import loss_distributions

    return loss_distributions


def _sampled_loss(loss: float, sampling_prob: float) -> float:
    """Return ln(1 + g(e^loss - 1)), the loss of a value that a record may not take part in."""
    if sampling_prob == 1:
        return loss
    return math.log1p(sampling_prob * math.expm1(min(loss, 700)))


def _sampling_assumptions(count: int, sampling_prob: float) -> tuple[str, ...]:
    if sampling_prob == 1:
        return ()
    return (
        f"every record was drawn anew for each of {count} values, independently and with "
        f"probability {sampling_prob:g}",
    )


def _check_opposite(opposite: bool, possible: bool) -> None:
    if opposite and not possible:
        raise ValueError(
            "Expected opposite=True only where records are replaced and nothing is screened."
        )


def _read_unsampled(
    noise: type[Pure | Laplace | DiscreteLaplace | DiscreteGaussian | Concentrated | Binomial],
    parameter: float,
    count: int = 1,
    sampling_prob: float = 1.0,
    replaced: bool = False,
    screen: tuple[float, int] | None = None,
    opposite: bool = False,
) -> Event:
    """Return an event of a class without sampling, from all the fields that a file may hold.

    `replaced` and `opposite` say nothing without sampling, and are not kept.
    """
    if sampling_prob != 1 or screen:
        raise ValueError(
            "Expected kind=gaussian where records are sampled or counts screened, got "
            f"kind={noise.kind!r}."
        )
    _check_opposite(opposite, replaced)
    return noise(parameter, count)


_READERS: dict[str, Callable[..., Event]] = {
    one.kind: functools.partial(_read_unsampled, one) for one in get_args(Event)
} | {Gaussian.kind: gaussian_event}
"""Readers by tag, which the three classes of Gaussian noise share."""
