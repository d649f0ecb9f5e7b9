"""Students: what is trained on the labelled public data.

`fit` is the one training loop; `models` are the networks.
"""
