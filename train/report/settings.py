"""The command that repeats a run."""

import shlex
from dataclasses import fields
from typing import Any

from ..experiment import Experiment
from .folder import Run


def command(run: Run) -> list[str]:
    """Return the parts of the command that repeats the run.

    Every setting is spelled out, so that a later default does not change the run. The folder of the
    data is left for the reader to name.
    """
    config = run.config
    if "labeler_settings" not in config:
        return ["(an earlier version wrote this run; its command is not known)"]
    given = config | {"queries": config.get("resolved_queries") or config.get("queries")}
    # The report is for others, and a folder's name may be a person's.
    given["data_dir"] = config.get("data_dir") and "DIR"
    if not (config.get("buy") or {}).get("labels"):
        given["buy"] = None
    options = []
    for field in fields(Experiment):
        if field.name == "out":
            continue
        options += _options("", field.name, given.get(field.name))
        if field.name == "student":
            options += _options("", "semi_supervised", given.get("semi_supervised"))
        options += _options("", field.name, given.get(f"{field.name}_settings"))
    return ["python -m train.distill", *options]


def _options(group: str, name: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, dict):
        return [
            option
            for inner, given in value.items()
            for option in _options(f"{group}{name}.", inner, given)
        ]
    if isinstance(value, bool):
        return [f"--{group}{'' if value else 'no-'}{name}".replace("_", "-")]
    words = [shlex.quote(str(word)) for word in (value if isinstance(value, list) else [value])]
    return [" ".join([f"--{group}{name}".replace("_", "-"), *words])]
