"""Phrases of README.md and docs that tell a number: what JSON puts in them, and what nothing does.

test_claims.py compares them with the documents.
"""

import functools
from collections.abc import Callable

from tests import cells, cells_of_rivals
from tests.cells import CIFAR10, COMPONENTS, share

TAIL = "spectral, private long tail"
PATE, KNN = "PATE, Confident-GNMax, 100 queries", "Private-kNN, 100 queries"
TWICE = "twice_the_sensitivity"
OURS, GAUSSIAN = "reverse k-NN, central", "reverse k-NN, central, Gaussian noise"

Phrase = tuple[str, Callable[[], str | tuple[str, ...]]]
MEASURED: dict[str, list[Phrase]] = {
    "docs/claims.md": [
        ("{}% at kr = 4, ε = 0.4", lambda: cells.saved_by_sets("0.4")),
        (
            "{}% of the variance at ε = 0.4, {}% at 1",
            lambda: (cells.saved_by_collision("0.4"), cells.saved_by_collision("1.0")),
        ),
        ("{} to {} times the variance", lambda: cells.ends(cells.separated())),
        (
            "{} times less variance at $\\varepsilon = 0.4$, and {} times at 4",
            lambda: tuple(f"{cells.gain_of_collision(one):.1f}" for one in ("0.4", "4.0")),
        ),
        ("is {}% better at 0.4", lambda: cells.saved_by_sets("0.4")),
        (
            "Concatenation finds the label of {}% of the queries",
            lambda: share(cells.appendix(8.0), 0),
        ),
        (
            "a linear head reaches {}%",
            cells.head_in_compare,
        ),
        (
            "PLD gives {}, {} and {}.",
            lambda: tuple(f"{one['PLD']:.3g}" for one in cells.load("accountants")["stated"][:3]),
        ),
        ("is {} to {}% larger", lambda: cells.ends(cells_of_rivals.replaced())),
        (
            "{}% to {}% at $\\varepsilon = 1$ and {}% at 10",
            lambda: (
                cells_of_rivals.dpdfd("Table 4", "teachers on disjoint parts, epsilon 1"),
                cells_of_rivals.dpdfd("Table 5", "epsilon 1, gamma 5"),
                cells_of_rivals.dpdfd("Table 4", "teachers on disjoint parts, epsilon 10"),
            ),
        ),
    ],
    "docs/choosing.md": [
        (
            "{} points more than 100",
            lambda: share(
                cells.labels("pixels", 300, 0.1, "spread")
                - cells.labels("pixels", 100, 0.1, "spread")
            ),
        ),
        ("clusters give {}%", lambda: share(cells.labels("self_trained", 10, 0.01), 2)),
        ("({}% on images on which", lambda: cells.goal("central", 0.1)),
        ("one hundred give {}%", lambda: share(cells.labels("self_trained", 100, 0.01), 2)),
        ("gained up to {} points", lambda: cells.at_most(cells.rounds()[-1])),
        ("lost up to {} points", lambda: cells.at_most(-cells.rounds()[0])),
        (
            "{} points above `rknn` on CIFAR-10 with 40,000 records at ε = 1, {} at ε = 5",
            lambda: tuple(cells.above(CIFAR10, 40_000, one, "least squares") for one in (1, 5)),
        ),
        (
            "{} points above `rknn` on made clusters at ε = 1",
            lambda: cells.with_delta("prototypes", 1, "clusters"),
        ),
    ],
    "docs/baselines.md": [
        ("costs {} to {}% more than removing one", lambda: cells.ends(cells_of_rivals.replaced())),
        ("a little in `hog`: {}%.", lambda: cells.writer_seen("hog")),
        (
            "[{}%](baselines_training.md",
            lambda: cells_of_rivals.noisy_sgd(
                "the same with σ = 1.3, C = 1.5, batches of 256", 0.865
            ),
        ),
        (
            "[{}%, {}%](#beside-private-knn-and-pate)",
            lambda: tuple(share(row["test_accuracy"]["mean"]) for row in cells.load("papers")[:2]),
        ),
        (
            "[{}% without noise]",
            lambda: cells_of_rivals.dpdfd("No noise", "one convolutional teacher, 600 steps"),
        ),
        (
            "with noise {}% to {}% at ε = 1 and {}% at 10",
            lambda: (
                cells_of_rivals.dpdfd("Table 4", "teachers on disjoint parts, epsilon 1", 0),
                cells_of_rivals.dpdfd("Table 5", "epsilon 1, gamma 5", 0),
                cells_of_rivals.dpdfd("Table 4", "teachers on disjoint parts, epsilon 10", 0),
            ),
        ),
    ],
    "docs/baselines_settings.md": [
        (
            "{} points below the best of the grid in the mean of these {} cells, and {} in the "
            "worst: {} in the mean at ε = 0.05, and {} or less from ε = 1 on",
            cells_of_rivals.settings_lost,
        ),
        ("is {} below in the mean and {} in the worst", cells_of_rivals.constant_settings_lost),
        ("that of this table starts at {}%", cells_of_rivals.network_to_buy_for),
        (
            "teaches it to {}% in 600 steps",
            lambda: cells_of_rivals.dpdfd("No noise", "one convolutional teacher, 600 steps"),
        ),
    ],
    "docs/baselines_training.md": [
        (
            "would cost {} to {} times as much",
            lambda: cells.ends(cells_of_rivals.relations("twice_the_sensitivity")),
        ),
        ("are within {} points of those of reverse k-NN", cells.head_beside_rknn),
    ],
    "docs/performance.md": [
        ("at most {} s more than the next ones", cells_of_rivals.compiled_in),
        (
            "clustering takes {} times as long, and the neighbor graph {} times",
            lambda: (
                cells_of_rivals.growth("clustering_seconds"),
                cells_of_rivals.growth("graph_seconds"),
            ),
        ),
    ],
    "docs/performance_systems.md": [
        (
            "of the {} ms of 60,000 rows of 784 features at k = 4, {} ms",
            cells_of_rivals.assigned_on_a_gpu,
        ),
        (
            "takes {} images a second on the H200. SimCLR with ResNet-18 makes {} steps of 512 "
            "images a second there, and {} on an H100. Students of 32 × 32 images take {} to {} "
            "images a second",
            cells_of_rivals.trained_on_a_gpu,
        ),
        ("at 5,000 cells the kernel reaches {}% of that", cells_of_rivals.reached_by_decoding),
    ],
    "docs/choosing_privacy.md": [
        *(
            (
                f"| {epsilon} | {{}} in 1,000 | {{}}% | {{}}% |",
                functools.partial(cells.beliefs, epsilon),
            )
            for epsilon in (0.1, 0.5, 1, 2, 4)
        ),
        (
            "{} to {}% more variance than the best",
            lambda: cells.ends(100 * one for one in cells.above_the_best("collision")),
        ),
        (
            "randomizes its own votes | {};",
            lambda: cells.least_epsilon("local", 0.981),
        ),
        (
            "gained {} points of the labels at ε = 2 and {} at 0.5, less than the spread of "
            "splits. Three rounds lost {} points at 0.5",
            cells.digits_rounds,
        ),
        ("adds the noise | {},", lambda: cells.least_epsilon("central", 0.981)),
    ],
    "docs/embedding.md": [
        (
            "{}% right from 1,000 private images at ε = 1, and {}% from 40,000",
            lambda: tuple(share(cells.rival(CIFAR10, n, 1, "rknn"), 0) for n in (1000, 40_000)),
        ),
    ],
    "docs/federation.md": [
        ("{} to {}% of these labels were right in {} such rounds", cells.of_the_first_round),
    ],
    "docs/label.md": [
        ("{}% of the labels are correct", lambda: cells.writers(GAUSSIAN, 0.1)),
        (
            "where noisy SGD reaches {}%",
            lambda: cells.writers("noisy SGD, linear head", 0.1),
        ),
    ],
    "docs/method/local.md": [
        (
            "{} times that of plain `collision` at $\\varepsilon = 8$, and {} times at",
            lambda: (f"{cells.separated()[-1]:.1f}", f"{cells.separated()[0]:.0f}"),
        ),
    ],
    "docs/method/networks.md": [
        ("{} to {} times as much as", lambda: cells.ends(cells_of_rivals.relations(TWICE))),
    ],
    "docs/method/sampling.md": [
        ("costs {} to {}% more", lambda: cells.ends(cells_of_rivals.replaced())),
    ],
    "docs/reproducing.md": [
        ("labels {}% ± {}, student {}% ± {}", cells.preset),
        ("({}% on test images)", cells.three_students),
        ("at ε = 1: labels {}%, student {}%, in one run", cells.cifar10_default),
    ],
    "docs/tutorial.md": [
        ("In {} such releases, {}% to {}% of the labels were right", cells.of_the_tutorial),
        (
            "of these releases, it reached {}% to {}%. With the true labels of the public "
            "records, it reaches {}%",
            cells.classifier_of_the_tutorial,
        ),
    ],
    "docs/results/choice.md": [
        ("ten clusters are {}% pure", lambda: share(cells.purity("MNIST, spectral"), 0)),
        (
            "points below in {} of {} cells. Five have n·ε/|Y| of at most 20, where noise decides "
            "for all four (the worst is {} points, at ε = 0.01). The others are {} points, on "
            "breast cancer that is not scaled at ε = 0.5, and {}, on the made clusters",
            cells.behind,
        ),
        (
            "`least_squares` is {} points above it on CIFAR-10 at ε = 5, and `prototypes` {} there",
            lambda: tuple(
                cells.with_delta(one, 5, "CIFAR-10") for one in ("least_squares", "prototypes")
            ),
        ),
        ("gains {} to {} points.", cells.gains),
    ],
    "docs/results/labels.md": [
        (
            "`one_to_one` has {}% right at ε = 0.1, where `decoded` has {}%. From ε = 0.5 on all "
            "are alike, at {}% to {}%.",
            cells.three_queries,
        ),
        ("no method has more than {}% of that class right", cells.rare_class_found),
        (
            "has up to {} points more with 40 queries, and `assignment` {} with 10.",
            lambda: (
                cells.lead(f"{TAIL}, 40 queries", "permute_and_flip"),
                cells.lead(TAIL, "assignment"),
            ),
        ),
        (
            "digits in two classes**: up to {} points",
            lambda: cells.lead("wine, 3 queries", "permute_and_flip"),
        ),
        ("below `one class` in {} of the {} data sets", cells.hopeless),
        (
            "One digit at 1% has {}% right",
            lambda: share(cells.decoded("MNIST, one digit at 1%", 0.01)["right"]),
        ),
        (
            "on {} and {} of {} pairs",
            lambda: (
                *cells.told_well("stability_error", 0.03)[:1],
                *cells.told_well("expected_error", 0.05),
            ),
        ),
        (
            "{} and {} points at ε = 0.1",
            lambda: tuple(
                share(-cells.decoded("digits", 0.1)[name], 0)
                for name in ("stability_error", "expected_error")
            ),
        ),
        (
            "Mixtures add {} points on average",
            lambda: cells.added_by_mixtures("pairs of clouds"),
        ),
        ("and {} points worse at 0.5 without", cells.worse_in_300_dimensions),
        (
            "gain up to {} points on images of digits at small n·ε, and lose up to {} on text",
            lambda: tuple(f"{abs(one):.0f}" for one in (cells.spaces()[-1], cells.spaces()[0])),
        ),
    ],
    "docs/results/methods.md": [
        (
            "have {}% ± {} of these labels right, and a hundred have {}% ± {}.",
            lambda: cells.by_hand_in_compare(10) + cells.by_hand_in_compare(100),
        ),
        ("first in {} of the {} rows", cells.rows_won),
        (
            "{}% of MNIST's labels from 1,000 records at ε = 1, where the next has {}%",
            lambda: (
                share(cells.rival(COMPONENTS, 1000, 1, "rknn"), 0),
                share(cells.second(COMPONENTS, 1000, 1), 0),
            ),
        ),
        (
            "by {} points on CIFAR-10 with 40,000 records at ε = 1",
            lambda: cells.above(CIFAR10, 40_000, 1, "least squares"),
        ),
        (
            "class means are {} points above it",
            lambda: cells.above(COMPONENTS, 1000, 0.01, "class means"),
        ),
        ("on `spectral`, are below {} points", cells.behind_on_spectral),
    ],
    "docs/results/papers.md": [
        (
            "the arg max alone {} to {} points on `spectral`",
            lambda: cells.ends(cells.balanced(public=True), 1),
        ),
        (
            "Everything else gained {} points at most, or lost up to {}.",
            lambda: (
                f"{cells.balanced(public=False)[-1]:.1f}",
                f"{-cells.balanced(public=False)[0]:.0f}",
            ),
        ),
        (
            "finds the label of {}% of the queries at most",
            lambda: share(cells.concatenated(), 0),
        ),
        ("{}% in three splits of [the training", lambda: cells.of_writers("labelers")),
        ("(people.md#between-real-parties) have {}%", lambda: cells.of_writers("mnist")),
        ("SCAN's took {} minutes", cells.minutes_of_scan),
        ("{}% of the labels, where the paper's has 97.5%", lambda: cells.papers_row("DTI")),
        (
            "M5 learns {}% from them, and {}% from the labels of `spectral`, where the paper has "
            "98.5%",
            lambda: tuple(cells.papers_row(name, "test_accuracy") for name in ("DTI", "M5")),
        ),
        ("public features give {}% of the test images", cells.cifar10_neighbors),
        ("{}% of the labels are right at ε = 1", lambda: cells.cifar10("label_accuracy")),
        ("names {}% of 1,000 test images", lambda: cells.cifar10("test_accuracy")),
        (
            "after its first epoch, at {}%",
            lambda: cells.cifar10("test_accuracy_after_first_epoch"),
        ),
        ("the default at ε = 0.01, label {}%", lambda: cells.table1("reverse k-NN, default", 0.01)),
    ],
    "docs/results/people.md": [
        ("{}% of the labels are right at ε = 0.1", lambda: cells.writers(GAUSSIAN, 0.1)),
        ("its worst split {}%", lambda: cells.writers(GAUSSIAN, 0.1, "worst")),
        ("noisy SGD has {}%.", lambda: cells.writers("noisy SGD, linear head", 0.1)),
        (
            "At ε = 0.2 they have {}% and {}%",
            lambda: tuple(cells.writers(one, 0.2) for one in (GAUSSIAN, "noisy SGD, linear head")),
        ),
        ("reverse k-NN labeling has {}% at ε = 0.2", lambda: cells.writers(OURS, 0.2)),
        (
            "Private-kNN and PATE have {}% and {}% at ε = 1",
            lambda: tuple(cells.writers(one, 1.0) for one in (KNN, PATE)),
        ),
        (
            "ten labels by hand give {}%",
            lambda: cells.writers("no private record: 10 labels by hand", 0),
        ),
    ],
    "docs/results.md": [
        ("clusters have [{}%](", lambda: cells.goal("central", 0.1)),
        (
            "[{}%](results/papers.md#representations-and-what-public-data-add-for-free) in five "
            "splits, and {}% in the three",
            lambda: (share(cells.labels("self_trained", 10, 0.1)), cells.preset_labels()),
        ),
    ],
    "docs/results/sites.md": [
        ("HOG adds {} to {} points where", cells.added_by_features),
        ("more than {} points, and {} together with HOG", cells.added_by_copies),
        (
            "and {}% is nearly all",
            lambda: f"{cells.site('three classes missing', '1'):.0f}",
        ),
        (
            "up to {} points on average** ({} in the worst split), and adds {} at best",
            cells.second_round_at_sites,
        ),
        (
            "**Checking costs up to {} points on average",
            lambda: f"{-cells.sites('records that check')[0]:.0f}",
        ),
    ],
}
"""Phrases of a document, with what JSON puts in the places of their numbers."""

ELSEWHERE = {
    "docs/claims.md": [
        "0.4%, and 2% by rounding down",  # a formula: tests/test_local.py
        "4 to 6 times",  # two bounds: tests/test_amplification.py
        "99.1% on MNIST",  # the paper's
        "2,517 of 5,000",  # tests/test_data.py
        "2,517 of these 5,000",
        "or 4 times too large",  # the row's own numbers
        "δ 4% below",  # docs/amplification.md
        "at 17% less $\\varepsilon$",  # a closed form: tests/test_mechanisms.py
        "0.0489 of 0.05",  # a formula
        "81.2% on MNIST",  # the paper's
        "the paper has 95.1% and 97.5%",
    ],
    "docs/choosing.md": [
        "flips 1% of the labels",  # settings
        "100%, 90% or 70% of the records",
        "more than 5 points",
        "the median query, with p = 90%",
        "less than 80% of the labels",
    ],
    "docs/baselines.md": [
        "98.8% for Private-kNN and 98.5% for PATE",  # papers
        "2,000 queries at 96.0%",
        "MNIST: 95.0%",
        "from scratch: 81.4%",
        "MNIST: 98.8%, 98.5%",
        "MNIST: 95.1% and 97.5%",
        "a sample of 10%",  # a setting
    ],
    "docs/baselines_settings.md": [
        "networks start at 97.0% and 97.5%",  # papers
        "The paper has 95.1% and 97.5%",
    ],
    "docs/baselines_training.md": ["paper has 81.2%", "95.0% and ε = 1.19 are printed"],
    "docs/performance_systems.md": ["The goal of 30%"],
    "docs/audit.md": ["15 of 20 runs have many"],  # an example
    "docs/choosing_privacy.md": [
        "before: 1 in 1,000 | before: 10% | before: 50%",  # settings
        "98.1% of MNIST's labels right |",
        "cost up to 2%",  # a closed form: tests/test_local.py
        "17% less ε",  # a closed form: tests/test_mechanisms.py
        "within 11% of a curator's",  # tests/test_multi_message.py
    ],
    "docs/columns.md": ["longer than 64 MiB"],  # bounds of the code, here and below
    "docs/scale.md": ["not UTF-8, or 64 MiB"],
    "docs/confidence.md": ["100 times"],
    "docs/embedding.md": [
        "over 1% of their pixels",
        "at least 98% of the pixels",
        "at least 90% of",
    ],
    "docs/extending.md": ["√2 times"],
    "docs/faults.md": ["more than 5 seconds", "1 GiB of memory", "more than 20%"],
    "docs/federation.md": ["(256 MiB)"],
    "docs/federation_questions.md": ["95% intervals"],
    "docs/federation_server.md": ["1 GiB for all", "64 MB of the disk"],
    "docs/glossary.md": ["95% interval"],
    "docs/label.md": ["below 95%", "saves 17% of ε", "at most 10.5% of the records"],
    "docs/label_sets.md": ["r + 1 times", "r times the noise"],
    "docs/method/central.md": ["17% less"],  # a closed form: tests/test_mechanisms.py
    "docs/method/checks.md": [
        "a probability of 2.5%",  # settings
        "3 points, but at most 5% of the records",
        "above 10 points",
        "if 3% of the records",
        "15 points to either side",
    ],
    "docs/method/composition.md": ["with 8% more noise"],  # formulas, here and below
    "docs/method/local.md": ["within 0.4%", "up to 2%"],
    "docs/method/sampling.md": [
        "changed 170 of the 300",  # tests/test_subsampling.py
        "plus 0.1% for the error",
    ],
    "docs/method/shuffle.md": ["31% less"],  # the row's own numbers
    "docs/recipes.md": ["more than 40% of the rare rows"],
    "docs/results/choice.md": ["more than 3 points below", "never being 3 points below"],
    "docs/results/labels.md": [
        "One class at 1%",  # settings
        "at least 5 points more labels are expected",
    ],
    "docs/sharp_edges.md": ["A class of 2% of"],
    "docs/testing.md": ["takes 40 ms at least"],
    "docs/tutorial.md": ["100%, 90% or 70%", "in 5% of runs"],  # of the dry run on the page
    "docs/results/papers.md": [
        "3% of the private digits",  # a setting
        "the paper's has 97.5%",  # papers
        "Li et al. print 77.1% of the labels",
        "Li et al. print 77.1% and 82.1%",
    ],
}
"""Phrases whose numbers no benchmark of this repository measures."""
