"""Sizes that tests and benchmarks share."""

NEAREST = {  # records, queries, features
    "mnist pixels": (60_000, 40, 784),
    "svhn hog": (604_388, 500, 324),
    "embeddings": (1_000_000, 1_000, 128),
}
NEIGHBORS = {"mnist pixels": (1, 4, 10), "svhn hog": (1, 4, 10), "embeddings": (1, 10)}
DECODE = (1_000_000, 5_000)  # messages, cells
