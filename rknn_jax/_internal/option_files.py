"""Options of a command from a file: `--config run.toml`, or `.json`.

    rknn label --config run.toml --epsilon 0.5

A key of the file is the name of an option, with `-` or `_`. A table `[labeler]` with a key
`max-answers` is the option `--labeler.max-answers`. Options of the command line come after those of
the file, and so replace them.

A run keeps its options under `"options"` in its `config.json`. Then that table is read alone, so
that the file repeats the run, in a new folder:

    rknn experiment distill --config runs/demo/config.json
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FLAG = "--config"

OPTIONS = "options"
"""Table of a run's `config.json` that holds the options of its command."""


MOST_BYTES = 2**24
MOST_PARTS = 32
"""Most bytes of a file of options, and most parts of a key, such as two of `labeler.k`."""

_LONG_KEY = re.compile(rf"(?:[^\s.=]{{1,100}}+[ \t]*+\.[ \t]*+){{{MOST_PARTS}}}")
"""A key of too many parts, with which tomllib's memory grows by the square of their number."""


def expanded(arguments: Sequence[str], *, pairs: bool = False) -> list[str]:
    """Return the arguments with the options of the file that `--config` names, if it is there.

    Args:
      arguments: Words of the command line.
      pairs: Whether each flag has one that turns it off, such as `--no-deskew`. Without, all flags
        are off by default. Defaults to False.

    Raises:
      ValueError: If the file cannot be read, is neither TOML nor JSON, or names no options.
      OSError: If the file is not there.
    """
    words = list(arguments)
    given = [i for i, word in enumerate(words) if word.partition("=")[0] == FLAG]
    if not given:
        return words
    if len(given) > 1:
        raise ValueError(f"Expected one {FLAG}, got {len(given)}; put all options into one file.")
    [place] = given
    _, equals, name = words[place].partition("=")
    if not equals:
        if place + 1 == len(words):
            raise ValueError(f"Expected {FLAG} FILE, got no file; name a .toml or .json file.")
        name = words[place + 1]
    rest = words[:place] + words[place + (1 if equals else 2) :]
    options = list(_options(_read(Path(name)), "", pairs=pairs))
    first = next((i for i, word in enumerate(rest) if word.startswith("-")), len(rest))
    return [*rest[:first], *options, *rest[first:]]


def _read(path: Path) -> Mapping[str, Any]:
    """Return the content of a file of options."""
    kind = "JSON" if path.suffix == ".json" else "TOML"
    with open(path, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(
            f"Expected at most {MOST_BYTES / 1e6:.0f} MB of options in {path}, got more; name "
            "another file."
        )
    try:
        text = content.decode()
        if kind == "TOML" and _LONG_KEY.search(text):
            raise _too_many_parts()
        found = (
            json.loads(text, object_pairs_hook=_each_once)
            if kind == "JSON"
            else tomllib.loads(text)
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Expected {kind} in {path}, got {error}; correct the file.") from None
    if not isinstance(found, dict):
        raise ValueError(f"Expected options by name in {path}, got a {type(found).__name__}.")
    found = found.get(OPTIONS, found)
    if not isinstance(found, dict):
        raise ValueError(
            f"Expected a table {OPTIONS} in {path}, got {found!r}; name each option in it."
        )
    if FLAG.strip("-") in found:
        raise ValueError(f"Expected no option {FLAG} in {path}, got one; put all options there.")
    return found


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, which has each key once, as a table of TOML has."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{max(names, key=names.count)!r} twice")
    return found


def _too_many_parts() -> ValueError:
    return ValueError(
        f"a key of more than {MOST_PARTS} parts where an option of {FLAG} has two at most"
    )


def _options(values: Mapping[str, Any], prefix: str, *, pairs: bool) -> Iterator[str]:
    """Yield the words of the options. What is null is left at its default."""
    if prefix.count(".") >= MOST_PARTS:
        raise _too_many_parts()
    seen: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key.replace('_', '-')}"
        if other := seen.get(name):
            raise ValueError(
                f"Expected each option of {FLAG} once, got {other} and {key}; leave "
                "one of them out."
            )
        seen[name] = key
        if isinstance(value, Mapping):
            yield from _options(value, f"{name}.", pairs=pairs)
        elif value is None or (value is False and not pairs):
            continue
        elif value is False:
            yield f"--{prefix}no-{name.removeprefix(prefix)}"
        elif value is True:
            yield f"--{name}"
        elif isinstance(value, list):
            if dashed := [one for one in value if isinstance(one, str) and one.startswith("-")]:
                raise ValueError(
                    f"Expected no {dashed[0]!r} in the list {key} of {FLAG}, because it would be "
                    "read as an option; give it another name."
                )
            yield f"--{name}"
            yield from map(str, value)
        else:
            # One word, so that a negative number is no option.
            yield f"--{name}={value}"
