"""Settings of a client: what its owner agrees to."""

from dataclasses import dataclass, field
from pathlib import Path

from rknn_jax._internal.option_names import option
from rknn_jax._internal.ranges import Count, CountOrNone, Limit, Seconds, Size
from rknn_jax.federation.settings import PORT, Trust, Unit
from rknn_jax.settings import Spending


@dataclass(frozen=True)
class Join:
    """Take part in a federation with private records, as far as their ledger and these options allow.

    What is sent is charged first, and randomized here with the operating system's entropy. If the client is asked the same again, also after a crash, it sends the same again and spends nothing. It ends when the server says that the round is over.

    Attributes:
      private: .npz with `images` uint8 [n, h, w, c] or `embeddings` [n, f], and `labels` [n], negative if missing. Several labels per record are a bool mask [n, classes] or a column of lists of class numbers. Embeddings and tables may be a folder or a pattern of files.
      server: host:port, or https://host:port.
      dimensions: length of the embeddings, for files that store them as lists of no fixed length. A record of another length casts no vote.
      spending: what may be spent in all; a new ledger needs a budget.
      unit: what a new ledger protects: a record, or everything in the file.
      most_epsilon: largest epsilon that one round may cost.
      most_delta: largest delta that one round may cost.
      allow_large_epsilon: answer a round that costs an epsilon above 50, which protects next to nothing.
      most_cells: largest number of cells, queries times classes, of one round.
      most_bytes: largest size of one question and of one answer, in bytes.
      most_work: largest product of cells and records in one round. An answer at the default limit takes some minutes.
      networks: ONNX files that the server's representation may read, by the paths that it names. A file that is not listed is never opened.
      trust: trust that a round may ask of you. local allows only rounds that trust nobody. shuffle also allows those that trust the server not to look at who sent what, among --honest messages; central those that trust it to follow the protocol of secure aggregation.
      honest: number of messages that you believe to follow the protocol, including your own, for --trust shuffle.
      dishonest: number of clients that you believe may not follow the protocol, for --trust central.
      rounds: folder that keeps each round's answer as it was sent. The default is <private file>.rounds.
      ca: the server's root certificate.
      certificate: certificate that identifies this client to the server.
      key: private key of --certificate.
      drop: columns of a table in --private that are not features, the same as the server dropped.
      wait: seconds to keep trying if the server does not answer; inf never gives up.
      json: end with one line of JSON on stdout.
    """  # noqa: E501

    private: Path
    server: str = f"127.0.0.1:{PORT}"
    dimensions: Count | None = None
    spending: Spending = field(default_factory=Spending)
    unit: Unit = "record"
    most_epsilon: Limit | None = None
    most_delta: Limit | None = None
    allow_large_epsilon: bool = False
    most_cells: Size = 2**20
    most_bytes: Size = 2**28
    most_work: Size = 2**30
    networks: tuple[Path, ...] = ()
    trust: Trust = "local"
    honest: CountOrNone | None = None
    dishonest: CountOrNone = 0
    rounds: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    wait: Seconds = 600.0
    drop: tuple[str, ...] = ()
    json: bool = False

    def beside(self, suffix: str) -> Path:
        """Return a path beside the private file or folder, or beside its target if it is a link.

        Raises:
          ValueError: If the private files are a pattern, beside which nothing can lie.
        """
        if any(sign in str(self.private) for sign in "*?[") and not self.private.exists():
            raise ValueError(
                f"Expected {option('ledger')} and {option('rounds')} with a pattern in "
                f"{option('private')}, got {option('private')} {self.private}; name both, and the "
                "same ones for every round of these records."
            )
        private = self.private.resolve()
        return private.with_name(f"{private.name}.{suffix}")
