"""Students: models trained on the labeled public data.

Each file whose `Config` is a `base.StudentSettings` registers one kind of training: its settings
are a value that trains, `Config(...).fit(key, public_images, labels)`. `fit` is the training loop,
and `models` holds the networks. `tests/contracts/test_students.py` checks every kind.
"""
