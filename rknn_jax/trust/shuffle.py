"""A trusted shuffler mixes the messages, so that each hides among the others.

`rknn_jax.privacy.amplification` has the proofs.
"""

from rknn_jax.trust import TrustModel

MODEL = TrustModel(
    words="a trusted shuffler hides which client sent which message, among those of all "
    "clients that follow the protocol",
    deployment="Shuffle",
    mechanisms="shuffle",
    usual="collision",
    federated="collision",
    server="not to tell, nor to look, which client sent which message: the server is the "
    "shuffler. If it does, every message is still {epsilon:.4g}-private by itself",
    is_shuffled=True,
)
