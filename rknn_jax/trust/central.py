"""A trusted curator sees what the records say, and adds the noise.

In a federation, clients add it in shares in his place, and a secure sum shows nothing else; see
`aggregate`, the trust model of the guarantee then.
"""

from rknn_jax.trust import TrustModel

MODEL = TrustModel(
    words="a trusted curator sees what the records say, without noise, and adds it",
    deployment="Central",
    mechanisms="central",
    usual="discrete_laplace",
    federated="binomial",
    server="to follow the protocol of secure aggregation, by which it sees nothing but the sum; "
    "one that lies about the clients' keys, or about who is in the sum, sees single clients' "
    "counts with a share of the noise. And {honest} of the clients in the sum must have added "
    "their share, and keep it to themselves",
    has_curator=True,
    one_party=True,
)
