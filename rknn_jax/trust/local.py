"""Nobody is trusted: each message is private by itself."""

from rknn_jax.trust import TrustModel

MODEL = TrustModel(
    words="every client randomizes its own message and trusts nobody",
    deployment="Local",
    mechanisms="local",
    usual="collision",
    federated="collision",
    server="with nothing: every message is epsilon-private by itself, whoever sees it",
)
