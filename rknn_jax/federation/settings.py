"""Settings of a server: what it asks of its clients. `join_settings` has a client's."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rknn_jax import trust as trusts
from rknn_jax._internal.option_names import option
from rknn_jax._internal.ranges import (
    CheckShare,
    Count,
    CountOrNone,
    Deadline,
    Delta,
    Port,
    ReleaseEpsilon,
    Seed,
)
from rknn_jax.privacy.guarantee import LARGE_EPSILON
from rknn_jax.privacy.responsible import Responsible
from rknn_jax.settings import GivenClasses

if TYPE_CHECKING:  # JAX takes seconds to import, and --help does not need it
    from rknn_jax.federation.request import Asked
    from rknn_jax.labelers._sum_labeler import SumLabeler

if TYPE_CHECKING:
    Trust = str
else:  # the choices of the command line are those of `rknn_jax.trust`
    Trust = trusts.choices(lambda model: bool(model.federated))

Unit = Literal["record", "client"]
"""What a round protects; it has no persons, as no client sees whose records another holds."""

PORT = 9092

CLIENTS_FILES = ("ca.pem", "party.pem", "party.key")
"""Names in place of a client's root, certificate and key."""

VOTES = "rknn"
"""Labeler whose records vote, under any trust."""

OF_VOTES = (
    "mechanism",
    "neighbors",
    "metric",
    "amplification",
    "records_per_client",
    "labels_per_record",
)
"""Settings that other labelers do not have."""


@dataclass(frozen=True)
class Serve:
    """Ask the clients of a federation to label public data, train a student, and publish labels and guarantee.

    If it is killed at any time, the same command continues where it was. To serve other hosts, it needs certificates and the clients' keys.

    Attributes:
      public: .npz with `images` uint8 [m, h, w, c] or `embeddings` [m, f], or a table of features; or a folder or a pattern of such files, without images.
      epsilon: privacy budget that this round spends for each record, or with --unit client for each client. Above 50 only with --allow-large-epsilon.
      clients: number of clients to wait for.
      out: folder for the results of the round.
      classes: classes of the labels.
      drop: columns of a table in --public that are not features. They are copied to the labels.
      quorum: number of clients whose answers are enough to publish something after the deadline. With --trust central, so many must stay until the end. The default is all of --clients.
      deadline: seconds that each round is open.
      labeler: rknn, where records vote for queries; or prototypes, least_squares or public_prototypes, where clients compute one sum, with --trust central.
      trust: local trusts nobody. shuffle trusts this server not to look at who sent what, and --honest messages to follow the protocol. central trusts it to follow the protocol of secure aggregation, and --honest clients to add their share of the noise.
      honest: number of messages, or with --trust central of clients, that follow the protocol. Nothing is published from fewer. With --trust central, the default is all of --quorum.
      delta: delta of this round, for --trust shuffle and central.
      amplification: bound that computes the epsilon of --trust shuffle. variation-ratio uses the mechanism and needs less noise; general holds for every mechanism.
      mechanism: kind of noise in each message, one of the files in rknn_jax/mechanisms that a client can draw exactly, such as subset_selection; or with --trust central, one whose noise clients can add in shares. The default is collision, or binomial with --trust central.
      queries: number of queries s. The default is one per class. With public_prototypes, it is the number of candidates, by default three per class. With other sums, it is the number of public rows from which center and spread are computed, by default 4096.
      neighbors: number of queries k that each record votes for, with --labeler rknn.
      metric: distance between features, with --labeler rknn.
      unit: what epsilon protects: a record, or everything that a client holds.
      records_per_client: number of messages, or of records that vote, per client under --unit client. Other sums include all records of a client, scaled to the norm of one.
      labels_per_record: largest number r of labels that count for each record, if records may have several. Each public row then gets a set of classes. 0 means one label per record. Students cannot learn sets.
      rounds: number T of rounds of Algorithm 1, which share epsilon and delta; later rounds get more of them. Each later round uses features that were learned from the labels of the round before. --out has folders round-1 and so on, each with a statement of its own. Every client needs a budget for all rounds. Several rounds seldom help.
      check_share: share of the records, or of the clients with --unit client, that do not vote, but answer in a second question whether they agree with the labels. Each client draws its own. This costs no extra epsilon.
      representation: encoder, learned from the public images; a file of rknn_jax/representations.
      student: model to train on the labeled public images, or none. The default is cnn for images with one label each, and none otherwise.
      epochs: number of epochs of the student. The default, 0, uses the student's own number.
      test: .npz with `images` and `labels` on which the student is measured.
      seed: seed of clustering and training, which are public. No option fixes the noise.
      host: host name or address on which clients connect.
      port: port on which clients connect.
      accounts: file, for the server's owner, that adds up the rounds of each client over time; it is made if it does not exist. The report then says how many clients have answered how many rounds, and what that cost them. By default, there is none.
      metrics_port: port for /metrics (Prometheus) and /health, on this host only. By default, there is none.
      certificates: folder of server.pem and server.key, for HTTPS.
      keys: file of all clients' certificates, one after the other (PEM). Nobody else may connect, and each key counts as one client.
      make_test_certificates: new folder for test certificates, which the server then uses: a root, one for this server at --host, and party0, party1 and so on for --clients. They expire after a week. For real records, every client makes its own.
      question: folder of another server whose question this server asks too, with the same options; see --merge.
      collect_only: only collect answers and publish nothing; --merge publishes them later.
      merge: folders of servers that asked the same question. No client is asked; all their answers are counted together and published in --out.
      responsible: who answers for the round.
      allow_large_epsilon: ask at an epsilon above 50, which protects next to nothing.
      dry_run: check the settings and print the command for the clients. This asks nobody and writes nothing.
      json: end with one line of JSON on stdout.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    public: Path
    epsilon: ReleaseEpsilon
    clients: Count
    out: Path
    classes: GivenClasses = field(default_factory=GivenClasses)
    drop: tuple[str, ...] = ()
    quorum: Count | None = None
    deadline: Deadline = 3600.0
    labeler: str = "rknn"
    trust: Trust = "local"
    honest: CountOrNone = 0
    delta: Delta = 1e-6
    amplification: Literal["variation-ratio", "general"] = "variation-ratio"
    mechanism: str | None = None
    queries: Count | None = None
    neighbors: Count = 1
    metric: Literal["sqeuclidean", "cosine"] = "sqeuclidean"
    unit: Unit = "record"
    records_per_client: Count = 1
    labels_per_record: CountOrNone = 0
    rounds: Count = 1
    check_share: CheckShare = 0.0
    representation: str = "spectral"
    student: str | None = None
    epochs: CountOrNone = 0
    test: Path | None = None
    seed: Seed = 0
    host: str = "127.0.0.1"
    port: Port = PORT
    accounts: Path | None = None
    metrics_port: Port | None = None
    certificates: Path | None = None
    keys: Path | None = None
    make_test_certificates: Path | None = None
    question: Path | None = None
    collect_only: bool = False
    merge: tuple[Path, ...] = ()
    responsible: Responsible = field(default_factory=Responsible)
    allow_large_epsilon: bool = False
    dry_run: bool = False
    json: bool = False

    @property
    def summed(self) -> bool:
        """True if clients' numbers are added under masks."""
        return trusts.named(self.trust).has_curator

    @property
    def shuffled(self) -> bool:
        """True if each message hides among the others."""
        return trusts.named(self.trust).is_shuffled


def settled(settings: Serve, *, images: bool) -> Serve:
    """Return a server's settings with what follows from its data and its trust, if not given.

    Args:
      settings: Settings of the server.
      images: True if its public records are images, from which a student can learn.
    """
    learns = images and not settings.labels_per_record
    student = settings.student or ("cnn" if learns else "none")
    honest = settings.honest
    if settings.summed and not honest:
        honest = settings.quorum or settings.clients
    return replace(settings, student=student, honest=honest)


def join_command(settings: Serve) -> list[str]:
    """Return the words of the command by which a client agrees to a round once.

    HOST, R.npz and the names of the certificates are for the client's owner to replace.

    Args:
      settings: Settings of the server, settled.
    """
    host = "HOST" if settings.host in ("0.0.0.0", "::") else settings.host
    words = [
        "rknn",
        "join",
        "--private",
        "R.npz",
        "--server",
        f"{host}:{settings.port}",
    ]
    words += ["--budget", str(settings.epsilon), "--trust", settings.trust]
    if settings.summed or settings.shuffled:
        words += ["--budget-delta", str(settings.delta)]
    if settings.shuffled:
        words += ["--honest", str(settings.honest)]
    if settings.unit == "client":
        words += ["--unit", "client"]
    if settings.allow_large_epsilon:
        words.append("--allow-large-epsilon")
    if settings.keys is not None:
        folder = settings.make_test_certificates
        names = ("ca.pem", "party0.pem", "party0.key") if folder else CLIENTS_FILES
        ca, certificate, key = (str((folder or Path()) / name) for name in names)
        words += ["--ca", ca, "--certificate", certificate, "--key", key]
    return words


def asked(settings: Serve, simulated: int | None = None) -> "Asked":
    """Return the server's request.

    Args:
      settings: Settings of the server.
      simulated: Seed of simulated noise. Defaults to None, real noise.

    Raises:
      ValueError: If settings are wrong for any data.
    """
    from rknn_jax import representations
    from rknn_jax.federation.request import Asked
    from rknn_jax.records.classes import given_classes
    from rknn_jax.students import fit as students

    classes = given_classes(settings.classes.classes, settings.classes.classes_file)
    if classes is None:
        raise ValueError(
            f"Expected {option('classes')} or {option('classes_file')}, got none; name all classes."
        )
    names = classes.names or tuple(map(str, range(classes.count)))
    if (
        settings.clients < 1
        or not 1 <= (settings.quorum or settings.clients) <= settings.clients
        or not settings.deadline > 0
    ):
        raise ValueError(
            f"Expected 1 <= quorum <= clients and deadline > 0, got {option('quorum')} "
            f"{settings.quorum}, {option('clients')} {settings.clients} and {option('deadline')} "
            f"{settings.deadline}."
        )
    by_client = settings.unit == "client"
    each = 1 if settings.summed else settings.records_per_client  # by unit=record any number
    known = (settings.summed or by_client) and not (settings.collect_only or settings.merge)
    checks = not settings.summed and 0 < settings.check_share < 1
    voting = 1 - settings.check_share if checks else 1.0  # on average, by coins
    most = math.floor(each * settings.clients * voting + 1e-9)
    share = f" with {option('check_share')} {settings.check_share:g}" if checks else ""
    if known and settings.honest > most:
        raise ValueError(
            f"Expected {option('honest')} <= {most}, all that {option('clients')} "
            f"{settings.clients}{share} can send, got {option('honest')} "
            f"{settings.honest}: clients would pay, and nothing could be published."
        )
    if settings.epsilon > LARGE_EPSILON and not settings.allow_large_epsilon and simulated is None:
        raise ValueError(
            f"Expected {option('epsilon')} <= {LARGE_EPSILON:g}, got {option('epsilon')} "
            f"{settings.epsilon:g}, which protects next to nothing; pass "
            f"{option('allow_large_epsilon')} if that is meant, and every client has to pass it "
            "too."
        )
    if settings.accounts is not None and (settings.summed or settings.collect_only):
        raise ValueError(
            f"Expected {option('trust')} local or shuffle without {option('collect_only')}, got "
            f"{option('accounts')} {settings.accounts}; a sum tells of no single "
            "client, and a server that only collects has no results. Leave it out."
        )
    if settings.accounts is not None and not (
        settings.keys or settings.make_test_certificates or settings.merge
    ):
        raise ValueError(
            f"Expected {option('keys')} with {option('accounts')} {settings.accounts}, got none; "
            "without keys a client is another one in each round."
        )
    config = _config(settings)
    student = settings.student or "none"
    if settings.labels_per_record and student != "none":
        raise ValueError(
            f"Expected {option('student')} none with {option('labels_per_record')} "
            f"{settings.labels_per_record}, got {option('student')} {student}; a student learns "
            "one label a record."
        )
    if student != "none":
        # Refuse now what training would refuse after the round.
        students.Config(model=student, epochs=settings.epochs)
    representations.named(settings.representation)  # refuses an unknown name
    return Asked(
        config,
        names,
        settings.queries,
        representation=settings.representation,
        unit=settings.unit,
        records_per_client=settings.records_per_client if by_client and config.clusters else 0,
        honest=settings.honest,
        simulated=simulated,
        clients=settings.clients,
        quorum=settings.quorum or settings.clients,
        deadline=settings.deadline,
        student=student,
        epochs=settings.epochs,
        seed=settings.seed,
        authenticated=settings.keys is not None,
        responsible=settings.responsible,
        labels_per_record=settings.labels_per_record,
        check_share=settings.check_share,
    )


def _config(settings: Serve) -> "SumLabeler[Any]":
    """Return the labeler of a server's settings."""
    from rknn_jax import labelers
    from rknn_jax.labelers import _simulation_only
    from rknn_jax.labelers._sum_labeler import SumLabeler

    _simulation_only.check(settings.labeler)
    labeler = labelers.named(settings.labeler)()
    assert isinstance(labeler, SumLabeler)
    votes = labeler.votes_per_record is not None
    return _voting(settings, labeler) if votes else _summing(settings, labeler)


def _voting(settings: Serve, labeler: "SumLabeler[Any]") -> "SumLabeler[Any]":
    """Return a labeler whose records vote."""
    given: dict[str, Any] = {
        "epsilon": settings.epsilon,
        "delta": settings.delta,
        "num_neighbors": settings.neighbors,
        "mechanism": settings.mechanism or trusts.named(settings.trust).federated,
        "trust": settings.trust,
        "amplification": "general" if settings.amplification == "general" else "variation ratio",
        "metric": settings.metric,
    }
    return replace(labeler, **given)


def _summing(settings: Serve, usual: "SumLabeler[Any]") -> "SumLabeler[Any]":
    """Return a labeler of one sum, and refuse settings that it does not have."""
    given: dict[str, Any] = {"epsilon": settings.epsilon, "delta": settings.delta}
    labeler = replace(usual, **given)
    if settings.trust != labeler.trust:
        raise ValueError(
            f"Expected {option('trust')} {labeler.trust} with {option('labeler')} "
            f"{settings.labeler}, got {option('trust')} {settings.trust}; a sum takes secure "
            f"aggregation. Choose {option('labeler')} {VOTES}, whose records send messages of "
            f"their own, or {option('trust')} central with {option('honest')}."
        )
    for name in OF_VOTES:
        found, usual = (getattr(of, name) for of in (settings, Serve))
        if found != usual:
            flag = option(name)
            raise ValueError(
                f"Expected no {flag} with {option('labeler')} {settings.labeler}, got {flag} "
                f"{found}; it is a setting of {option('labeler')} {VOTES}."
            )
    return labeler
