"""Table 1 of Li et al., and why its accuracies are not quite comparable."""

import math

from . import Published

PUBLISHED = {
    "mnist": (
        Published("general, 40 queries", 0.1, 0.985, 0.991),
        Published("general, 40 queries", 0.04, 0.977, 0.986),
        Published("general, 40 queries", math.inf, None, 0.992),
        Published("end to end, 10 queries", 0.01, 0.975, 0.985),
        Published("end to end, 10 queries", math.inf, None, 0.987),
    ),
    "svhn_cropped": (
        Published("general, 500 queries", 0.1, None, 0.956),
        Published("general, 500 queries", 0.04, None, 0.953),
        Published("general, 500 queries", math.inf, None, 0.967),
    ),
    "cifar10": (
        Published("general, 500 queries", 1.0, 0.771, 0.821),
        Published("general, 500 queries", 0.29, 0.739, 0.794),
        Published("general, 500 queries", math.inf, None, 0.823),
        Published("end to end, 10 queries", 0.01, 0.859, 0.861),
        Published("end to end, 10 queries", 0.005, 0.857, 0.860),
        Published("end to end, 10 queries", math.inf, None, 0.862),
    ),
}

CAVEATS = {
    "mnist": (
        "The paper's test set shares 2,517 of its 5,000 images with its student's training "
        "images and it reports the best epoch; "
        "here the two are disjoint and the last epoch counts."
    ),
    "svhn_cropped": "The paper tests on 1,000 images and reports the best epoch on them; here "
    "the last epoch counts.",
    "cifar10": (
        "The paper tests on 1,000 images, 827 of them from CIFAR-10's training part, and reports "
        "the best epoch on them; "
        "here the last epoch counts."
    ),
}
"""Why the paper's accuracies are not quite comparable."""
