"""Clients add the noise in shares, and a server sees the sum alone: the guarantee of a secure sum.

No labeler chooses it: clients take the place of a curator, with trust=central, in a federation
(`rknn_jax.federation.secure_sum`).
"""

from rknn_jax.trust import TrustModel

MODEL = TrustModel(
    words="clients add the noise in shares, and a server that follows the protocol of secure "
    "aggregation sees their sum alone",
    deployment="Federated",
    has_curator=True,
)
