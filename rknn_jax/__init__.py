"""Private knowledge distillation by reverse k-NN labeling.

Reading order: `types` (what flows), `neighbors` and `bsvs` (who votes for what, and the sum),
`mechanisms.base` and `mechanisms.discrete_laplace` (the private step), `labelers.rknn` (the
labels), `privacy.guarantee` (what it cost). Where nobody is trusted: `mechanisms.local` and
`mechanisms.collision`, `privacy.amplification`, `simulate`. What one would pick instead:
`labelers.private_knn` and `labelers.pate`, `screening`, `subsampling`, `privacy.pate`; and with a
network in the place of votes `students.dpsgd`, `labelers.noisy_sgd`, `labelers.dpdfd`,
`queries.near_private`, `dp_pca`. What tries to break them: `privacy.audit`, `games`,
`games_release`, `privacy.one_run`. For tables `tabular`, for other programs `interchange`.
`train/distill.py`, in a checkout, is Algorithm 1 from data to report.
"""

__version__ = "0.1.0"
