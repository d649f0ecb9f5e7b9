"""Mechanism contract, and drivers for any number of clients in constant memory.

| trust   | `randomize`, on the client | `aggregate`, anywhere | `estimate`, on the server |
|---------|----------------------------|-----------------------|---------------------------|
| central | returns the cells          | counts them           | adds the noise            |
| local   | adds the noise             | counts the support    | removes the bias          |
| shuffle | adds noise, less of it     | counts the support    | removes the bias          |

Fields are public configuration, call arguments are private data. Epsilon is a pytree leaf and sizes
are static, so one trace serves a sweep over epsilon. `estimate_counts` simulates, with
`jax.random`. `CentralMechanism.release` has exact integer noise from the operating system's
entropy, before which `question.charge_and_draw` charges a ledger.
"""

import abc
import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import bsvs
from rknn_jax._internal import pytree
from rknn_jax._internal.ranges import make_plain
from rknn_jax.privacy.contributions import as_person
from rknn_jax.privacy.guarantee import RELATIONS, Guarantee, Relation, Unit
from rknn_jax.types import Array

CLIENTS_PER_BLOCK = 8192


class Mechanism(Protocol):
    """Contract of a mechanism, tested by `tests/contracts/test_mechanisms.py`."""

    trusts: ClassVar[tuple[str, ...]]
    """Trust models under which the mechanism can label."""

    needs_delta: ClassVar[bool]
    """True if there is no pure guarantee. Defaults to False."""

    releases_counts: ClassVar[bool]
    """True if noisy counts are released, and not labels alone. Defaults to True."""

    adds_shares: ClassVar[bool]
    """True if clients can add the noise in shares, under masks. Defaults to False."""

    @classmethod
    def is_exact(cls) -> bool:
        """Return True if a release can draw the noise exactly. Defaults to False."""

    @property
    def votes_per_record(self) -> int:
        """Number of votes k·r, the width of a record's cells."""

    def randomize(self, key: jax.Array, cells: jax.Array) -> Any:
        """Return one client's message from its cells, int32 `[k·r]`. `key` is consumed."""

    def aggregate(self, messages: Any) -> jax.Array:
        """Return the integer totals of a block of messages.

        Totals of blocks, devices and hosts add up.
        """

    def totals_of_clients(self, keys: jax.Array, cells: jax.Array) -> jax.Array:
        """Return `aggregate` of the messages of many clients, whose keys are consumed."""

    def estimate(self, key: jax.Array, totals: jax.Array, num_records: int) -> jax.Array:
        """Return float32 counts `[num_queries, num_classes]`, unbiased if `unbiased` is True.

        `key` is consumed.
        """

    def stddev(self, counts: Array, num_records: int) -> np.ndarray:
        """Return the estimate's standard deviation, `[num_queries, num_classes]`.

        `counts` are the true counts of n records, or noisy ones where those are private.
        """

    def guarantee(self, num_records: int) -> Guarantee:
        """Return the guarantee of one run. It needs concrete numbers, on the host."""

    def release_guarantee(self, num_records: int) -> Guarantee:
        """Return the guarantee of one run whose noise is exact."""


@dataclass(frozen=True)
class CalibratedMechanism(abc.ABC):
    """Fields of all mechanisms, and their derived sizes.

    Attributes:
      epsilon: Epsilon of one run; infinity guarantees nothing.
      num_queries: Number of queries s.
      num_classes: Number of classes |Y|.
      num_neighbors: Number of neighbors k. Defaults to 1.
      labels_per_record: Number of labels of a record, r. Defaults to 1.
    """

    epsilon: float
    num_queries: int = field(metadata=pytree.STATIC)
    num_classes: int = field(metadata=pytree.STATIC)
    num_neighbors: int = field(default=1, metadata=pytree.STATIC)
    labels_per_record: int = field(default=1, metadata=pytree.STATIC)

    unbiased: ClassVar[bool] = True
    needs_delta: ClassVar[bool] = False
    releases_counts: ClassVar[bool] = True
    adds_shares: ClassVar[bool] = False

    @classmethod
    def is_exact(cls) -> bool:
        """Return True if a release can draw the noise exactly. Defaults to False."""
        return False

    def __post_init__(self) -> None:
        make_plain(self)
        # A tracer was checked when it was made.
        if isinstance(self.epsilon, int | float) and not self.epsilon > 0:
            raise ValueError(
                f"Expected epsilon > 0, got epsilon={self.epsilon}; choose a positive privacy "
                "budget."
            )
        for name in ("num_queries", "num_classes", "num_neighbors", "labels_per_record"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected {name} >= 1, got {name}={getattr(self, name)}.")
        if self.labels_per_record > self.num_classes:
            raise ValueError(
                "Expected labels_per_record <= num_classes, got "
                f"labels_per_record={self.labels_per_record}, "
                f"num_classes={self.num_classes}."
            )
        if self.num_neighbors > self.num_queries:
            raise ValueError(
                f"Expected num_neighbors <= num_queries, got num_neighbors={self.num_neighbors}, "
                f"num_queries={self.num_queries}; "
                "use fewer neighbors or more queries."
            )

    @property
    def votes_per_record(self) -> int:
        """Number of votes k·r of a record."""
        return self.num_neighbors * self.labels_per_record

    @abc.abstractmethod
    def randomize(self, key: jax.Array, cells: jax.Array) -> Any:
        """Return one client's message; see `Mechanism`."""

    @abc.abstractmethod
    def aggregate(self, messages: Any) -> jax.Array:
        """Return the totals of a block of messages; see `Mechanism`."""

    def totals_of_clients(self, keys: jax.Array, cells: jax.Array) -> jax.Array:
        """Return `aggregate` of the messages of many clients; see `Mechanism`.

        A mechanism of large messages overrides this, and holds none of them.
        """
        return self.aggregate(jax.vmap(self.randomize)(keys, cells))

    @property
    def num_cells(self) -> int:
        """Number of cells d = s·|Y|."""
        return self.num_queries * self.num_classes

    @property
    def shape(self) -> tuple[int, int]:
        """Shape `(num_queries, num_classes)` of the counts."""
        return self.num_queries, self.num_classes

    @abc.abstractmethod
    def guarantee(self, num_records: int) -> Guarantee:
        """Return the guarantee of one run; see `Mechanism`."""

    def release_guarantee(self, num_records: int) -> Guarantee:
        """Return the guarantee of one run whose noise is exact."""
        return replace(self.guarantee(num_records), sampler="release")


@dataclass(frozen=True)
class CentralMechanism(CalibratedMechanism):
    """Central mechanism: a trusted curator counts the votes and adds the noise once.

    Attributes:
      relation: Neighboring relation. Defaults to `replace-one`.
      unit: Privacy unit: record, or person, if `privacy.contributions` bounds the votes of each
        person by those of a record. Defaults to record.
      grid: Units of a vote in the totals that `release` and `estimate` take, for fractional votes.
        Defaults to 1.
      norm: Norm of the votes that decides the noise: 1, or 2 for Gaussian noise. Defaults to 1.
      query_for_each_class: True if there must be as many queries as classes. Defaults to False.
    """

    trusts: ClassVar[tuple[str, ...]] = ("central",)
    norm: ClassVar[Literal[1, 2]] = 1
    query_for_each_class: ClassVar[bool] = False

    relation: Relation = field(default="replace-one", metadata=pytree.STATIC)
    unit: Unit = field(default="record", kw_only=True, repr=False, metadata=pytree.STATIC)
    grid: int = field(default=1, kw_only=True, repr=False, metadata=pytree.STATIC)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.relation not in RELATIONS:
            raise ValueError(
                f"Expected relation to be one of {RELATIONS}, got relation={self.relation!r}."
            )
        sound = self.grid == 1 if self.unit == "record" else self.grid >= 1
        if self.unit not in ("record", "person") or not sound:
            raise ValueError(
                "Expected a grid of 1 for unit=record and a grid >= 1 for unit=person, got "
                f"unit={self.unit!r} and grid={self.grid}."
            )

    def release_guarantee(self, num_records: int) -> Guarantee:
        """Return the guarantee of one run whose noise is exact, for the mechanism's unit."""
        # The noise is that for one record: a person's votes are bounded to the same sensitivity.
        guarantee = super().release_guarantee(num_records)
        return guarantee if self.unit == "record" else as_person(guarantee)

    @property
    def changed_cells(self) -> int:
        """Number of cells that a neighboring data set changes, each by at most 1.

        It is the L1 sensitivity and also the squared L2 sensitivity.
        """
        # A replaced record takes its kr votes back and casts kr others; one that is added or
        # removed only casts or takes back.
        return self.votes_per_record * (2 if self.relation == "replace-one" else 1)

    @property
    def most_votes(self) -> float:
        """Largest sum of the votes of one unit, in votes."""
        if self.unit == "record" or self.norm == 1:
            return self.votes_per_record
        # Clipped to the L2 norm √(kr), votes sum to the most if they lie evenly over all d cells:
        # ‖v‖₁ <= √d·‖v‖₂.
        return math.sqrt(self.votes_per_record * self.num_cells)

    def randomize(self, key: jax.Array, cells: jax.Array) -> jax.Array:
        """Return the cells unchanged: the curator is trusted."""
        del key
        return cells

    def aggregate(self, messages: jax.Array) -> jax.Array:
        """Count the votes, int32 `[num_queries·num_classes]`."""
        totals: jax.Array = bsvs.sum_votes(messages, self.num_cells)
        return totals

    def release(self, totals: np.ndarray) -> np.ndarray:
        """Return counts as `estimate` does, but with exact integer noise.

        The noise comes from the operating system's entropy.

        Args:
          totals: Counts, int64 `[num_queries, num_classes]`, in units of 1 / `grid` votes.

        Raises:
          NotImplementedError: If the noise has no exact form.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no exact integer form, so it can be simulated but not "
            "released; use DiscreteLaplace instead."
        )

    def releases(self, totals: np.ndarray, num_runs: int) -> np.ndarray:
        """Release the same counts many times, for audits, `[num_runs, num_queries, num_classes]`.

        Args:
          totals: Counts, as in `release`.
          num_runs: Number of releases.
        """
        # Each cell has its own noise, so one release of many queries equals many of a few.
        many = np.tile(totals.reshape(self.shape), (num_runs, 1))
        released = replace(self, num_queries=len(many)).release(many)
        return np.asarray(released).reshape(num_runs, *self.shape)

    def winners(self, counts: Array) -> np.ndarray:
        """Return the label of each query without noise, int `[num_queries]`.

        Args:
          counts: `[num_queries, num_classes]`.
        """
        found: np.ndarray = np.asarray(counts).argmax(axis=1)
        return found

    @classmethod
    def is_exact(cls) -> bool:
        """Return True if the mechanism has a `release` of its own."""
        return cls.release is not CentralMechanism.release

    @property
    def noise_stddev(self) -> float:
        """Standard deviation of one cell's noise, in votes."""
        return float(self.stddev(np.zeros(1), 1)[0])

    @property
    def noise_scale(self) -> float:
        """Scale of the noise, in votes. Defaults to its standard deviation."""
        return self.noise_stddev

    @property
    def laplace_scale(self) -> float:
        """Scale of the Laplace noise that does as much harm, in votes.

        Defaults to that of the same standard deviation.
        """
        return self.noise_stddev / math.sqrt(2)

    def flip_prob(self, gap: float) -> float:
        """Return the probability that the noise changes a label.

        Defaults to that of discrete Gaussian noise of the same standard deviation.

        Args:
          gap: Lead of the label over every rival, in votes. A tie counts as a change.
        """
        return bsvs.gaussian_flip_prob(gap, self.noise_stddev, self.num_classes)

    @abc.abstractmethod
    def estimate(self, key: jax.Array, totals: jax.Array, num_records: int) -> jax.Array:
        """Add the noise to the totals, in units of 1 / `grid` votes; see `Mechanism`.

        The counts that are returned are in votes.
        """

    @abc.abstractmethod
    def stddev(self, counts: Array, num_records: int) -> np.ndarray:
        """Return the noise's standard deviation; see `Mechanism`."""


def estimate_counts(mechanism: Mechanism, key: jax.Array, cells: Array) -> jax.Array:
    """Simulate one run of `mechanism` over all records, one client each, in constant memory.

    Args:
      mechanism: Any mechanism.
      key: Key of the run, consumed. Client i draws from `fold_in(key', i)`, so the result does not
        depend on the size of a block.
      cells: Votes as cells, int32 `[num_records, k·r]` from `bsvs.cells`.

    Returns:
      float32 `[num_queries, num_classes]`.

    Raises:
      ValueError: If the cells are not as wide as the mechanism's sensitivity assumes, or there is
        no record.
    """
    cells = _checked(mechanism, cells)
    counts: jax.Array = _estimate_counts(mechanism, key, cells)
    return counts


class Payer(Protocol):
    """Payer of a release: a `Ledger`, or an object that charges one."""

    def charge(self, guarantee: Guarantee, purpose: str) -> object:
        """Have the charge on disk when this returns, or raise `LedgerError`."""


def check_counts(mechanism: CentralMechanism, totals: np.ndarray, num_records: int) -> None:
    """Raise ValueError for votes that so many records, or persons, cannot have cast.

    Args:
      mechanism: Central mechanism that is calibrated for the votes.
      totals: Sums of the votes, `[num_queries, num_classes]`, in units of 1 / `mechanism.grid`.
      num_records: Number of records n, or of persons.
    """
    # The last gate before a charge: noise is calibrated for this many votes and no more.
    most = num_records * mechanism.most_votes * mechanism.grid
    least = 0 if mechanism.relation == "add-remove" else 1
    sound = totals.dtype.kind in "iu" and totals.shape == mechanism.shape and num_records >= least
    # The sum of integers is exact and wraps around; that of floats is neither.
    rounded = totals.sum(dtype=np.float64) * (1 - 1e-9) if sound else 0
    if not sound or totals.min() < 0 or max(totals.sum(dtype=np.int64), rounded) > most:
        raise ValueError(
            f"Expected integer votes {mechanism.shape} of num_records >= {least}, "
            f"{mechanism.votes_per_record} a record at most, as {mechanism} is calibrated for, got "
            f"shape {totals.shape} of dtype {totals.dtype} with num_records={num_records}; make "
            "num_neighbors and labels_per_record agree with the votes."
        )


def _checked(mechanism: Mechanism, cells: Array) -> jax.Array:
    cells = jnp.asarray(cells, jnp.int32)
    # Under add-remove, whether there is a record is private.
    least = 0 if getattr(mechanism, "relation", None) == "add-remove" else 1
    if cells.ndim != 2 or len(cells) < least or cells.shape[1] != mechanism.votes_per_record:
        raise ValueError(
            f"Expected cells [num_records >= {least}, {mechanism.votes_per_record}], as "
            f"{mechanism} is calibrated for, got shape {cells.shape}; "
            "make num_neighbors and labels_per_record agree with the votes."
        )
    silent = jnp.full((1, mechanism.votes_per_record), bsvs.NO_CELL, jnp.int32)
    return bsvs.once(cells if len(cells) else silent)  # nobody counts as much as one without votes


@jax.jit
def client_totals(
    mechanism: Mechanism, key: jax.Array, cells: jax.Array, first_client: int | jax.Array = 0
) -> jax.Array:
    """Randomize and aggregate the votes of many clients in constant memory.

    Args:
      mechanism: Any mechanism.
      key: Key of all clients. Client i draws from `fold_in(key, i)`, so totals of parts add up to
        the total.
      cells: Votes as cells, int32 `[num_clients, k·r]`.
      first_client: Number of the first client. Defaults to 0.

    Returns:
      int32 totals, as `Mechanism.aggregate`.
    """
    num_clients = len(cells)
    block = min(CLIENTS_PER_BLOCK, num_clients)

    def totals_of(start: Any, size: int) -> jax.Array:
        clients = first_client + start + jnp.arange(size)
        # A client draws by its own number, so that neither blocks nor devices change a message.
        keys = jax.vmap(lambda client: jax.random.fold_in(key, client))(clients)
        return mechanism.totals_of_clients(keys, jax.lax.dynamic_slice_in_dim(cells, start, size))

    # Blocks of one size, then the rest: memory stays that of one block for any number of clients.
    blocks, rest = divmod(num_clients, block)
    totals = totals_of(0, block)
    if blocks > 1:  # JAX would compile the loop even if it never runs.
        totals = jax.lax.fori_loop(
            1, blocks, lambda i, totals: totals + totals_of(i * block, block), totals
        )
    return totals + totals_of(num_clients - rest, rest) if rest else totals


@jax.jit
def _estimate_counts(mechanism: Mechanism, key: jax.Array, cells: jax.Array) -> jax.Array:
    # Messages of clients and the noise of a curator never share a key.
    client_key, noise_key = jax.random.split(key)
    return mechanism.estimate(noise_key, client_totals(mechanism, client_key, cells), len(cells))
