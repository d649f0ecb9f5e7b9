"""Settings of a client: what its owner agrees to."""

from dataclasses import dataclass, field
from pathlib import Path

from rknn_jax._internal.option_names import option
from rknn_jax._internal.ranges import Count, CountOrNone, Limit, Seconds, Size
from rknn_jax.federation.settings import PORT, Trust
from rknn_jax.privacy.guarantee import Unit
from rknn_jax.settings import Spending


@dataclass(frozen=True)
class Join:
    """Take part in a federation with private records, as far as their ledger and these options allow.

    What is sent is randomized here, on the operating system's entropy, and charged first. Asked the same again, after a crash too, it says the same again and spends nothing. Leaves when the server says that the round is over.

    Attributes:
      private: .npz with `images` uint8 [n, h, w, c] or `embeddings` [n, f], and `labels` [n], negative where there is none; several of a record as a mask of bool [n, classes], or as a column of lists of class numbers. Embeddings and tables may be a folder or a pattern of files.
      server: host:port, or https://host:port.
      dimensions: of the embeddings, for a file of lists; a record with another number casts no vote. Lists without a length by their type need it.
      spending: what may be spent in all; a new ledger needs a budget.
      unit: what a ledger that does not exist yet protects: a record, or all that is in the file.
      most_epsilon: epsilon that one round may cost.
      most_delta: delta that one round may cost.
      allow_large_epsilon: answer a round that costs an epsilon above 50, which protects next to nothing.
      most_cells: cells, queries times classes, that one round may have.
      most_bytes: bytes that one question may have, and one answer.
      most_work: cells times records that one round may have; an answer of the default's size takes some minutes.
      networks: ONNX files that the server's representation may read, by the paths that it names. The default is none. A file that is not listed is never opened.
      trust: shuffle believes the server not to look who sent what, among --honest messages; central believes it to follow the protocol of secure aggregation.
      honest: messages that you believe to follow the protocol, your own counted, for --trust shuffle.
      dishonest: clients of a sum that you believe may not follow it, for --trust central.
      rounds: folder where each round's answer is kept, as it was sent. The default is <private file>.rounds.
      ca: the server's root certificate.
      certificate: certificate by which the server knows this client.
      key: its private key.
      drop: names of columns of a table in --private that are no features, as the server dropped them.
      wait: seconds to try to reach a server that does not answer; inf never gives up.
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
