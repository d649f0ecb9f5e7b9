"""Students: models trained on the labeled public data.

`fit` is the training loop; `models` holds the networks.
"""
