"""Documents cannot rot: code is run, commands are parsed by the real parsers, links are followed,
and the API leaves no module out.

Of README.md, docs/label.md, tutorial.md, tutorial_images.md, tutorial_text.md, recipes.md,
choosing.md, label_sets.md, export.md, extending.md and scale.md every block of Python and bash is
**run**, in order, in one folder a document:

    python                         in one namespace a document; a block with a title is written
                                   to that file of the package instead; one that imports a
                                   package of `OTHERS` that is not installed is compiled
    rknn                           in this process, by `rknn_jax.cli.main`, but for `serve` and
                                   `join`; `audit` with `AUDIT_RUNS` runs
    python -m train.parties        in this process, and benchmarks.patch_encoder
    python -m train.distill        in this process, of the data set that extending.md adds, and
                                   in `make test-all` the demo of experiments.md
    DIR                            is a folder of scikit-learn's digits in MNIST's format
    P.npz, R.npz                   are embeddings of scikit-learn's digits, if no block makes them

and these are **parsed** only, by their own parsers, as they would take minutes or wait for
somebody: `rknn serve` and `join` (run by tests/test_federation_processes.py; they run side by
side here where all but the last end with &), `rknn audit
--labeler`, `--release` and `--ledger` and `train.audit` (run by tests/test_audit_commands.py), all
other `train.distill` (run by tests/test_distill*.py in many forms), `train.attributes` and
`train.sweep`. `make`, `pytest` and `python -m benchmarks.*`
are looked up. Anything else fails. A command ends with exit status 0, or with the one that its
comment names: `# exit status 3`.

Of all other documents commands are parsed or looked up, and Python is compiled.
"""

import ast
import contextlib
import dataclasses
import importlib
import importlib.util
import io
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
import pytest
import tyro
from sklearn.datasets import load_digits

import rknn_jax
import train
from benchmarks import patch_encoder
from rknn_jax import data, formats, labelers, mechanisms, queries, representations, trust
from rknn_jax._internal import compilation
from rknn_jax.cli import main as cli
from rknn_jax.data import _idx
from rknn_jax.federation.settings import Serve, asked
from rknn_jax.release import registry
from rknn_jax.settings import by_option
from tests import tiny
from tests.conftest import modules
from tests.contracts import (
    test_data,
    test_formats,
    test_labelers,
    test_local,
    test_mechanisms,
    test_queries,
    test_representations,
    test_trust,
)
from tests.options import named_settings
from tests.test_federation_http import free_port, side_by_side
from train import attributes, audit, commandline, distill, experiment, parties, presets, sweep
from train.compare import plan
from train.compare.plan import Config as Comparison

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r'^(?P<indent> *)```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^ *```$',
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"\]\(([^)\s]+)\)|<img [^>]*src=\"([^\"]+)\"")
AUDIT_RUNS = "100"
"""Of each input; the 20,000 of README.md take a minute, and tests/test_audit.py says what they
find.
"""

LONG_AUDITS = {"--labeler", "--release", "--ledger"}
"""Options of `rknn audit` with which it is parsed only; tests/test_audit_commands.py runs all."""

OTHERS = {"torch", "cleanlab"}
"""Packages that a page may use and that no extra of ours installs."""

REQUIRED = {
    "label": "--public P.npz --private R.npz --epsilon 1",
    "serve": "--public P.npz --epsilon 1 --classes 2 --clients 3 --out O",
    "join": "--private R.npz",
}
"""Options in the place of `...` in a command."""

each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)


class Block(NamedTuple):
    line: int
    language: str
    title: str | None
    text: str


class Command(NamedTuple):
    words: list[str]
    status: int
    line: str


def blocks(document: Path) -> list[Block]:
    text = document.read_text()
    return [
        Block(
            text[: found.start()].count("\n") + 2,
            found["language"],
            found["title"],
            textwrap.dedent(found["text"]),
        )
        for found in BLOCK.finditer(text)
    ]


def commands(block: Block) -> list[Command]:
    """Split a block of bash into commands, without the variables in front of them."""
    made = []
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        if words:
            status = re.search(r"#.*exit status (\d+)", line)
            made.append(Command(words, int(status[1]) if status else 0, line))
    return made


def test_every_kind_of_block_is_known():
    for document in DOCUMENTS:
        kinds = {block.language for block in blocks(document)}
        assert kinds <= {"python", "bash", "text", "json", "mermaid", "bibtex"}, (
            f"{document}: a block without a language, or of another"
        )
        fences = re.findall(r"^ *```", document.read_text(), re.MULTILINE)
        assert len(fences) == 2 * len(blocks(document)), (
            f"{document}: a block that does not end, or begins in a way not known here"
        )


# ---- commands that are parsed


def parse_rknn(arguments: list[str]) -> None:
    if "..." in arguments:
        place = arguments.index("...")
        arguments = arguments[:place] + shlex.split(REQUIRED[arguments[0]]) + arguments[place + 1 :]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.setattr(cli, "_run", lambda action: {})
        assert cli.main(arguments) == 0


def parse_sweep(arguments: list[str]) -> None:
    def every_value(others, out, varied):
        assert varied, "nothing is varied"
        for name, values in varied.items():
            for value in values:
                commandline.parsed([*others, f"--{name.replace('_', '-')}", value])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "main", every_value)
        patch.setattr(compilation, "keep", lambda: None)
        patch.setattr(sys, "argv", ["sweep", *[word for word in arguments if word != "..."]])
        assert sweep.cli() == 0


def look_up(module: str, arguments: list[str]) -> None:
    """A program without a parser of its own to call: it is there, and its source knows every
    option and word.
    """
    found = importlib.util.find_spec(module)
    assert found, f"there is no {module}"
    source = Path(found.origin).read_text()
    for word in arguments:
        assert word.lstrip("-").replace("-", "_") in source or word in source, (
            f"{module} knows no {word}"
        )


PARSERS = {
    "train.audit": audit.parsed,
    "train.distill": commandline.parsed,
    "train.sweep": parse_sweep,
    "train.compare": lambda arguments: tyro.cli(Comparison, args=arguments),
    "train.attributes": lambda arguments: tyro.cli(attributes.Attributes, args=arguments),
    "train.parties": lambda arguments: tyro.cli(parties.Parties, args=arguments),
}


def parse(command: Command) -> bool:
    """Parse a command or look it up; returns False where it is none of ours."""
    program, *arguments = command.words
    arguments = [word for word in arguments if word != "&"]
    if Path(program).name == "rknn" and arguments[0] == "experiment":
        PARSERS[f"train.{arguments[1]}"](arguments[2:])
    elif Path(program).name == "rknn":
        parse_rknn(arguments)
    elif Path(program).name.startswith("python") and arguments[:2] == ["-m", "pytest"]:
        assert all(
            (ROOT / word.split("::")[0]).exists()
            for word in arguments[2:]
            if not word.startswith("-")
        )
    elif (
        Path(program).name.startswith("python")
        and arguments[:1] == ["-m"]
        and arguments[1].split(".")[0] in ("train", "benchmarks")
    ):
        PARSERS.get(arguments[1], lambda others: look_up(arguments[1], others))(arguments[2:])
    elif program == "make":
        assert all(
            re.search(rf"^{word}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
            for word in arguments
        ), "no such target"
    else:
        return False
    return True


def options() -> set[str]:
    """Every option that some program of ours has."""
    found = {"--help"}

    def of(kind: type, prefix: str = "--") -> None:
        found.update(prefix + name.replace("_", "-") for name in by_option(kind))
        for field in dataclasses.fields(kind):
            name = prefix + field.name.replace("_", "-")
            found.add(name)
            if dataclasses.is_dataclass(field.default_factory):
                of(field.default_factory, f"{name}.")

    for name in public_modules(rknn_jax) + public_modules(train):
        if name.startswith(("rknn_jax.cli", "train.")):
            for kind in vars(importlib.import_module(name)).values():
                if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                    of(kind)
    for field, room in commandline.ROOMS.items():
        for name in room.names():
            of(room.named(name), f"--{field}.")
    for source in [*(ROOT / "train").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]:
        found |= set(re.findall(r"[\"'](--[a-z][\w-]*)", source.read_text()))
    return found


def test_every_option_that_is_named_in_a_text_exists():
    known = options()
    for document in DOCUMENTS:
        for span in re.findall(r"`(--[^`]+)`", BLOCK.sub("", document.read_text())):
            for option in re.findall(r"--[a-z][\w.-]*", span):
                assert option in known, f"{document.name}: `{span}`"


# ---- documents that are run


def audited(arguments: list[str]) -> list[str]:
    """Return the words of `rknn audit`, with fewer runs."""
    assert "--runs" in arguments, "the usual 200,000 runs take minutes"
    place = arguments.index("--runs") + 1
    return [*arguments[:place], AUDIT_RUNS, *arguments[place + 1 :]]


def distilled(given: experiment.Experiment) -> None:
    """Run an experiment, the student for one epoch."""
    out = given.out or Path("runs/distilled")
    student = given.student
    if student is not None:
        short = dataclasses.replace(student.student, epochs=1)
        student = dataclasses.replace(student, student=short)
    result = distill.run(dataclasses.replace(given, out=out, student=student))
    assert result["epsilon"] <= given.epsilon * (1 + 1e-9)
    assert result["label_accuracy"] > 0.7, "of ten classes, or two, at epsilon = 1"
    assert (out / "report.html").exists()


def federated(together: list[Command]) -> None:
    """Run a server and its clients side by side, on a free port."""
    port = str(free_port())
    place = {"serve": ["--port", port], "join": ["--server", f"127.0.0.1:{port}"]}
    words = [[word for word in command.words[1:] if word != "&"] for command in together]
    side_by_side([[*each, *place[each[0]]] for each in words])


def sides(every: list[Command]) -> Iterator[list[Command]]:
    """Yield commands that run together: those after one that ends with &, and all others alone."""
    together: list[Command] = []
    for command in every:
        together.append(command)
        if command.words[-1] != "&":
            yield together
            together = []
    assert not together, "the last command of a block waits for the others"


def run_all(together: list[Command]) -> None:
    """Run commands that run together."""
    programs = [command.words[:2] for command in together]
    if len(together) > 1 and all(
        words in (["rknn", "serve"], ["rknn", "join"]) for words in programs
    ):
        federated(together)
        return
    for command in together:
        run(command)


def run(command: Command) -> None:
    """Run a command of the current folder, or parse it where it is known to take long; see
    above.
    """
    program, *arguments = command.words
    if (
        Path(program).name == "rknn"
        and arguments[0] not in ("serve", "join", "experiment")
        and not (arguments[0] == "audit" and LONG_AUDITS & set(arguments))
    ):
        assert (
            cli.main(audited(arguments) if arguments[0] == "audit" else arguments) == command.status
        )
    elif arguments[:2] == ["-m", "train.parties"]:
        parties.main(tyro.cli(parties.Parties, args=arguments[2:]))
    elif arguments[:2] == ["-m", "benchmarks.patch_encoder"]:
        patch_encoder.main(arguments[2:])
    elif arguments[:2] == ["-m", "train.distill"] and {"bars", "random_directions"} & set(
        arguments
    ):
        distilled(commandline.parsed(arguments[2:]))
    else:
        assert parse(command), "neither run nor parsed: see the words at the top of this file"


def write_mnist(folder: Path) -> None:
    """Write scikit-learn's digits as MNIST's four files: 600 to train with and 200 to test."""
    digits = load_digits()
    images = (digits.images * 15.9).astype(np.uint8)
    folder.mkdir()
    for part, chosen in (("train", slice(0, 600)), ("t10k", slice(600, 800))):
        _idx.write(folder / f"{part}-images-idx3-ubyte", images[chosen])
        _idx.write(folder / f"{part}-labels-idx1-ubyte", digits.target[chosen].astype(np.uint8))


def write_tables(folder: Path) -> None:
    """Write pixels of scikit-learn's digits as P.npz, 200 public ones, and R.npz, 1,000 private."""
    digits = load_digits()
    np.savez(folder / "P.npz", embeddings=digits.data[:200])
    np.savez(folder / "R.npz", embeddings=digits.data[200:1200], labels=digits.target[200:1200])


def install(patch: pytest.MonkeyPatch, folder: Path, block: Block) -> None:
    """Write a file where the package finds it, as if it lay in the folder that its title names."""
    path = folder / block.title
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text)
    package = importlib.import_module(block.title.rsplit("/", 1)[0].replace("/", "."))
    if str(path.parent) not in package.__path__:
        patch.setattr(package, "__path__", [*package.__path__, str(path.parent)])
    patch.setattr(package, path.stem, None, raising=False)  # an import sets it, and is undone
    patch.delattr(package, path.stem)


def test_the_files_of_extending_are_linted_and_short(tmp_path):
    """A mechanism has at most 60 lines of code; docstrings and empty lines are not counted."""
    files = [block for block in blocks(ROOT / "docs/extending.md") if block.title]
    assert len(files) == 8
    for block in files:
        path = tmp_path / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
    ruff = [sys.executable, "-m", "ruff"]
    settings = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", str(tmp_path)]
    # Without the package around them, imports of the package look like those of others.
    for words in (["check", "--ignore", "I,INP"], ["format", "--check"]):
        done = subprocess.run([*ruff, *words, *settings], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    for mechanism in [block.text for block in files if "/mechanisms/" in block.title]:
        text = {
            line
            for node in ast.walk(ast.parse(mechanism))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            for line in range(node.lineno, node.end_lineno + 1)
        }
        lines = enumerate(mechanism.splitlines(), 1)
        assert sum(bool(line) and number not in text for number, line in lines) <= 60


def needs_another_package(block: Block) -> bool:
    """Return whether a block imports one of `OTHERS` that is not installed."""
    imported = set(re.findall(r"^(?:import|from) (\w+)", block.text, re.MULTILINE))
    return any(importlib.util.find_spec(name) is None for name in imported & OTHERS)


def readme(told) -> None:
    assert len((ROOT / "README.md").read_text()) <= 7_000, "a stranger reads no more"
    [folder] = Path("runs").glob("*-label-*")
    with np.load(folder / "labels.npz") as rows:
        assert np.mean(rows["label"] == told.namespace["digits"][:500]) > 0.7


def label_page(told) -> None:
    answers = told.namespace["answers"]
    task = told.namespace["task"]
    assert (
        np.mean(answers.labels[told.namespace["queries"].cluster] == task.public.true_labels) > 0.7
    )
    assert len(np.load("runs/parties/party0.npz")["labels"]) == 200


def tutorial(told) -> None:
    assert (
        np.mean(told.namespace["labels"] == told.namespace["digits"][told.namespace["public"]])
        > 0.8
    )
    assert told.namespace["accuracy"] > 0.8
    assert told.namespace["card"]["ledger"]["spent"] == {"epsilon": 0.5, "delta": 0.0}
    assert not Path("more").exists(), "a refused release leaves nothing"


def own_records(told) -> None:
    """Check labels of the reader's own images or texts: above 60%, at a chance of 10% and 26%."""
    assert told.namespace["right"] > 0.6
    assert told.namespace["student"] > 0.6
    card = json.loads(Path("labels/privacy.json").read_text())
    model = json.loads(Path("public.card.json").read_text())["model"]
    assert card["model"]["sha256"] == model["sha256"]
    assert card["ledger"]["spent"] == {"epsilon": 1.0, "delta": 0.0}


def recipes(told) -> None:
    """Check the learners of ten classes, and a rare class whose rows come first."""
    made = told.namespace
    learners = [made["soft"].score(made["X_test"], made["digits"][made["test"]])]
    learners += [made[name] for name in ("flax_right", "student_right", "pipeline_right")]
    assert min(learners) > 0.6, learners
    assert made["auc"] > 0.75
    assert made["found"] > 0.4
    with np.load("visits/labels.npz") as rows:
        wanted = made["visits"]["labels"].to_numpy()[:300]
        assert np.mean(rows["label"] == wanted) > 0.8
    assert Path("pictures.parquet").exists()


def images_of_folders(told) -> None:
    """Check the ranges of the page with some room: 94% to 97%, 96% to 98%, and 98%."""
    own_records(told)
    assert told.namespace["right"] > 0.9
    assert told.namespace["student"] > 0.92
    assert told.namespace["ceiling"] > 0.96


def scale(told) -> None:
    assert told.namespace["done"].card["num_records"] == 1_000
    assert told.namespace["done"].card["ledger"]["spent"] == {"epsilon": 1.0, "delta": 0.0}
    assert Path("labels/privacy.json").exists()


def choosing(told) -> None:
    """Python draws nothing here, so it prints the numbers of the page."""
    page = [block for block in blocks(ROOT / told.document) if block.language in ("python", "text")]
    shown = {block.text for block in page if block.language == "text"}
    assert sum(text in shown for text in told.printed) == 2


def sets_of_classes(_: dict) -> None:
    """Check that each photo gets the tags of its kind."""
    with np.load("sets/labels.npz") as rows:
        wanted = np.array([[1, 1, 0], [0, 0, 1], [0, 0, 0]], bool)[np.arange(200) % 3]
        assert np.mean(rows["present"] == wanted) > 0.97


def extending(told) -> None:
    assert told.namespace["right"] > 0.6
    found = [installed(told, path) for path in told.files.values()]
    assert [package for package, _ in found] == [
        mechanisms,
        mechanisms,
        labelers,
        data,
        trust,
        representations,
        queries,
        formats,
    ]
    for package, module in found:
        assert module in modules(package), "the contract tests walk these"
        examples = (module.MODEL,) if package is trust else module.EXAMPLES
        assert module.__name__ in shown_by_the_api_pages()
        for number, example in enumerate(examples):
            try:
                CONTRACTS[package](module, example)
            except Exception as error:
                place = f"{module.__name__}, example {number}"
                raise AssertionError(f"{place}, breaks its contract") from error
    commands_took_the_files()
    comparisons_and_benchmarks_take_the_files()


def installed(told, path: Path) -> tuple[ModuleType, ModuleType]:
    """Return the package and the module of a file that the page wrote."""
    package = importlib.import_module(".".join(path.parent.relative_to(told.folder).parts))
    return package, importlib.import_module(f"{package.__name__}.{path.stem}")


def commands_took_the_files() -> None:
    """Check that results of the page's commands name the files and their settings."""
    card = json.loads(Path("runs/nonnegative/privacy.json").read_text())
    assert card["mechanism"] == "nonnegative_laplace"
    with np.load("runs/nonnegative/queries.npz") as arrays:
        assert arrays["noisy_counts"].min() == 0
    bars = json.loads(Path("runs/bars/config.json").read_text())
    assert (bars["dataset"], bars["labeler"]) == ("bars", "class_sums")
    assert bars["labeler_settings"] == {"mechanism": "gaussian", "centered": False}
    for folder in ("class_sums", "served"):
        card = json.loads(Path(f"runs/{folder}/privacy.json").read_text())
        assert card["labeler"] == "class_sums"
        with np.load(f"runs/{folder}/labels.npz") as rows:
            assert np.mean(rows["label"] == load_digits().target[:200]) > 0.3, folder
    with np.load("runs/matlab/labels.npz") as rows:
        assert np.mean(rows["label"] == load_digits().target[:200]) > 0.6
    card = json.loads(Path("runs/two_servers/privacy.json").read_text())
    words = trust.named("two_servers").words
    assert card["guarantee"]["trust"] == "two_servers"
    assert words in card["assumptions"]
    assert "Two servers" in str(registry.record(card))
    directions = json.loads(Path("runs/directions/config.json").read_text())
    assert directions["representation"] == "random_directions"
    assert directions["representation_settings"] == {"dimension": 20}
    serve = named_settings(Serve, Path("P.npz"), 1.0, 3, Path("out"), "2", student="none")
    served = asked(dataclasses.replace(serve, representation="random_directions"))
    assert served.representation == "random_directions"


def comparisons_and_benchmarks_take_the_files() -> None:
    _, cells = plan.plan(Comparison(methods=("class-sums",)))
    assert {cell.experiment.labeler.name for cell in cells} == {"class_sums"}
    _, cells = plan.plan(Comparison(methods=("rknn-two-servers",)))
    assert {cell.experiment.labeler.trust for cell in cells} == {"two_servers"}
    audits = dict(importlib.import_module("benchmarks.audit").audits()).values()
    assert {"hashed_bit", "nonnegative_laplace"} <= {one.mechanism for one in audits}
    assert "class_sums" in {one.labeler for one in audits}
    labels = importlib.import_module("benchmarks.labels")
    assert "random_directions" in importlib.reload(labels).REPRESENTATIONS


def exported(_: dict) -> None:
    """Check what the page's commands wrote, and that progress was told."""
    with np.load("labels/cleanlab.npz") as arrays:
        labels = arrays["labels"]
        assert (arrays["pred_probs"].max(axis=1) >= 0.8).all()
        assert 0 < len(labels) < len(load_digits().target)
    tasks = json.loads(Path("labels/label_studio.json").read_text())
    assert sum(len(task["predictions"]) for task in tasks) > len(labels)


CHECKS = {
    "README.md": readme,
    "docs/label.md": label_page,
    "docs/tutorial.md": tutorial,
    "docs/tutorial_images.md": images_of_folders,
    "docs/tutorial_text.md": own_records,
    "docs/recipes.md": recipes,
    "docs/choosing.md": choosing,
    "docs/label_sets.md": sets_of_classes,
    "docs/export.md": exported,
    "docs/extending.md": extending,
    "docs/scale.md": scale,
}


def keeps_the_mechanisms(module: ModuleType, mechanism) -> None:
    test_mechanisms.test_totals_of_parts_add_up_to_the_total(mechanism)
    test_mechanisms.test_the_guarantee_says_everything_and_is_what_the_fields_say(mechanism)
    if mechanisms.is_central(mechanism):
        test_mechanisms.test_shapes_dtypes_and_hashable_structure(mechanism)
        test_mechanisms.test_without_noise_the_estimate_is_the_count(mechanism)
        test_mechanisms.test_two_keys_differ_and_one_key_repeats(mechanism)
        test_mechanisms.test_an_unknown_relation_is_named(mechanism)
        return
    test_local.test_the_privacy_loss_of_every_pair_of_inputs_is_at_most_epsilon(mechanism, None)
    test_local.test_messages_follow_the_law(mechanism)
    test_local.test_cells_are_supported_with_probability_p_and_q(mechanism)
    test_local.test_a_client_without_votes_biases_nothing(mechanism)
    test_local.test_what_is_outside_the_alphabet_is_told(mechanism)
    test_local.test_as_many_votes_as_cells_are_refused(mechanism)
    assert module.__name__.split(".")[-1] in mechanisms.names("local")


def keeps_the_labelers(module: ModuleType, labeler) -> None:
    test_labelers.test_answers_are_complete_and_carry_their_guarantee(labeler)
    test_labelers.test_labels_are_right_where_the_classes_are_plain(labeler)
    test_labelers.test_epsilon_is_what_the_events_cost(labeler)
    test_labelers.test_the_public_truth_is_never_used(labeler)
    test_labelers.test_another_key_draws_other_noise(labeler)


def keeps_the_data(module: ModuleType, make) -> None:
    folder = Path("bars")
    folder.mkdir()
    test_data.test_public_private_and_test_share_no_record(make, folder)
    test_data.test_images_are_uint8_and_labels_name_classes(make, folder)
    test_data.test_the_seed_alone_decides_the_split(make, folder)
    test_data.test_the_card_names_source_licence_and_classes(make, folder)


def keeps_the_representations(module: ModuleType, config) -> None:
    encode = module.fit(jax.random.key(0), test_representations.images(60), config)
    features = encode(test_representations.MANY)
    test_representations.test_features_are_finite_float32_rows(module, config, features)
    test_representations.test_a_row_depends_on_its_own_image_alone(module, config, encode, features)
    test_representations.test_blocks_do_not_show(module, config, encode, features)
    test_representations.test_one_key_and_the_same_public_images_give_the_same_encoder(
        module, config, encode
    )
    test_representations.test_encoding_images_of_the_public_never_changes_the_encoder(
        module, config, encode
    )


def keeps_the_queries(module: ModuleType, select) -> None:
    test_queries.test_queries_stand_for_public_records(select)
    test_queries.test_a_record_belongs_to_its_nearest_query_or_to_none(select)
    test_queries.test_one_key_repeats(select)
    for count in (0, 121):
        test_queries.test_more_queries_than_records_are_refused(select, count)


def keeps_the_trust(module: ModuleType, model) -> None:
    name = module.__name__.split(".")[-1]
    test_trust.test_a_model_says_who_sees_what(name, model)
    test_trust.test_labels_carry_the_name_of_their_model(name, model)
    test_trust.test_a_model_takes_mechanisms_by_its_own_word(name, model)
    test_trust.test_the_standard_deviation_is_that_of_all_noise(name, model)


def keeps_the_formats(module: ModuleType, write) -> None:
    contract = (
        getattr(test_formats, name) for name in vars(test_formats) if name.startswith("test_")
    )
    for number, check in enumerate(contract):
        folder = Path(f"format{number}")
        folder.mkdir()
        check(module, write, folder)


CONTRACTS = {
    mechanisms: keeps_the_mechanisms,
    labelers: keeps_the_labelers,
    data: keeps_the_data,
    representations: keeps_the_representations,
    queries: keeps_the_queries,
    trust: keeps_the_trust,
    formats: keeps_the_formats,
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow) for name in CHECKS],  # for `make docs`
)
def told(request, tmp_path_factory):
    """Run a document and return its name, its folder and what its Python has made; files of the
    package are there until the end.
    """
    folder = tmp_path_factory.mktemp("documents")
    namespace: dict = {"__name__": "__main__"}
    made: dict[str, Path] = {}
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))  # rknn simulate changes it
        patch.setattr(compilation, "keep", lambda: None)
        tiny.use(patch, tiny.Linear)
        write_mnist(folder / "DIR")
        write_tables(folder)
        for block in blocks(ROOT / request.param):
            place = f"{request.param}, block at line {block.line}"
            if block.title and block.language == "python":
                install(patch, folder, block)
                made[block.title] = folder / block.title
            elif block.language == "python":
                code = compile("\n" * (block.line - 1) + block.text, place, "exec")
                if needs_another_package(block):
                    continue
                with (
                    contextlib.redirect_stdout(io.StringIO()) as out,
                    jax.numpy_dtype_promotion("standard"),  # as readers have it
                ):
                    exec(code, namespace)
                printed.append(out.getvalue())
            elif block.language == "bash":
                for together in sides(commands(block)):
                    try:
                        run_all(together)
                    except (SystemExit, Exception) as error:
                        raise AssertionError(f"{place}: {together[0].line}") from error
        yield SimpleNamespace(
            document=request.param, folder=folder, namespace=namespace, files=made, printed=printed
        )
        for title in made:
            sys.modules.pop(title.removesuffix(".py").replace("/", "."), None)


def test_documents_run_and_do_what_they_say(told):
    """The numbers are far from chance, 10% or 50%, and a false alarm in thousands of runs; what
    is spent is exact.
    """
    CHECKS[told.document](told)


@pytest.mark.slow
def test_the_demo_of_the_experiments_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny.use(monkeypatch, tiny.Linear)
    every = [
        command.words
        for block in blocks(ROOT / "docs/experiments.md")
        if block.language == "bash"
        for command in commands(block)
    ]
    (demo,) = [
        words[3:]
        for words in every
        if words[1:] == "-m train.distill --dataset digits --epsilon 1".split()
    ]
    distilled(commandline.parsed(demo))


@pytest.mark.long
@pytest.mark.parametrize(
    "document",
    [path for path in DOCUMENTS if str(path.relative_to(ROOT)) not in CHECKS],
    ids=lambda path: path.stem,
)
def test_every_block_is_parsed(document):
    for block in blocks(document):
        if block.language == "python":
            compile(block.text, f"{document.name}, block at line {block.line}", "exec")
        for command in commands(block) if block.language == "bash" else []:
            try:
                parse(command)
            except (SystemExit, Exception) as error:
                pytest.fail(f"{document.name}, block at line {block.line}: {command.line}\n{error}")


def test_every_command_in_a_table_is_parsed():
    """A claim whose command misses an option cannot be checked by a reader."""
    for document in DOCUMENTS:
        rows = "\n".join(re.findall(r"^\|.*", document.read_text(), re.MULTILINE))
        for span in re.findall(r"`((?:rknn account|python -m train\.)[^`]+)`", rows):
            try:
                parse(Command(shlex.split(span), 0, span))
            except (SystemExit, Exception) as error:
                pytest.fail(f"{document.name}: `{span}`\n{error}")


# ---- links, and what the site shows


@each_document
def test_every_link_and_picture_within_the_repository_exists(document):
    for link in [
        first or second for first, second in LINK.findall(BLOCK.sub("", document.read_text()))
    ]:
        if not re.match(r"[a-z]+:", link) and link != "cli.md":  # the build makes that page
            assert not link.startswith("/"), f"{link} is not relative"
            assert (document.parent / link.split("#")[0]).exists(), (
                f"{document.name} links to {link}"
            )


def test_every_page_is_in_the_navigation():
    """`mkdocs build --strict` tells too, much later."""
    navigation = set(
        re.findall(
            r"^ +- (?:\w[^:\n]*: )?(\S+\.(?:md|ipynb))$",
            (ROOT / "mkdocs.yml").read_text(),
            re.MULTILINE,
        )
    )
    pages = {
        str(path.relative_to(ROOT / "docs"))
        for path in (ROOT / "docs").rglob("*")
        if path.suffix in (".md", ".ipynb")
    }
    assert pages <= navigation, "pages that nobody finds"
    assert navigation - {"cli.md"} <= pages, "pages that are not there"  # mkdocs_pages makes it


def shown_by_the_api_pages() -> set[str]:
    """Return the modules of all directives.

    A directive with show_submodules covers its folder. Every other names a module that exists.
    """
    covered: set[str] = set()
    for page in (ROOT / "docs/api").glob("*.md"):
        for name, below in re.findall(r"^::: (\S+)\n((?: .*\n)*)", page.read_text(), re.MULTILINE):
            assert importlib.util.find_spec(name), f"{page.name} shows {name}, which does not exist"
            assert name not in covered, f"{name} is shown twice"
            covered.add(name)
            if "show_submodules: true" in below:
                covered |= set(public_modules(importlib.import_module(name)))
    return covered


def test_the_api_pages_leave_no_public_module_out():
    every = {
        module
        for package in (rknn_jax, train)
        for module in [package.__name__, *public_modules(package)]
    }
    assert sorted(every - shown_by_the_api_pages()) == [], "add ::: lines for these to docs/api"


def public_modules(package: ModuleType) -> list[str]:
    names = [
        module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    return [name for name in names if not any(part.startswith("_") for part in name.split("."))]


def test_every_benchmark_and_preset_can_be_looked_up():
    page = (ROOT / "docs/reproducing.md").read_text()
    benchmarks = {path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py")}
    assert benchmarks == set(re.findall(r"python -m benchmarks\.(\w+)", page))
    assert set(presets.NAMES) == set(re.findall(r"^\| `(\w[\w-]+)` \|", page, re.MULTILINE))
    recorded = {path.name for path in (ROOT / "benchmarks/results").glob("*.json")}
    assert recorded <= set(re.findall(r"`(\w+\.json)`", page))


def test_what_each_result_takes_is_said():
    from benchmarks import stale

    assert stale.needs("compare") == "data: MNIST; time: 3 h, among others"
    for path in (ROOT / "benchmarks/results").glob("*.json"):
        assert stale.needs(path.stem), f"{path.name} has no row in docs/reproducing.md"


def test_tables_are_all_shown_and_hold_what_was_measured():
    from benchmarks import tables

    texts = [document.read_text() for document in tables.documents()]
    names = {name for text in texts for _, name, _ in tables.PLACE.findall(text)}
    assert names == set(tables.TABLES), (
        "a table that nobody shows, or a place for one that does not exist"
    )
    assert [tables.with_tables(text) for text in texts] == texts, "run python -m benchmarks.tables"
